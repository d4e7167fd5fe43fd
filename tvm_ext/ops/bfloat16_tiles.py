"""Products and convolutions of bfloat16 in the tiles that AMX multiplies.

Words are pairs of bfloat16 as in :mod:`tvm_ext.ops.bfloat16_pairs`: which two neighbours of the
reduction share one is free.
"""

from typing import Any

import numpy as np
from tvm import te, tirx

from .bfloat16_pairs import channel_pairs, dot, pair, pair_rows, pairs
from .matmul_packed import pack_columns
from .tiles import (
    COLUMNS,
    TILE,
    columns_of,
    conv2d_line_words,
    conv2d_words,
    matmul_words,
    row_words,
)

__all__ = [
    "conv2d_line_tiles",
    "conv2d_tiles",
    "matmul_tiles",
    "row_tiles",
    "tile_filters",
    "tile_weight",
]


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
    """``x[..., K]`` -> :func:`row_words` of pairs, 0 behind K."""
    k = int(x.shape[-1])
    half = _words(k)

    def word(element, at):
        return pair(_float(element, at, k), _float(element, at + half, k))

    return row_words(x, half, word)


def _float(element, at: tirx.Expr, count: int) -> tirx.Expr:
    value = element(tirx.min(at, count - 1)).astype("float32")
    return tirx.if_then_else(at < count, value, tirx.const(0, "float32"))


def matmul_tiles(x: te.Tensor, weight: te.Tensor, columns: int) -> te.Tensor:
    """Float ``x[..., K]`` rounded to bfloat16 times what :func:`tile_weight` gives ->
    ``[..., columns]``, float32. Other dims than K may be symbolic."""
    leading = x.shape[:-1]
    total = matmul_words(row_tiles(x), weight, leading, dot)
    return columns_of(total, leading, columns)


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

    def word(n, o, i, j, lane):
        def element(channel):
            def part(block):
                return x[n, block, i, j, channel % lanes]

            # Whether there is such a block has one answer for a vector of channels.
            return _float(part, channel // lanes, blocks)

        first = o * COLUMNS + lane
        return pair(element(first), element(first + TILE))

    return te.compute((n, -(-blocks * lanes // COLUMNS), h, w, TILE), word, "channel_tiles")


def conv2d_tiles(x: te.Tensor, weight: te.Tensor, *geometry: Any) -> te.Tensor:
    """Convolve ``x[N, IC/b, H, W, b]``, rounded to bfloat16, with what :func:`tile_filters` gives.

    The result is float32; ``geometry`` is that of :func:`tvm_ext.ops.tiles.conv2d_words`.
    """
    return conv2d_words(_channel_tiles(x), weight, *geometry, product=dot)


def conv2d_line_tiles(x: te.Tensor, weight: te.Tensor, columns: int, *geometry: Any) -> te.Tensor:
    """:func:`conv2d_tiles` of few channels, ``x[N, 1, H, W, C]``, of windows whose ``columns`` are
    channels; ``geometry`` is that of :func:`tvm_ext.ops.tiles.conv2d_line_words`."""
    count = columns * int(x.shape[-1])

    def word(element, at):
        def inside(k):
            value = element(k).astype("float32")
            return tirx.Select(k < count, value, tirx.const(0, "float32"))

        first = at // TILE * COLUMNS + at % TILE
        return pair(inside(first), inside(first + TILE))

    return conv2d_line_words(x, weight, word, 2, columns, *geometry, product=dot)
