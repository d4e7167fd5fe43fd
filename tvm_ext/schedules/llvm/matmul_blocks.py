"""Matrix product with weights of a few bits: sums of blocks, and the sum of these times scales.

Before: ``part[row, n, b, c] += x[row, k] * code(w[n, b, k, c])``,
``product[row, n, c] += part[row, n, b, c] * scale[n, b, c]``, ``y[.., j] = f(product[row, ..])``
After::

    for n in T.parallel(N):                    # panels of weights
        for r in range(rows // 8):             # whole tiles; then for 4, 2 and 1 rows
            for b in range(B):
                for k in range(K // B): part[8, c] += x[8 * r + (0..7), k] * code(w[n, b, k, c])
                sum[8, c] += part[8, c] * scale[n, b, c]
            y[8 * r + (0..7), n * C + c] = f(sum)
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl

from ..machine import Machine
from ..statements import substituted, with_value
from .access import Walk
from .contraction import axis_kinds, blocks_of, divisors
from .loops import CHEAP, others_inlined
from .matmul_rows import element_of, is_flat, term_of, tile_rows
from .register_tiles import (
    RegisterTiles,
    Results,
    each,
    halves,
    local,
    loop,
    parts,
    scheduled,
    sequence,
    var,
)

__all__ = ["MatmulBlocks"]

# Neighbours of the reduction that are unrolled: those of a word of 4 bits each.
_STEPS = 8
# Columns in a panel.
_WIDEST = 64


class MatmulBlocks(dl.base.ScheduleRule):
    """Two reductions, one of the other's sums, epilogue; any number of rows.

    float32[1, 2048], weights of 4 bits in blocks of 32, 52 MB of them, two Zen 5 cores: as long as
    it takes to read them.
    """

    def apply(self, func, target, _tunable):
        found = blocks_of(func)
        if found is None:
            return None
        sch, blocks = found
        kinds = [axis_kinds(sch.get(block)) for block in blocks]
        if "SSSSR" not in kinds:
            return None
        at = kinds.index("SSSSR")
        if kinds[at + 1 : at + 2] != ["SSSR"] or len(kinds) < at + 3:
            return None
        partial, product = (sch.get(block) for block in blocks[at : at + 2])
        if any(set(kind) - {"S"} for kind in (*kinds[:at], *kinds[at + 2 :])):
            return None
        if not _are_nested(partial, product):
            return None
        kept = others_inlined(sch, blocks, at, 2)
        if kept is None:
            return None
        partial, product, output = kept
        if not is_flat(product, output):
            return None
        return scheduled(sch.mod["main"], _loops(partial, product, output, Machine.of(target)))


def _are_nested(partial: SBlock, product: SBlock) -> bool:
    """Whether ``product`` sums what ``partial`` gives along its third axis."""
    inner = [axis.dom.extent for axis in partial.iter_vars[1:]]
    outer = [axis.dom.extent for axis in product.iter_vars[1:]]
    if not all(isinstance(extent, tirx.IntImm) for extent in (*inner, *outer)):
        return False
    panels, blocks, columns, _ = map(int, inner)
    source = partial.writes[0].source
    own = any(region.source.same_as(source) for region in product.reads)
    fits = columns <= _WIDEST and [int(extent) for extent in outer] == [panels, columns, blocks]
    return own and fits


def _loops(partial: SBlock, product: SBlock, output: SBlock, machine: Machine) -> tirx.Stmt:
    """The whole kernel; threads share panels."""
    rows = product.iter_vars[0].dom.extent
    panels, columns, blocks = (int(axis.dom.extent) for axis in product.iter_vars[1:])
    depth = int(partial.iter_vars[-1].dom.extent)
    dtype, of_blocks = (str(each.writes[0].source.ty.dtype.dtype) for each in (product, partial))
    panel, width = var("panel"), int(output.iter_vars[-1].dom.extent)
    factors, source = term_of(partial), partial.writes[0].source
    lanes = divisors(columns, machine.lanes(dtype))[-1]

    def term(row, column, block, step):
        axes = (axis.var for axis in partial.iter_vars)
        place = panel, block, column - panel * columns
        return substituted(factors, dict(zip(axes, (row, *place, step), strict=True)))

    def scaled(value, row, column, block):
        axes = (axis.var for axis in product.iter_vars)
        place = panel, column - panel * columns, block
        whole = with_value(term_of(product), source, value)
        return substituted(whole, dict(zip(axes, (row, *place), strict=True)))

    def store(value, row, column):
        return element_of(output, product.writes[0].source, value, row, column)

    tail = width if panels * columns != width else None
    results = Results(dtype, store, Walk(output).cost > CHEAP, tail)

    def tile(first, size: int) -> tirx.Stmt:
        block, start = var("block"), panel * columns
        sums = tirx.decl_buffer((size, columns), dtype, "total", scope="local")

        def add(value, row, column):
            at = [row - first, column - start]
            total = tirx.BufferLoad(sums, at) + scaled(value, row, column, block)
            return tirx.BufferStore(sums, total, at)

        def clear(number, place):
            return tirx.BufferStore(sums, tirx.const(0, dtype), [number, place])

        def of_block(row, column, step):
            return term(row, column, block, step)

        inner = RegisterTiles(of_blocks, depth, of_block, add, costly=False, steps=_STEPS)
        whole = loop(block, blocks, inner.tile(first, size, start, columns, lanes))
        stores = results.of(sums, first, start, lanes)
        return local([each(size, columns, lanes, clear), whole, *stores], [sums])

    nest = []
    for size, first, count in parts(rows, halves(tile_rows(machine, columns // lanes))):
        turn = var("turn")
        nest.append(loop(turn, count, tile(first + turn * size, size)))
    return loop(panel, panels, sequence(nest), tirx.ForKind.PARALLEL)
