"""Batched matrix product of symbolic shape, right-hand side as it lies in memory.

Before: ``y[b, m, n] += a[b, m, k] * v[b, k, n]``, with any of the extents symbolic
After::

    for b in T.parallel(B):
        for n in range(N // 64):               # whole tiles; then vectors, parts of them, columns
            for m in range(M // 6):            # whole tiles; then for 4, 2 and 1 rows
                for k in range(K): acc[6, 64] += a[b, 6 * m + (0..5), k] * v[b, k, 64 * n + (0..63)]
                y[b, 6 * m + (0..5), 64 * n + (0..63)] = f(acc)
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl

from ..machine import Machine
from .access import Walk
from .contraction import axis_kinds, blocks_of, is_static
from .loops import CHEAP, attempt
from .matmul_rows import term_of, tile_rows
from .register_tiles import (
    RegisterTiles,
    halves,
    loop,
    parts,
    scheduled,
    sequence,
    substituted,
    var,
)

__all__ = ["MatmulLoops", "shared"]

_VECTORS = 4  # of columns, in a tile


class MatmulLoops(dl.base.ScheduleRule):
    """``[batch.., M, N]`` over one reduction axis, columns contiguous, epilogue; symbolic extents.

    What attention multiplies. No operand is packed: a decoder's step reads each element once.
    """

    def apply(self, func, target, _tunable):
        found = blocks_of(func)
        if found is None or is_static(func):
            return None
        sch, blocks = found
        kinds = [axis_kinds(sch.get(block)) for block in blocks]
        at = next((k for k, kind in enumerate(kinds) if "R" in kind), None)
        if at is None or any(set(kind) != {"S"} for k, kind in enumerate(kinds) if k != at):
            return None
        if (
            set(kinds[at][:-1]) != {"S"}
            or len(kinds[at]) < 3
            or not _is_product(sch.get(blocks[at]))
        ):
            return None
        for block in (*blocks[:at], *blocks[at + 1 : -1]):
            if not attempt(sch.compute_inline, block):
                return None
        product, output = sch.get(blocks[at]), sch.get(blocks[-1])
        if at + 1 < len(blocks) and not _is_pointwise(product, output):
            return None
        return scheduled(sch.mod["main"], _loops(product, output, Machine.of(target)))


def _is_product(block: SBlock) -> bool:
    """Whether a step adds ``a[.., m, .., k] * v[.., n]``."""
    *_, row, column, step = (axis.var for axis in block.iter_vars)
    if len(block.writes) != 1 or not isinstance(block.body, tirx.BufferStore):
        return False
    if not isinstance(block.body.value, tirx.Add):
        return False
    term = term_of(block)
    factors = [term.a, term.b] if isinstance(term, tirx.Mul) else []
    if len(factors) != 2 or not all(isinstance(f, ir.TensorLoad) for f in factors):
        return False
    if any(str(f.ty.dtype) not in ("float32", "float64") for f in factors):
        return False
    facts = Walk(block)
    place = {axis.var: k for k, axis in enumerate(block.iter_vars)}

    def uses(load: ir.TensorLoad, variable: tirx.Var) -> bool:
        return any(place[variable] in facts.used(index) for index in load.indices)

    left, right = factors if uses(factors[0], row) else factors[::-1]
    last = right.indices[-1]
    return (
        uses(left, row)
        and not uses(left, column)
        and not uses(right, row)
        and last.same_as(column)
        and not any(place[column] in facts.used(index) for index in right.indices[:-1])
        and block.body.indices[-1].same_as(column)
        and all(uses(load, step) for load in factors)
    )


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


def _loops(product: SBlock, output: SBlock, machine: Machine) -> tirx.Stmt:
    """The whole kernel: threads share the batch, or the rows where there is none."""
    *batch, row_axis, column_axis, step_axis = product.iter_vars
    loops = [var(axis.var.name) for axis in batch]
    fixed = {axis.var: own for axis, own in zip(batch, loops, strict=True)}
    region = product.writes[0].source
    dtype = str(region.ty.dtype.dtype)
    factors = term_of(product)

    def term(row, column, step):
        moving = {row_axis.var: row, column_axis.var: column, step_axis.var: step}
        return substituted(factors, fixed | moving)

    def store(value, row, column):
        if output.same_as(product):
            body = tirx.BufferStore(region, value, product.body.indices)
            return substituted(body, fixed | {row_axis.var: row, column_axis.var: column})
        places = [*loops, row, column]
        own = {axis.var: place for axis, place in zip(output.iter_vars, places, strict=True)}

        def load(node: ir.TensorLoad) -> ir.Expr:
            return value if node.source.same_as(region) else node

        final = tvm_ffi.structural_map(output.body.value, (ir.TensorLoad, load))
        return substituted(tirx.BufferStore(output.body.buffer, final, output.body.indices), own)

    costly = not output.same_as(product) and Walk(output).cost > CHEAP
    tiles = RegisterTiles(dtype, step_axis.dom.extent, term, store, costly)
    lanes = machine.lanes(dtype)
    height = min(tile_rows(machine, _VECTORS), 6)
    columns = dict.fromkeys([_VECTORS * lanes, lanes, max(lanes // 4, 1), 1])
    serial, parallel = tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL
    nest = []
    for width, column, panels in parts(column_axis.dom.extent, list(columns)):
        panel = var("panel")
        rows = []
        for size, row, count in parts(row_axis.dom.extent, halves(height)):
            turn = var("turn")
            first = row + turn * size, size, column + panel * width, width
            tile = tiles.tile(*first, min(width, lanes))
            kind = parallel if not batch and size == height else serial
            rows.append(loop(turn, count, tile, kind))
        nest.append(loop(panel, panels, sequence(rows)))
    body: tirx.Stmt = sequence(nest)
    return shared([axis.dom.extent for axis in batch], loops, body)


def shared(extents: Sequence[tirx.Expr], loops: Sequence[tirx.Var], body: tirx.Stmt) -> tirx.Stmt:
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
    return loop(task, count, substituted(body, values), tirx.ForKind.PARALLEL)
