"""Matrix product of rows, symbolically many, or many, or no multiple of a tile, and packed weights.

Rows go in register tiles of a fixed height, what is left over in lower ones, down to one row: a
decoder's step is a product of a matrix and a vector.

Before: ``product[row, n, c] += x[row, k] * w[n, k, c];  y[b, t, j] = f(product[b * T + t, ..])``
After::

    for n in T.parallel(N):                    # panels of weights
        for r in range(rows // 8):             # whole tiles; then for 4, 2 and 1 rows
            for k in range(K): acc[8, c] += x[8 * r + (0..7), k] * w[n, k, c]
            y[8 * r + (0..7), n * C + c] = f(acc)
"""

from __future__ import annotations

from functools import partial
from math import prod

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl

from ..machine import Machine
from ..statements import substituted, with_value
from .access import Walk
from .contraction import axis_kinds, blocks_of, divisors
from .loops import CHEAP, others_inlined
from .prefetch import is_cold, panel_behind
from .register_tiles import (
    RegisterTiles,
    halves,
    int64,
    loop,
    parts,
    same,
    scheduled,
    sequence,
    var,
)

__all__ = [
    "MatmulRows",
    "element_of",
    "is_flat",
    "shares_panels",
    "term_of",
    "tile_rows",
]


# As tvm_ext.ops.integer_dots has it: a product that an instruction of its own adds.
_PAIR_DOT = "tirx.tvm_ext.integer_pair_dot"


class MatmulRows(dl.base.ScheduleRule):
    """Accumulate ``[rows, panels, columns]`` over one reduction axis, epilogue; any rows.

    float32[1, 128, 768] times [768, 3072], tanh, two Zen 5 cores: 2.3 ms (onnxruntime 1.9 ms; one
    loop nest per block 9.4 ms).
    """

    def apply(self, func, target, _tunable):
        found = blocks_of(func)
        if found is None:
            return None
        sch, blocks = found
        kinds = [axis_kinds(sch.get(block)) for block in blocks]
        at = next((k for k, kind in enumerate(kinds) if kind == "SSSR"), None)
        if at is None or at + 1 == len(kinds) or not _is_panels(sch.get(blocks[at])):
            return None
        if any(set(kind) - {"S"} for k, kind in enumerate(kinds) if k != at):
            return None
        kept = others_inlined(sch, blocks, at)
        if kept is None:
            return None
        product, output = kept
        if not is_flat(product, output):
            return None
        return scheduled(sch.mod["main"], _loops(product, output, Machine.of(target)))


def tile_rows(machine: Machine, vectors: int, held: int = 0) -> int:
    """The most rows of so many vectors whose sums stay in registers.

    ``held``: registers that products take, before they are added.
    """
    room = machine.registers - machine.registers // 16 - 1 - held
    return min(14, max(1, (room - vectors) // vectors))


def shares_panels(panels: int, machine: Machine) -> bool:
    """Whether threads share the panels of weights evenly; else each shares the rows of a panel."""
    return panels % machine.cores == 0 or panels >= 4 * machine.cores


def term_of(product: SBlock) -> ir.Expr:
    """What a step of the reduction adds."""
    (region,) = product.writes
    total = product.body.value
    first = total.a
    own = isinstance(first, ir.TensorLoad) and first.source.same_as(region.source)
    return total.b if own else total.a


def _is_panels(product: SBlock) -> bool:
    _, *others = (axis.dom.extent for axis in product.iter_vars)
    return all(isinstance(extent, tirx.IntImm) for extent in others) and len(product.reads) == 2


def is_flat(product: SBlock, output: SBlock) -> bool:
    """Whether the result's elements are the product's, row by row."""
    *leading, column = output.iter_vars
    extents = [axis.dom.extent for axis in leading]
    rows, _, columns, _ = (axis.dom.extent for axis in product.iter_vars)
    loads: list[ir.TensorLoad] = []
    if not isinstance(output.body, tirx.BufferStore) or not leading:
        return False
    buffer = product.writes[0].source

    def note(load: ir.TensorLoad) -> None:
        if load.source.same_as(buffer):
            loads.append(load)

    tvm_ffi.structural_walk(output.body.value, (ir.TensorLoad, note))
    flat = int64(0)
    for axis, extent in zip(leading, extents, strict=True):
        flat = flat * extent + axis.var
    wanted = [flat, column.var // columns, column.var % columns]
    return (
        isinstance(column.dom.extent, tirx.IntImm)
        and bool(loads)
        and same(prod(extents[1:], start=extents[0]), rows)
        and all(all(map(same, load.indices, wanted)) for load in loads)
    )


def _loops(product: SBlock, output: SBlock, machine: Machine) -> tirx.Stmt:
    """The whole kernel: threads share panels, or rows where panels are few."""
    rows, *extents = (axis.dom.extent for axis in product.iter_vars)
    panels, columns, depth = map(int, extents)
    buffer = product.writes[0].source
    dtype = str(buffer.ty.dtype.dtype)
    panel, width = var("panel"), int(output.iter_vars[-1].dom.extent)
    factors = term_of(product)

    def term(row, column, step):
        axes = (axis.var for axis in product.iter_vars)
        place = panel, column - panel * columns
        return substituted(factors, dict(zip(axes, (row, *place, step), strict=True)))

    def store(value, row, column):
        return element_of(output, buffer, value, row, column)

    tiles = RegisterTiles(
        dtype,
        depth,
        term,
        store,
        costly=Walk(output).cost > CHEAP,
        width=width if panels * columns != width else None,
    )
    by_panel = shares_panels(panels, machine)
    kinds = [tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL]
    lanes = divisors(columns, machine.lanes(dtype))[-1]
    held = isinstance(factors, ir.Call) and factors.op.name == _PAIR_DOT
    height = tile_rows(machine, columns // lanes, held)
    weights = _weights(product)
    # What follows the last panel of a thread is in vain.
    cold = is_cold(weights) and panels >= 4 * machine.cores
    nest = []
    for size, first, count in parts(rows, halves(height)):
        turn = var("turn")
        ahead = partial(panel_behind, weights, panel, turn) if cold and size == height else None
        body = tiles.tile(first + turn * size, size, panel * columns, columns, lanes, ahead)
        nest.append(loop(turn, count, body, kinds[not by_panel and size == height]))
    return loop(panel, panels, sequence(nest), kinds[by_panel])


def _weights(product: SBlock) -> tirx.Var:
    """The packed operand of ``product``: the one that is read by panels."""
    panel = product.iter_vars[1].var
    loads: list[tirx.Var] = []

    def note(load: ir.TensorLoad) -> None:
        if any(index.same_as(panel) for index in load.indices):
            loads.append(load.source)

    tvm_ffi.structural_walk(term_of(product), (ir.TensorLoad, note))
    return loads[0]


def element_of(output: SBlock, buffer: tirx.Var, value, row, column) -> tirx.Stmt:
    """The store of one element of the result, whose sum is ``value``."""
    *leading, last = output.iter_vars
    values = {last.var: column}
    for axis in reversed(leading[1:]):
        values[axis.var] = row % axis.dom.extent
        row = row // axis.dom.extent
    values[leading[0].var] = row

    whole = with_value(output.body.value, buffer, value)
    store = tirx.BufferStore(output.body.buffer, whole, output.body.indices)
    return substituted(store, values)
