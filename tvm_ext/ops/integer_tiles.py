"""Products and convolutions of 8-bit integers in the tiles that AMX multiplies.

Words are four bytes as in :mod:`tvm_ext.ops.integer_dots`: unsigned ones of activations, signed
ones of weights.
"""

from math import gcd
from typing import Any

import numpy as np
from tvm import te, tirx

from .elementwise import dtype_of
from .integer_dots import BYTES, dot, joined, pack_words, repeated, word_of
from .integer_products import SIGN, corrected, pad_value, subtrahend
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
    "conv2d_integer_line_tiles",
    "conv2d_integer_tiles",
    "integer_filters",
    "integer_weight",
    "matmul_integer_tiles",
]

_CHANNELS = TILE * BYTES


def integer_weight(weight: np.ndarray) -> np.ndarray:
    """int8 ``[K, N]`` -> int32 ``[ceil(N/32), words, 32]``, padded with zeros to whole tiles."""
    k, n = weight.shape
    padded = np.zeros((-(-k // _CHANNELS) * _CHANNELS, n), "int8")
    padded[:k] = weight
    return pack_words(padded, COLUMNS)


def matmul_integer_tiles(
    x: te.Tensor, weight: te.Tensor, sums: te.Tensor, zero: te.Tensor | None, columns: int
) -> te.Tensor:
    """``(x[..., K] - zero)`` times :func:`integer_weight` -> int32; dims before K may be symbolic.

    ``sums`` and ``zero`` are those of :func:`tvm_ext.ops.integer_dots.matmul_integer_rows`.
    """
    *leading, k = x.shape
    flips = dtype_of(x) == "int8"

    # Weights of words behind a row are 0: the last words that are made together stand for such.
    together = gcd(int(k) // BYTES, TILE) if int(k) % BYTES == 0 else TILE
    groups = -(-int(k) // (BYTES * together))

    def word(element, at):
        place = tirx.min(at // together, groups - 1) * together + at % together
        return word_of(lambda byte: element(tirx.min(byte, k - 1)), place, k, flips)

    words = row_words(x, int(weight.shape[1]), word, together)
    total = matmul_words(words, weight, leading, dot)

    def final(value, column):
        return value - subtrahend(sums[column], zero, x, unsigned=True)

    return columns_of(total, leading, columns, final)


def integer_filters(weight: np.ndarray) -> np.ndarray:
    """int8 ``[OC, IC, KH, KW]`` -> int32 ``[ceil(OC/32), ceil(IC/64), KH, KW, 16, 32]``."""
    oc, ic, *window = weight.shape
    panels, blocks = -(-oc // COLUMNS), -(-ic // _CHANNELS)
    whole = np.zeros((panels * COLUMNS, blocks * _CHANNELS, *window), "int8")
    whole[:oc, :ic] = weight
    split = whole.reshape(panels, COLUMNS, blocks, TILE, BYTES, *window)
    return joined(np.moveaxis(split, (3, 1, 4), (-3, -2, -1)))


def conv2d_integer_tiles(
    x: te.Tensor,
    weight: te.Tensor,
    sums: te.Tensor,
    zero: te.Tensor | None,
    around: int,
    *geometry: Any,
) -> te.Tensor:
    """Convolve ``x - zero``, ``[N, IC/b, H, W, b]``, with :func:`integer_filters` -> int32.

    The others are those of :func:`tvm_ext.ops.integer_products.conv2d_integer`, ``geometry`` that
    of :func:`tvm_ext.ops.tiles.conv2d_words`.
    """
    n, *blocked = x.shape
    blocks, h, w, lanes = map(int, blocked)
    count, flips = blocks * lanes, dtype_of(x) == "int8"

    def word(n, o, i, j, at):
        def element(channel):
            # Weights of channels behind the last are 0: a whole block stands for such.
            return x[n, tirx.min(channel // lanes, blocks - 1), i, j, channel % lanes]

        return word_of(element, o * TILE + at, None, flips)

    words = te.compute((n, -(-count // _CHANNELS), h, w, TILE), word, "channel_words")
    byte = pad_value(x, zero, around).astype("int32") + (SIGN if flips else 0)
    total = conv2d_words(words, weight, *geometry, product=dot, around=repeated(byte))
    return corrected(total, sums, zero, x, True)


def conv2d_integer_line_tiles(
    x: te.Tensor,
    weight: te.Tensor,
    sums: te.Tensor,
    zero: te.Tensor | None,
    around: int,
    *geometry: Any,
) -> te.Tensor:
    """:func:`conv2d_integer_tiles` of few channels, ``x[N, 1, H, W, C]``, of windows
    whose columns are channels; ``geometry``: how many columns, and that of
    :func:`tvm_ext.ops.tiles.conv2d_line_words`."""
    flips = dtype_of(x) == "int8"

    def word(element, at):
        return word_of(element, at, None, flips)  # weights of what is behind a window are 0

    outside = pad_value(x, zero, around)
    total = conv2d_line_words(x, weight, word, BYTES, *geometry, product=dot, around=outside)
    return corrected(total, sums, zero, x, True)
