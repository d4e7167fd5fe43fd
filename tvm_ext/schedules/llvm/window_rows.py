"""Windows along rows: what is above each other first, then what is side by side.

Neighbouring windows share columns, and columns are contiguous whatever the stride; conditions on
the row stand outside of the loop, those on the column part it.

Before: ``y[c, i, j] = max over p, q of T.if_then_else(inside, x[c, 2 * i + p, 2 * j + q - 1], 0)``
After::

    for c in T.parallel(..):
        for i in bands of rows:
            for i, k: columns[i, k] = max over p of x[c, 2 * i + p, k - 1]   # in pieces
            for i, j: y[c, i, j] = max over q of columns[i, 2 * j + q]       # and an epilogue
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

import tvm_ffi
from numpy import ndindex
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx.analysis import undefined_vars

from ..machine import Machine
from ..statements import substituted
from .access import Walk
from .loops import PARALLEL_WORK, others_inlined, walk
from .matmul_loops import shared
from .pieces import comparisons, in_parts
from .register_tiles import int64, local, loop, scheduled, sequence, var
from .rule import LoopNestRule
from .turned import tasks

__all__ = ["WindowRows"]

_BRANCH = ir.Op.get("prim.if_then_else")
_OPERATIONS = tirx.Max, tirx.Min, tirx.Add
# Windows of so many elements are one expression each of their columns and rows.
_MOST = 64
# Rows of windows between what is above each other and what is side by side.
_BAND = 8


class WindowRows(LoopNestRule):
    """Maxima, minima and sums over windows of NC.. images, of symbolic sizes or of long rows.

    float32[1, 64, h, w], 3x3 windows at strides of 2 of 112 x 112, two Zen 5 cores: 40 us.
    """

    def schedule(
        self, func: tirx.PrimFunc, sch: Schedule, blocks: list[SBlockRV], machine: Machine
    ) -> Schedule | None:
        reduced = [k for k, block in enumerate(blocks) if "R" in walk(sch, block).kinds]
        if len(reduced) != 1:
            return None
        pair = others_inlined(sch, blocks, reduced[0])
        windows = None if pair is None else _Windows.of(*pair)
        stmt = None if windows is None else windows.loops(machine)
        return None if stmt is None else scheduled(func, stmt)


@dataclass(frozen=True)
class _Windows:
    """A reduction over windows and what becomes of it.

    Attributes:
        facts: of the block of the reduction.
        outer: the variables but the last of what is kept, and ``last``, that along a row.
        above: the reduced variables but the last, and ``beside``, that along a row.
        result: the store of an element, and ``places``, its variables in the order of the others.
    """

    facts: Walk
    outer: Sequence[tirx.IterVar]
    last: tirx.IterVar
    above: Sequence[tirx.IterVar]
    beside: tirx.IterVar
    result: tirx.BufferStore
    places: Sequence[tirx.Var]

    @classmethod
    def of(cls, reduction: s_tir.SBlock, final: s_tir.SBlock) -> _Windows | None:
        """Those of two blocks, which may be one; None where they are of another kind."""
        facts, update = Walk(reduction), reduction.body
        kept = [
            axis for axis, kind in zip(reduction.iter_vars, facts.kinds, strict=True) if kind == "S"
        ]
        reduced = [
            axis for axis, kind in zip(reduction.iter_vars, facts.kinds, strict=True) if kind == "R"
        ]
        if not isinstance(update, tirx.BufferStore) or not isinstance(final.body, tirx.BufferStore):
            return None
        if len(kept) < 2 or not reduced or not isinstance(update.value, _OPERATIONS):
            return None
        if any(axis.var.ty.dtype != "int64" for axis in (*reduction.iter_vars, *final.iter_vars)):
            return None
        own = [axis.var for axis in kept]
        places = own if final.same_as(reduction) else _places(update, own, final)
        if places is None:
            return None
        if not all(isinstance(axis.dom.extent, tirx.IntImm) for axis in reduced):
            return None
        result = update if final.same_as(reduction) else final.body
        return cls(facts, kept[:-1], kept[-1], reduced[:-1], reduced[-1], result, places)

    def loops(self, machine: Machine) -> tirx.Stmt | None:
        """The kernel; None where its conditions or places are of another form."""
        update, place = self.facts.block.body, var("place")
        found = _along_row(self._term(), self.last.var, self.beside.var, place)
        taps = [int(axis.dom.extent) for axis in (*self.above, self.beside)]
        if found is None or prod(taps) > _MOST:
            return None
        term, stride, dilation = found
        if not self._is_worth_it(term, stride, taps[-1], machine):
            return None
        dtype, windows = str(update.buffer.ty.dtype.dtype), self.last.dom.extent
        length = (windows - 1) * stride + ((taps[-1] - 1) * dilation + 1)
        columns = tirx.decl_buffer((_BAND, length), dtype, "columns")
        number = var("number")

        def along(store: tirx.BufferStore, extent: ir.Expr) -> tirx.Stmt | None:
            lanes = machine.lanes(*self.facts.dtypes)
            return in_parts(store, loop(place, extent, store), lanes)

        def of_column(values: Sequence[tirx.Expr]) -> tirx.Stmt | None:
            store = tirx.BufferStore(columns, self._folded(values), [number, place])
            return along(store, length)

        above = _all_above(self._each_above(term), place, of_column)
        beside = [
            tirx.BufferLoad(columns, [number, place * stride + k * dilation])
            for k in range(taps[-1])
        ]
        result = self._result(self._folded(beside), place)
        # LLVM makes vectors of a plain loop, and shuffles what is strided.
        across = along(result, windows) if stride == 1 else loop(place, windows, result)
        if above is None or across is None:
            return None
        return self._over_outer(above, across, number, columns, machine)

    def _is_worth_it(self, term: tirx.Expr, stride: int, taps: int, machine: Machine) -> bool:
        """Always of symbolic length; otherwise where windows overlap and rows fill vectors."""
        if not isinstance(self.last.dom.extent, tirx.IntImm):
            return True
        rows = [node.source.ty.shape[-1] for node in _loads(term)]
        lanes = machine.lanes(*self.facts.dtypes)
        return taps > stride and all(isinstance(n, tirx.IntImm) and n >= lanes for n in rows)

    def _folded(self, values: Sequence[tirx.Expr]) -> tirx.Expr:
        return reduce(type(self.facts.block.body.value), values)

    def _each_above(self, term: tirx.Expr) -> list[tirx.Expr]:
        """``term`` of each element of a column."""
        extents = [int(axis.dom.extent) for axis in self.above]
        variables = [axis.var for axis in self.above]
        return [
            substituted(term, dict(zip(variables, map(int64, at), strict=True)))
            for at in ndindex(*extents)
        ]

    def _term(self) -> tirx.Expr:
        """What is folded into an element."""
        store = self.facts.block.body
        a, b = store.value.a, store.value.b
        return b if isinstance(a, ir.TensorLoad) and a.source.same_as(store.buffer) else a

    def _result(self, total: tirx.Expr, place: tirx.Var) -> tirx.BufferStore:
        """The store of the window at ``place`` of a row, whose elements fold into ``total``."""
        buffer = self.facts.block.body.buffer
        value = total
        if not self.result.buffer.same_as(buffer):

            def load(node: ir.TensorLoad) -> ir.Expr:
                return total if node.source.same_as(buffer) else node

            value = tvm_ffi.structural_map(self.result.value, (ir.TensorLoad, load))
        store = tirx.BufferStore(self.result.buffer, value, self.result.indices)
        own = [axis.var for axis in self.outer]
        return substituted(store, dict(zip(self.places, [*own, place], strict=True)))

    def _over_outer(
        self,
        above: tirx.Stmt,
        across: tirx.Stmt,
        number: tirx.Var,
        columns: tirx.Var,
        machine: Machine,
    ) -> tirx.Stmt:
        """``above``, then ``across``, of a band of rows at a time; each task has its ``columns``.

        What is stored just now cannot be loaded at another alignment at once.
        """
        *outer, row = self.outer
        band, height = var("band"), row.dom.extent
        bands = (height + (_BAND - 1)) // _BAND
        rows = tirx.min(height - band * _BAND, _BAND)
        body = sequence(
            [
                loop(number, rows, substituted(stmt, {row.var: band * _BAND + number}))
                for stmt in (above, across)
            ]
        )
        loops = [(axis.var, axis.dom.extent) for axis in outer] + [(band, bands)]
        variables, extents = zip(*loops, strict=True)
        count = tasks(extents, machine)
        if self.facts.work < PARALLEL_WORK or machine.cores == 1:
            count = 0
        for variable, extent in reversed(loops[count:]):
            body = loop(variable, extent, body)
        stmt = tirx.IfThenElse(self.last.dom.extent > 0, local([body], [columns]), None)
        return shared(extents[:count], variables[:count], stmt)


def _places(
    update: tirx.BufferStore, own: Sequence[tirx.Var], final: s_tir.SBlock
) -> list[tirx.Var] | None:
    """The variables of ``final`` at the places of ``own``; None where they are not all in order."""
    variables = [axis.var for axis in final.iter_vars]
    mine = [node for node in _loads(final.body.value) if node.source.same_as(update.buffer)]
    wanted = substituted(update, dict(zip(own, variables, strict=False))).indices
    alike = len(own) == len(variables) and all(
        tvm_ffi.structural_equal(index, other)
        for node in mine
        for index, other in zip(node.indices, wanted, strict=True)
    )
    return variables if mine and alike else None


def _along_row(
    term: tirx.Expr, last: tirx.Var, beside: tirx.Var, place: tirx.Var
) -> tuple[tirx.Expr, int, int] | None:
    """``term`` of a ``place`` in place of a window and its column, the stride and the dilation.

    None where it depends on them otherwise, or reads other than along contiguous rows.
    """
    steps: set[tuple[int, int]] = set()
    rests: list[tuple[ir.Expr, ir.Expr]] = []
    for number in _numbers(term, last, beside):
        parts = sym.detect_linear_equation(number, [last, beside])
        if not parts or not all(isinstance(part, tirx.IntImm) for part in parts[:2]):
            return None
        steps.add((int(parts[0]), int(parts[1])))
        rests.append((number, parts[2]))
    if len(steps) != 1:
        return None
    ((stride, dilation),) = steps
    if min(stride, dilation) < 1:
        return None

    def replaced(node: ir.Expr) -> ir.Expr:
        for number, rest in rests:
            if tvm_ffi.structural_equal(node, number):
                return place + rest
        return node

    moved = tvm_ffi.structural_map(term, (ir.Expr, replaced))
    return (moved, stride, dilation) if _reads_rows(moved, place) else None


def _numbers(term: tirx.Expr, *variables: tirx.Var) -> list[ir.Expr]:
    """The largest expressions of integers in ``term`` that use ``variables``."""
    found: list[ir.Expr] = []

    def visit(value: ir.Expr) -> tvm_ffi.WalkResult:
        is_integer = "int" in str(getattr(value.ty, "dtype", ""))
        if isinstance(value, ir.TensorLoad) or tirx.is_buffer_var(value) or not is_integer:
            return tvm_ffi.WalkResult.ADVANCE
        if _loads(value):
            return tvm_ffi.WalkResult.ADVANCE
        if any(v.same_as(used) for used in undefined_vars(value) for v in variables):
            found.append(value)
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(term, (ir.Expr, visit), order="pre")
    return found


def _loads(value: ir.Expr) -> list[ir.TensorLoad]:
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(value, (ir.TensorLoad, found.append))
    return found


def _reads_rows(term: tirx.Expr, place: tirx.Var) -> bool:
    """Whether what ``term`` reads at each ``place`` is contiguous, or stays where it is."""
    loads = _loads(term)
    return bool(loads) and not any(
        place in undefined_vars(index) for node in loads for index in node.indices[:-1]
    )


def _row_condition(term: tirx.Expr, place: tirx.Var) -> tuple[tirx.Expr | None, tirx.Expr]:
    """What ``term`` asks for whatever the ``place``, and ``term`` where it holds."""
    if not isinstance(term, ir.Call) or term.op != _BRANCH:
        return None, term
    condition, then, other = term.args
    if not _is_conjunction(condition):
        return None, term
    asked = list(comparisons(condition))
    of_row = [each for each in asked if place not in undefined_vars(each)]
    of_column = [each for each in asked if place in undefined_vars(each)]
    if not of_row:
        return None, term
    return tirx.all(*of_row), tirx.if_then_else(tirx.all(*of_column), then, other) if (
        of_column
    ) else then


def _is_conjunction(condition: tirx.Expr) -> bool:
    if isinstance(condition, tirx.And):
        return _is_conjunction(condition.a) and _is_conjunction(condition.b)
    return not isinstance(condition, tirx.Or | tirx.Not)


def _all_above(
    terms: Sequence[tirx.Expr],
    place: tirx.Var,
    statement: Callable[[Sequence[tirx.Expr]], tirx.Stmt | None],
) -> tirx.Stmt | None:
    """``statement`` of all ``terms``: those where all rows are inside, or with their conditions."""
    parts = [_row_condition(term, place) for term in terms]
    asked = [condition for condition, _ in parts if condition is not None]
    inside = statement([value for _, value in parts])
    if not asked or inside is None:
        return inside
    somewhere = statement(terms)
    return None if somewhere is None else tirx.IfThenElse(tirx.all(*asked), inside, somewhere)
