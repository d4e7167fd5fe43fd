"""Batched matrix product of symbolic shape, right-hand side as it lies in memory.

Before: ``y[b, m, n] += a[b, m, k] * v[b, k, n]``, with any of the extents symbolic
After::

    for b in T.parallel(B):
        for n in range(N // 64):               # whole tiles; then vectors, parts of them, columns
            for m in range(M // 6):            # whole tiles; then for 4, 2 and 1 rows
                for k in range(K): acc[6, 64] += a[b, 6 * m + (0..5), k] * v[b, k, 64 * n + (0..63)]
                y[b, 6 * m + (0..5), 64 * n + (0..63)] = f(acc)

Where rows are few, of whatever shape, the right-hand side is read as it lies in memory, too::

    for b, n in T.parallel(B, N // 1024):
        for k in range(K // 4):                # whole steps; then of one
            for c in range(0, 1024, 16): acc[M, c] += sum(a[b, 0..M, 4 * k + (0..3)] * v[.., c])
        y[b, 0..M, 1024 * n + (0..1023)] = f(acc)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl

from ..machine import Machine
from ..statements import substituted
from .access import Walk
from .contraction import axis_kinds, blocks_of, is_static
from .loops import CHEAP, others_inlined
from .matmul_rows import term_of, tile_rows
from .register_tiles import (
    RegisterTiles,
    halves,
    int64,
    lanewise,
    local,
    loop,
    parts,
    scheduled,
    sequence,
    var,
)

__all__ = [
    "FEW_ROWS", "MatmulLoops", "Product", "factors_of", "is_few", "product_of", "shared", "using",
]  # fmt: skip

_VECTORS = 4  # of columns, in a tile
FEW_ROWS = 8  # rows whose sums wait in L1 while the right-hand side passes by
_STEPS = 4  # rows of the right-hand side that pass by together
_SUMS = 4096  # in L1
# As tvm_ext.ops has them.
_DOTS = "tirx.tvm_ext.integer_dot", "tirx.tvm_ext.integer_pair_dot"
_TYPES = "float32", "float64", "int32", "int64", "uint32", "uint64"


class MatmulLoops(dl.base.ScheduleRule):
    """``[batch.., M, N]`` over one reduction axis, columns contiguous, epilogue; symbolic extents,
    or few rows.

    No operand is packed: a decoder's step reads each element once.
    """

    def apply(self, func, target, _tunable):
        found = product_of(func, lambda block: _is_product(block) and _is_served(func, block))
        if found is None:
            return None
        module, product = found
        nest = (_few_rows if is_few(product.rows) else _tiles)(product, Machine.of(target))
        return scheduled(module, nest)


def _is_served(func: tirx.PrimFunc, block: SBlock) -> bool:
    return not is_static(func) or is_few(block.iter_vars[-3].dom.extent)


def product_of(
    func: object, wanted: Callable[[SBlock], bool]
) -> tuple[tirx.PrimFunc, Product] | None:
    """``func`` and what it does, if that is a product of the ``wanted`` kind and an epilogue."""
    found = blocks_of(func)
    if found is None:
        return None
    sch, blocks = found
    kinds = [axis_kinds(sch.get(block)) for block in blocks]
    at = next((k for k, kind in enumerate(kinds) if "R" in kind), None)
    if at is None or any(set(kind) != {"S"} for k, kind in enumerate(kinds) if k != at):
        return None
    kind = kinds[at]
    if set(kind[:-1]) != {"S"} or len(kind) < 3 or not wanted(sch.get(blocks[at])):
        return None
    kept = others_inlined(sch, blocks, at)
    if kept is None:
        return None
    product, output = kept
    if at + 1 < len(blocks) and not _is_pointwise(product, output):
        return None
    return sch.mod["main"], Product(product, output)


def _is_product(block: SBlock) -> bool:
    """Whether a step adds ``a[.., m, .., k] * v[.., n]``."""
    column, factors = block.iter_vars[-2].var, factors_of(block)
    if factors is None or not factors[1].indices[-1].same_as(column):
        return False
    return not any(map(using(block, column), factors[1].indices[:-1]))


def factors_of(block: SBlock) -> tuple[ir.TensorLoad, ir.TensorLoad] | None:
    """The factors of what a step adds: elements of a row, and of a column."""
    *_, row, column, step = (axis.var for axis in block.iter_vars)
    if len(block.writes) != 1 or not isinstance(block.body, tirx.BufferStore):
        return None
    if not isinstance(block.body.value, tirx.Add) or not block.body.indices[-1].same_as(column):
        return None
    term = term_of(block)
    factors = _multiplied(term)
    if len(factors) != 2 or not all(isinstance(f, ir.TensorLoad) for f in factors):
        return None
    if any(str(f.ty.dtype) not in _TYPES for f in factors):
        return None

    def uses(load: ir.TensorLoad, variable: tirx.Var) -> bool:
        return any(map(using(block, variable), load.indices))

    left, right = factors if uses(factors[0], row) else factors[::-1]
    apart = uses(left, row) and not uses(left, column) and not uses(right, row)
    return (left, right) if apart and uses(left, step) and uses(right, step) else None


def _multiplied(term: ir.Expr) -> list[ir.Expr]:
    """The factors of a product, or of one of words of which neighbours are multiplied."""
    if isinstance(term, tirx.Mul):
        return [term.a, term.b]
    is_of_words = isinstance(term, ir.Call) and getattr(term.op, "name", "") in _DOTS
    return list(term.args) if is_of_words else []


def using(block: SBlock, variable: tirx.Var) -> Callable[[tirx.Expr], bool]:
    """Whether an index depends on an axis of ``block``."""
    facts = Walk(block)
    place = next(k for k, axis in enumerate(block.iter_vars) if axis.var.same_as(variable))
    return lambda index: place in facts.used(index)


def _is_pointwise(product: SBlock, output: SBlock) -> bool:
    """Whether each element of the result depends on that of the product at the same place."""
    buffer = product.writes[0].source
    loads: list[ir.TensorLoad] = []
    if not isinstance(output.body, tirx.BufferStore):
        return False

    def note(load: ir.TensorLoad) -> None:
        if load.source.same_as(buffer):
            loads.append(load)

    tvm_ffi.structural_walk(output.body.value, (ir.TensorLoad, note))
    own = [axis.var for axis in output.iter_vars]
    stored = [axis.var for axis in product.iter_vars[:-1]]
    return (
        len(own) == len(stored)
        and _are(product.body.indices, stored)
        and bool(loads)
        and all(_are(load.indices, own) for load in loads)
    )


def _are(indices, variables) -> bool:
    return len(indices) == len(variables) and all(
        index.same_as(variable) for index, variable in zip(indices, variables, strict=True)
    )


def is_few(rows: tirx.Expr) -> bool:
    """Whether rows are some, but so few that no element of the right-hand side is read twice."""
    return isinstance(rows, tirx.IntImm) and 0 < int(rows) <= FEW_ROWS


class Product:
    """A product and what is stored of it, one element at a time; ``loops`` are over the batch."""

    def __init__(self, product: SBlock, output: SBlock):
        *batch, self._row, self._column, self._step = product.iter_vars
        self._product, self._output = product, output
        self.batch = [axis.dom.extent for axis in batch]
        self.loops = [var(axis.var.name) for axis in batch]
        axes = self._row, self._column, self._step
        self.rows, self.columns, self.depth = (axis.dom.extent for axis in axes)
        self._fixed = {axis.var: own for axis, own in zip(batch, self.loops, strict=True)}
        self._sums = product.writes[0].source
        self.dtype = str(self._sums.ty.dtype.dtype)
        self.costly = not output.same_as(product) and Walk(output).cost > CHEAP

    def term(self, row, column, step):
        moving = {self._row.var: row, self._column.var: column, self._step.var: step}
        return substituted(term_of(self._product), self._fixed | moving)

    def store(self, value, row, column) -> tirx.Stmt:
        if self._output.same_as(self._product):
            body = tirx.BufferStore(self._sums, value, self._product.body.indices)
            return substituted(body, self._fixed | {self._row.var: row, self._column.var: column})
        places, store = [*self.loops, row, column], self._output.body
        own = {axis.var: at for axis, at in zip(self._output.iter_vars, places, strict=True)}

        def load(node: ir.TensorLoad) -> ir.Expr:
            return value if node.source.same_as(self._sums) else node

        final = tvm_ffi.structural_map(store.value, (ir.TensorLoad, load))
        return substituted(tirx.BufferStore(store.buffer, final, store.indices), own)


def _tiles(product: Product, machine: Machine) -> tirx.Stmt:
    """Register tiles: threads share the batch, or the rows where there is none."""
    tiles = RegisterTiles(product.dtype, product.depth, product.term, product.store, product.costly)
    lanes = machine.lanes(product.dtype)
    height = min(tile_rows(machine, _VECTORS), 6)
    columns = dict.fromkeys([_VECTORS * lanes, lanes, max(lanes // 4, 1), 1])
    serial, parallel = tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL
    nest = []
    for width, column, panels in parts(product.columns, list(columns)):
        panel = var("panel")
        rows = []
        for size, row, count in parts(product.rows, halves(height)):
            turn = var("turn")
            first = row + turn * size, size, column + panel * width, width
            tile = tiles.tile(*first, min(width, lanes))
            kind = parallel if not product.batch and size == height else serial
            rows.append(loop(turn, count, tile, kind))
        nest.append(loop(panel, panels, sequence(rows)))
    return shared(product.batch, product.loops, sequence(nest))


def _few_rows(product: Product, machine: Machine) -> tirx.Stmt:
    """All rows at once, as the right-hand side passes by: threads share columns, and the batch."""
    rows, size, lanes = int(product.rows), _chunk(product, machine), machine.lanes(product.dtype)
    task, chunk = var("columns"), size * lanes
    first, tasks = task * chunk, (product.columns + (chunk - 1)) // chunk
    vectors, rest = product.columns // lanes, product.columns % lanes
    whole = tirx.min(vectors - task * size, int64(size))
    sums = tirx.decl_buffer((rows, chunk), product.dtype, "sums", scope="local")

    def vector(statement, width: int, start) -> tirx.Stmt:
        row = var("row")
        body = lanewise(start, width, partial(statement, row))
        return loop(row, rows, body, tirx.ForKind.UNROLLED)

    def each(statement: Callable[[tirx.Expr, tirx.Expr], tirx.Stmt]) -> tirx.Stmt:
        """``statement`` of every row and column, in vectors; the last task has what is left."""
        turn, last = var("turn"), []
        for width, start, count in parts(rest, [*dict.fromkeys([max(lanes // 4, 1), 1])]):
            tail = var("tail")
            place = whole * lanes + start + tail * width
            last.append(loop(tail, count, vector(statement, width, place)))
        tails = tirx.IfThenElse(task + 1 == tasks, sequence(last), None)
        return sequence([loop(turn, whole, vector(statement, lanes, turn * lanes)), tails])

    def clear(row, place):
        return tirx.BufferStore(sums, tirx.const(0, product.dtype), [row, place])

    def add(steps, start, row, place):
        total = tirx.BufferLoad(sums, [row, place])
        for step in range(steps):
            total = total + product.term(row, first + place, start + step)
        return tirx.BufferStore(sums, total, [row, place])

    def finish(row, place):
        return product.store(tirx.BufferLoad(sums, [row, place]), row, first + place)

    body = [each(clear)]
    for steps, start, turns in parts(product.depth, [_STEPS, 1]):
        turn = var("k")
        body.append(loop(turn, turns, each(partial(add, steps, start + turn * steps))))
    body.append(each(finish))
    return shared([*product.batch, tasks], [*product.loops, task], local(body, [sums]))


def _chunk(product: Product, machine: Machine) -> int:
    """Vectors of a task: no more than L1 holds the sums of, and as many for each thread."""
    lanes = machine.lanes(product.dtype)
    most = max(_SUMS // int(product.rows) // lanes, 1)
    if not isinstance(product.columns, tirx.IntImm):
        return max(most // 4, 1)
    vectors = -(-int(product.columns) // lanes)
    tasks = -(-vectors // (most * machine.cores)) * machine.cores
    return -(-vectors // max(tasks, 1))  # there may be no columns


def shared(
    extents: Sequence[tirx.Expr],
    loops: Sequence[tirx.Var],
    body: tirx.Stmt,
    kind: int = tirx.ForKind.PARALLEL,
) -> tirx.Stmt:
    """``body`` for all values of ``loops`` below ``extents``, in one parallel loop."""
    if not loops:
        return body
    task = index = var("task")
    count = None
    values = {}
    for extent, own in reversed(list(zip(extents, loops, strict=True))):
        extent = extent.astype("int64")
        first = own.same_as(loops[0])
        values[own] = index if first else index % extent
        index = index // extent
        count = extent if count is None else count * extent
    return loop(task, count, substituted(body, values), kind)
