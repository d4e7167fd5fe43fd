"""Products and convolutions of bfloat16 in the tiles that AMX multiplies.

Words are pairs of bfloat16 as in :mod:`tvm_ext.ops.bfloat16_pairs`: which two neighbours of the
reduction share one is free.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
from tvm import te, tirx

from .bfloat16_pairs import channel_pairs, dot, pair, pair_rows, pairs
from .conv2d_blocked import padded
from .flat_index import flatten_index, unflatten_index
from .matmul_packed import pack_columns

__all__ = [
    "COLUMNS",
    "TILE",
    "conv2d_tiles",
    "matmul_tiles",
    "row_tiles",
    "tile_filters",
    "tile_weight",
]

#: Rows of a tile, and its words in a row.
TILE = 16

#: Columns of a panel of weights: two tiles.
COLUMNS = 2 * TILE


def _words(k: int) -> int:
    """Words of ``k`` elements, in whole tiles."""
    return -(-k // (2 * TILE)) * TILE


def tile_weight(weight: np.ndarray) -> np.ndarray:
    """``[K, N]`` -> int32 ``[ceil(N/32), words, 32]``, padded with zeros."""
    k, n = weight.shape
    padded = np.zeros((2 * _words(k), n), weight.dtype)
    padded[:k] = weight
    return pack_columns(pair_rows(padded), COLUMNS)


def row_tiles(x: te.Tensor) -> te.Tensor:
    """``x[..., K]`` -> int32 ``[ceil(rows/16), words/16, 16, 16]``; 0 behind K, the last row again
    behind the last."""
    *leading, depth = x.shape
    k = int(depth)
    count, half = prod(leading), _words(k)

    def element(row, column):
        value = x[(*unflatten_index(row, leading), tirx.min(column, k - 1))].astype("float32")
        return tirx.if_then_else(column < k, value, tirx.const(0, "float32"))

    def word(panel, step, row, column):
        place, at = tirx.min(panel * TILE + row, count - 1), step * TILE + column
        return pair(element(place, at), element(place, at + half))

    panels = (count + (TILE - 1)) // TILE
    return te.compute((panels, half // TILE, TILE, TILE), word, "row_tiles")


def matmul_tiles(x: te.Tensor, weight: te.Tensor, columns: int) -> te.Tensor:
    """Float ``x[..., K]`` rounded to bfloat16 times what :func:`tile_weight` gives ->
    ``[..., columns]``, float32. Other dims than K may be symbolic."""
    *leading, _ = x.shape
    count, words = prod(leading), row_tiles(x)
    panels, depth, tile = (int(d) for d in weight.shape)
    rk = te.reduce_axis((0, depth), "rk")

    def term(row, panel, column):
        left = words[row // TILE, rk // TILE, row % TILE, rk % TILE]
        return te.sum(dot(left, weight[panel, rk, column]), axis=rk)

    product = te.compute((count, panels, tile), term, "matmul")

    def element(*index):
        *outer, column = index
        return product[flatten_index(outer, leading), column // tile, column % tile]

    return te.compute((*leading, tirx.const(columns, "int64")), element, "product")


def tile_filters(weight: np.ndarray) -> np.ndarray:
    """``[OC, IC, KH, KW]`` -> int32 ``[ceil(OC/32), ceil(IC/32), KH, KW, 16, 32]``.

    A word has the channels c and c + 16 of 32; padded with zeros.
    """
    oc, ic, *window = weight.shape
    panels, blocks = -(-oc // COLUMNS), -(-ic // COLUMNS)
    whole = np.zeros((panels * COLUMNS, blocks * COLUMNS, *window), weight.dtype)
    whole[:oc, :ic] = weight
    split = whole.reshape(panels, COLUMNS, blocks, 2, TILE, *window)
    split = np.moveaxis(split, (4, 1), (-2, -1))  # panel, block, half, window, channel, column
    return np.ascontiguousarray(pairs(split[:, :, 0], split[:, :, 1]))


def _channel_tiles(x: te.Tensor) -> te.Tensor:
    """``x[N, C/b, H, W, b]`` -> int32 ``[N, ceil(C/32), H, W, 16]``, 0 behind C."""
    n, *blocked = x.shape
    blocks, h, w, lanes = map(int, blocked)
    if lanes == TILE and blocks % 2 == 0:
        return channel_pairs(x, "blocks")
    count = blocks * lanes

    def element(n, channel, i, j):
        place = tirx.min(channel, count - 1)
        value = x[n, place // lanes, i, j, place % lanes].astype("float32")
        return tirx.if_then_else(channel < count, value, tirx.const(0, "float32"))

    def word(n, o, i, j, lane):
        first = o * COLUMNS + lane
        return pair(element(n, first, i, j), element(n, first + TILE, i, j))

    return te.compute((n, -(-count // COLUMNS), h, w, TILE), word, "channel_tiles")


def conv2d_tiles(
    x: te.Tensor,
    weight: te.Tensor,
    out_lanes: int,
    filters: int,
    groups: int,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> te.Tensor:
    """Convolve ``x[N, IC/b, H, W, b]``, rounded to bfloat16, with what :func:`tile_filters` gives.

    The result is float32, ``[N, ceil(filters/out_lanes), .., out_lanes]``. Of several ``groups``,
    each has whole panels of filters and whole tiles of channels.
    """
    panels, blocks, *window, _, columns = (int(d) for d in weight.shape)
    n, _, *size, _ = x.shape
    h, w = map(int, size)
    before, extents = pads[:2], [h + pads[0] + pads[2], w + pads[1] + pads[3]]
    source = padded(_channel_tiles(x), before, extents)
    geometry = zip(extents, window, strides, dilations, strict=True)
    image = [(size - (taps - 1) * apart - 1) // step + 1 for size, taps, step, apart in geometry]
    own = panels // groups
    axes = zip((blocks, *window, TILE), ("block", "row", "column", "word"), strict=True)
    block, *taps, step = (te.reduce_axis((0, size), name) for size, name in axes)

    def term(n, panel, i, j, column):
        where = [
            at * stride + tap * dilation
            for at, stride, tap, dilation in zip((i, j), strides, taps, dilations, strict=True)
        ]
        first = panel // own * blocks if groups > 1 else 0
        left, right = (
            source(n, first + block, *where, step),
            weight(panel, block, *taps, step, column),
        )
        return te.sum(dot(left, right), axis=[block, *taps, step])

    attrs = {"tiles": [*strides, *dilations]}
    product = te.compute((n, panels, *image, columns), term, "convolution", attrs=attrs)
    parts = columns // out_lanes

    def element(n, o, i, j, lane):
        return product[n, o // parts, i, j, o % parts * out_lanes + lane]

    return te.compute((n, -(-filters // out_lanes), *image, out_lanes), element, "untiled")
