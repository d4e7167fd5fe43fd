"""Transposes in registers: squares of elements are turned by shuffles of whole vectors.

Before: ``y[i, j] = f(x[j, i], z[i, j])``
After, with vectors of 16::

    for i, j in T.parallel(..):             # each 16th; the last square overlaps the one before it
        for k in range(16): tile[k, 0..15] = x[j + k, i + 0..15]
        turn tile
        for k in range(16): y[i + k, j + 0..15] = f(tile[k, 0..15], z[i + k, j + 0..15])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import IndexMap

from ..machine import Machine
from ..statements import substituted
from .access import Access, Walk
from .lane_folds import transposed
from .loops import PARALLEL_WORK, collapse, shares_evenly, with_simple_quotients
from .matmul_loops import shared
from .register_tiles import int64, lanewise, local, loop, scheduled, var

__all__ = ["in_squares", "tasks"]

# Sides of squares: shorter ones have too few elements in a vector, longer ones do not fit into
# the registers.
_LEAST, _MOST = 4, 16

# Types whose vectors can be shuffled, those of bool as bytes: TVM stores others as if they were of
# another type.
_DTYPES = {"float64", "float32", "float16", "int64", "int32", "int16", "int8"}
_DTYPES |= {"uint64", "uint32", "uint16", "uint8", "bool"}
_HELD = {"bool": "uint8"}  # in squares


def in_squares(sch: Schedule, block: SBlockRV, machine: Machine) -> Schedule | None:
    """The kernel whose only block, in normal form, is ``block``; ``sch`` stays as it is.

    None where nothing is transposed, or where a side is shorter than a square. A side of symbolic
    length may be so too: then elements are taken one by one.
    """
    facts = Walk(sch.get(block))
    if not _may_turn(facts):
        return None
    made = (_along(sch.copy(), block, facts, last, machine) for last in (True, False))
    return next(filter(None, made), None)


def _along(
    sch: Schedule, block: SBlockRV, facts: Walk, last: bool, machine: Machine
) -> Schedule | None:
    """:func:`in_squares` where the last variable is in digits as well, or is not.

    Of few phases that are moved beside each other the last digit is too short for squares.
    """
    sch, block = _with_digits(sch, block, facts, last)
    collapse(sch, block)
    whole = _Nest.of(sch, block)
    for nest in filter(None, (whole, whole.in_uneven_digits())):
        body = _turned(nest, machine)
        if body is not None:
            return scheduled(sch.mod["main"], body)
    return None


def _turned(nest: _Nest, machine: Machine) -> tirx.Stmt | None:
    """The loops over the squares of ``nest``; None where it has none."""
    sides = _sides(nest)
    if sides is None:
        return None
    side = min(machine.lanes(*nest.facts.dtypes), _MOST)
    symbolic = [k for k in sides if not isinstance(nest.extents[k], tirx.IntImm)]
    while any(side > int(nest.extents[k]) for k in sides if k not in symbolic):
        side //= 2
    if side < _LEAST:
        return None
    squares = _Squares(nest, *sides, side)
    body = squares.loops(machine)
    if symbolic:
        fits = tirx.all(*(nest.extents[k] >= side for k in symbolic))
        body = tirx.IfThenElse(fits, body, squares.one_by_one())
    return body


@dataclass(frozen=True)
class _Nest:
    """A block in the variables of its loops.

    ``inside`` tells which of their values count, where not all do.
    """

    facts: Walk
    inside: ir.Expr | None = None

    @classmethod
    def of(cls, sch: Schedule, block: SBlockRV) -> _Nest:
        """``block`` as ``sch`` has it."""
        loops = [sch.get(each) for each in sch.get_loops(block)]
        realize = get_sblockrealize(sch, block)
        axes = [axis.var for axis in realize.block.iter_vars]
        body = substituted(realize.block.body, dict(zip(axes, realize.iter_values, strict=True)))
        variables, extents = zip(*((each.loop_var, each.extent) for each in loops), strict=True)
        return cls(_walk(realize.block, variables, extents, body))

    @property
    def variables(self) -> list[tirx.Var]:
        return self.facts.variables

    @property
    def extents(self) -> list[ir.Expr]:
        return self.facts.extents

    @property
    def store(self) -> tirx.BufferStore:
        return self.facts.block.body

    def holds(self, load: ir.TensorLoad, row: int) -> bool:
        """Whether ``load`` is inside of its tensor for all values of the variables.

        Those that do not count are of the digits, of which ``row`` is the last: each must be an
        index by itself.
        """
        if self.inside is None:
            return True
        digits = self.facts.used(self.inside)
        return digits[-1] == row and all(
            index.same_as(self.variables[k])
            and isinstance(size, tirx.IntImm)
            and int(self.extents[k]) <= int(size)
            for index, size in zip(load.indices, load.source.ty.shape, strict=True)
            for k in digits
            if k in self.facts.used(index)
        )

    def in_uneven_digits(self) -> _Nest | None:
        """With two variables for one that indices divide unevenly: of 21 channels in blocks of 16.

        None where there is none.
        """
        sizes = ((k, _divisor(self.facts, k)) for k in range(len(self.variables)))
        uneven = ((k, size) for k, size in sizes if size and int(self.extents[k]) % size)
        k, size = next(uneven, (0, 0))
        if not size:
            return None
        extent = self.extents[k]
        digits = [(var("part"), int64(-(-int(extent) // size))), (var("digit"), int64(size))]
        loops = list(zip(self.variables, self.extents, strict=True))
        variables, extents = zip(*loops[:k], *digits, *loops[k + 1 :], strict=True)
        analyzer = sym.Analyzer()
        for each, length in zip(variables, extents, strict=True):
            analyzer.bind(each, ir.Range(0, length))
        (part, _), (digit, _) = digits
        body = substituted(self.store, {self.variables[k]: part * size + digit})
        quotients = (tirx.FloorDiv, tirx.FloorMod)
        body = tvm_ffi.structural_map(body, (quotients, analyzer.simplify))
        return _Nest(
            _walk(self.facts.block, variables, extents, body), part * size + digit < extent
        )


def _walk(block: SBlock, variables: Sequence[tirx.Var], extents: Sequence, body) -> Walk:
    """The facts of ``block`` with other variables, all of them spatial, and another body."""
    pairs = zip(variables, extents, strict=True)
    kind = tirx.IterVar.DataPar
    axes = [tirx.IterVar(ir.Range(0, extent), each, kind) for each, extent in pairs]
    return Walk(SBlock(axes, block.reads, block.writes, block.name_hint, body))


def _may_turn(facts: Walk) -> bool:
    """Whether a block is one store without guards, and some load jumps along its last variable."""
    store = facts.block.body
    if not isinstance(store, tirx.BufferStore) or not store.indices or facts.guarded:
        return False
    if not set(facts.dtypes) <= _DTYPES or any(var.ty.dtype != "int64" for var in facts.variables):
        return False
    last = set(facts.used(store.indices[-1]))
    used = ([set(facts.used(index)) for index in access.indices] for access in facts.inputs)
    return any(last & set().union(*indices) - indices[-1] for indices in used if indices)


def _with_digits(
    sch: Schedule, block: SBlockRV, facts: Walk, last: bool
) -> tuple[Schedule, SBlockRV]:
    """With two variables for one that is divided: of the channels of a blocked tensor, say.

    ``last``: also where it is the last.
    """
    digits = [_digit(facts, k) for k in range(len(facts.variables))]
    if not last:
        digits[-1] = None
    if not any(digits):
        return sch, block

    def parts(*variables: ir.Var) -> list[ir.Expr]:
        return [
            part
            for each, size in zip(variables, digits, strict=True)
            for part in ([each // size, each % size] if size else [each])
        ]

    index_map = IndexMap.from_func(parts, ndim=len(digits), index_dtype="int64")
    sch.transform_block_layout(block, index_map)
    made = with_simple_quotients(sch, block)
    return made, made.get_sblock(sch.get(block).name_hint)


def _digit(facts: Walk, k: int) -> int | None:
    """The number by which indices divide variable ``k``, if its extent is a multiple of it."""
    size, extent = _divisor(facts, k), facts.extents[k]
    return size if size and int(extent) % size == 0 and size < int(extent) else None


def _divisor(facts: Walk, k: int) -> int | None:
    """The number by which indices divide variable ``k``, of a known extent."""
    sizes: set[int] = set()

    def divided(node: tirx.FloorMod | tirx.FloorDiv) -> None:
        if node.a.same_as(facts.variables[k]) and isinstance(node.b, tirx.IntImm):
            sizes.add(int(node.b))

    tvm_ffi.structural_walk(facts.block.body, ((tirx.FloorMod, tirx.FloorDiv), divided))
    extent = facts.extents[k]
    if len(sizes) != 1 or not isinstance(extent, tirx.IntImm):
        return None
    (size,) = sizes
    return size if size > 1 else None


def _conditions(facts: Walk, load: ir.TensorLoad) -> set[int]:
    """The variables that choose whether ``load`` counts: it is done in any case, by Select."""
    used: set[int] = set()

    def select(choice: tirx.Select) -> None:
        for arm in choice.true_value, choice.false_value:
            tvm_ffi.structural_walk(arm, (ir.TensorLoad, lambda node: chosen(node, choice)))

    def chosen(node: ir.TensorLoad, choice: tirx.Select) -> None:
        if node.same_as(load):
            used.update(facts.used(choice.condition))

    tvm_ffi.structural_walk(facts.block.body.value, (tirx.Select, select))
    return used


def _sides(nest: _Nest) -> tuple[int, int] | None:
    """The loops of a square: along one a load is contiguous, along the other, the last, results."""
    facts, extents = nest.facts, nest.extents
    long = [k for k, n in enumerate(extents) if not isinstance(n, tirx.IntImm) or int(n) > 1]
    if not long:
        return None
    *_, column = long
    if any(access.strides[column] != 1 for access in facts.stores):
        return None
    loads: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(nest.store.value, (ir.TensorLoad, loads.append))
    for row in long[:-1]:
        turning = [node for node in loads if _turns(facts.access(node), row, column)]
        if turning:
            kept = all(_stays_inside(facts, n, row) and nest.holds(n, row) for n in turning)
            return (row, column) if kept else None
    return None


def _stays_inside(facts: Walk, load: ir.TensorLoad, row: int) -> bool:
    """Whether ``load``, if it counts on a condition, can be clamped without a look at lanes."""
    chosen = _conditions(facts, load)
    along = [set(facts.used(index)) for index in load.indices]
    return row not in chosen and not any(row in used and used & chosen for used in along)


def _turns(access: Access, row: int, column: int) -> bool:
    """Whether an access is contiguous along ``row`` and jumps along ``column``, also unevenly."""
    step = access.strides[column]
    jumps = not isinstance(step, int) or step > 1
    return access.strides[row] == 1 and jumps


@dataclass(frozen=True)
class _Squares:
    """A block over squares of ``side`` along the loops ``row`` and ``column`` of its ``nest``."""

    nest: _Nest
    row: int
    column: int
    side: int

    def loops(self, machine: Machine) -> tirx.Stmt:
        """All of them, shared among the cores where there is enough work."""
        i, j = var("i"), var("j")
        variables, extents = self.nest.variables, self.nest.extents
        others = [k for k in range(len(variables)) if k not in (self.row, self.column)]
        loops = [(variables[k], extents[k]) for k in others]
        counts = [self._squares_along(k) for k in (self.row, self.column)]
        loops += zip((i, j), counts, strict=True)
        stmt = self._square(self._first(self.row, i), self._first(self.column, j))
        symbolic = not all(isinstance(count, tirx.IntImm) for count in counts)
        # Digits of a task's number by symbolic counts are divisions: of few tasks, if possible.
        shared_loops = loops[: len(others)] if symbolic and others else loops
        count = tasks([extent for _, extent in shared_loops], machine)
        if self.nest.facts.work < PARALLEL_WORK or machine.cores == 1:
            count = 0
        for variable, extent in reversed(loops[count:]):
            stmt = loop(variable, extent, stmt)
        shared_variables, shared_extents = zip(*loops[:count], strict=True) if count else ((), ())
        return shared(shared_extents, shared_variables, stmt)

    def one_by_one(self) -> tirx.Stmt:
        """All elements, of sides that have no square."""
        stmt = self._counting(self.nest.store)
        pairs = zip(self.nest.variables, self.nest.extents, strict=True)
        for variable, extent in reversed(list(pairs)):
            stmt = loop(variable, extent, stmt)
        return stmt

    def _counting(self, stmt: tirx.Stmt) -> tirx.Stmt:
        inside = self.nest.inside
        return stmt if inside is None else tirx.IfThenElse(inside, stmt, None)

    def _squares_along(self, k: int) -> tirx.Expr:
        return tirx.floordiv(self.nest.extents[k] + (self.side - 1), self.side)

    def _first(self, k: int, number: tirx.Expr) -> tirx.Expr:
        """Where along loop ``k`` a square starts."""
        extent, start = self.nest.extents[k], number * self.side
        whole = isinstance(extent, tirx.IntImm) and int(extent) % self.side == 0
        return start if whole else tirx.min(start, extent - self.side)

    def _square(self, row: tirx.Expr, column: tirx.Expr) -> tirx.Stmt:
        """The square from ``row`` and ``column`` on."""
        store, side, facts = self.nest.store, self.side, self.nest.facts
        number, place = var("number"), var("place")
        made: list[tirx.Stmt] = []
        buffers: list[tirx.Var] = []

        def load(node: ir.TensorLoad) -> ir.Expr:
            if not _turns(facts.access(node), self.row, self.column):
                return node
            node = self._clamped(node)
            shape, dtype = (side, side), str(node.source.ty.dtype.dtype)
            held = _HELD.get(dtype, dtype)
            tile, other = (tirx.decl_buffer(shape, held, "tile", scope="local") for _ in range(2))
            buffers.extend((tile, other))
            for k in range(side):

                def filled(lane: tirx.Expr, k: int = k) -> tirx.Stmt:
                    value = self._at(node, row + lane, column + k).astype(held)
                    return tirx.BufferStore(tile, value, [int64(k), lane])

                made.append(lanewise(0, side, filled))
            turns, last = transposed(tile, other, side)
            made.extend(turns)
            return tirx.BufferLoad(last, [number, place]).astype(dtype)

        value = tvm_ffi.structural_map(store.value, (ir.TensorLoad, load))
        result = tirx.BufferStore(store.buffer, value, list(store.indices))
        for k in range(side):

            def stored(lane: tirx.Expr, k: int = k) -> tirx.Stmt:
                stmt = self._at(result, row + k, column + lane)
                return substituted(stmt, {number: int64(k), place: lane})

            whole = lanewise(0, side, stored)
            made.append(self._at(self._counting(whole), row + k, column))
        return local(made, buffers)

    def _clamped(self, load: ir.TensorLoad) -> ir.TensorLoad:
        """``load``, inside of its tensor also where a Select takes the other arm."""
        facts = self.nest.facts
        if not _conditions(facts, load):
            return load
        indices = [
            index
            if self.row in facts.used(index)
            else tirx.max(tirx.min(index, size.astype(index.ty.dtype) - 1), 0)
            for index, size in zip(load.indices, load.source.ty.shape, strict=True)
        ]
        return tirx.BufferLoad(load.source, indices)

    def _at(self, node, row: tirx.Expr, column: tirx.Expr):
        """An expression or a statement of the block at one place."""
        variables = self.nest.variables
        return substituted(node, {variables[self.row]: row, variables[self.column]: column})


def tasks(extents: Sequence[ir.Expr], machine: Machine) -> int:
    """How many of the first loops together can be shared evenly; else all."""
    sizes = [int(extent) if isinstance(extent, tirx.IntImm) else 1 for extent in extents]
    counts = range(1, len(sizes) + 1)
    return next((k for k in counts if shares_evenly([prod(sizes[:k])], machine)), len(sizes))
