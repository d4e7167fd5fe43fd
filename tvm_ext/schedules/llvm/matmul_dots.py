"""Product of few rows and a matrix whose columns lie one after the other in memory.

Before: ``y[b, m, n] += a[b, m, k] * v[b, n, k]``
After::

    for b, n in T.parallel(B, N // 16):
        for m in range(M // 4):                # whole tiles; then for 2 rows and 1
            partial[0..3, 0..15, lane] = sum(a[.., 16 * k + lane] * v[.., 16 * k + lane])
            y[b, 4 * m + (0..3), 16 * n + (0..15)] = f(sums along the lanes of partial)
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl

from ..machine import Machine
from .lane_folds import folded_rows, put
from .matmul_loops import Product, factors_of, is_few, product_of, shared, using
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

__all__ = ["MatmulDots"]

_ROWS, _COLUMNS = 4, 4  # in a tile


class MatmulDots(dl.base.ScheduleRule):
    """Few rows, a static depth of whole vectors; sums along the depth, in vector lanes.

    float32[8, 512] times the transpose of [512, 512], two Zen 5 cores: 16 us (onnxruntime 48 us; a
    transpose and a product of rows 53 us).
    """

    def apply(self, func, target, _tunable):
        lanes = Machine.of(target).lanes
        found = product_of(func, lambda block: _is_dots(block, lanes))
        if found is None:
            return None
        module, product = found
        return scheduled(module, _loops(product, lanes(product.dtype)))


def _is_dots(block: SBlock, lanes) -> bool:
    """Whether a step adds ``a[.., m, .., k] * v[.., n, .., k]``."""
    *_, row, column, step = block.iter_vars
    factors = factors_of(block)
    if (
        factors is None
        or not is_few(row.dom.extent)
        or not isinstance(step.dom.extent, tirx.IntImm)
    ):
        return False
    along = all(
        load.indices[-1].same_as(step.var)
        and not any(map(using(block, step.var), load.indices[:-1]))
        for load in factors
    )
    apart = not using(block, column.var)(factors[1].indices[-1])
    whole = int(step.dom.extent) % lanes(str(factors[0].ty.dtype)) == 0
    return along and apart and whole


def _loops(product: Product, lanes: int) -> tirx.Stmt:
    """The whole kernel: threads share groups of as many columns as a vector has lanes."""
    group = var("group")
    partial = tirx.decl_buffer((_ROWS * lanes, lanes), product.dtype, "partial", scope="local")
    nest = []
    for height, row, count in parts(product.rows, halves(_ROWS)):
        turn = var("turn")
        tile = _tile(product, partial, row + turn * height, height, group * lanes)
        nest.append(loop(turn, count, sequence(tile)))
    groups = (product.columns + (lanes - 1)) // lanes
    return shared([*product.batch, groups], [*product.loops, group], local(nest, [partial]))


def _tile(product: Product, partial: tirx.Var, row, rows: int, first) -> list[tirx.Stmt]:
    """``rows`` from ``row`` on by as many columns from ``first`` on as a vector has lanes.

    The sums along the lanes of column c of row r are in row ``r * lanes + c`` of ``partial``.
    """
    lanes, width, zero, number = int(partial.ty.shape[-1]), product.columns, int64(0), var("tile")
    columns = min(_COLUMNS, lanes)

    def term(pair, lane, step):
        place = tirx.min(first + number * columns + pair % columns, width - 1)
        return product.term(row + pair // columns, place, step * lanes + lane)

    def store(value, pair, lane):
        place = pair // columns * lanes + number * columns + pair % columns
        return put(partial, value, place, lane)

    tiles = RegisterTiles(product.dtype, int(product.depth) // lanes, term, store, costly=False)
    sums = loop(number, lanes // columns, tiles.tile(zero, rows * columns, zero, lanes, lanes))
    own, lane = var("row"), var("lane")

    def result(place):
        return product.store(partial[own * lanes, place], row + own, first + place)

    tail = loop(lane, lanes, tirx.IfThenElse(first + lane < width, result(lane), None))
    whole = lanewise(zero, lanes, result)
    results = loop(own, rows, tirx.IfThenElse(first + lanes <= width, whole, tail))
    folds = [fold for r in range(rows) for fold in folded_rows(partial, lanes, r * lanes)]
    return [sums, *folds, results]
