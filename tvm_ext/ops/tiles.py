"""Sums of products of words in the tiles that AMX multiplies.

A tile has up to 16 rows of 16 words; a word holds as many neighbours of the reduction as an
instruction multiplies at a time.
"""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from tvm import te, tirx

from .conv2d_blocked import padded
from .flat_index import flatten_index, unflatten_index

__all__ = [
    "COLUMNS",
    "TILE",
    "columns_as_channels",
    "columns_of",
    "conv2d_line_words",
    "conv2d_words",
    "matmul_words",
    "row_words",
]

#: Rows of a tile, and its words in a row.
TILE = 16

#: Columns of a panel of weights: two tiles.
COLUMNS = 2 * TILE

Product = Callable[[tirx.Expr, tirx.Expr], tirx.Expr]


def row_words(
    x: te.Tensor, count: int, word: Callable[..., tirx.Expr], together: int = TILE
) -> te.Tensor:
    """``x[..., K]`` -> int32 ``[ceil(rows/16), count/16, 16, 16]``, the last row again behind it.

    ``word(element, k)`` is the ``k``-th of ``count`` words of a row, ``element`` of its elements;
    ``together`` neighbours are made alike.
    """
    *leading, _ = x.shape
    rows = prod(leading)

    def place(panel, step, row, column):
        outer = unflatten_index(tirx.min(panel * TILE + row, rows - 1), leading)
        return word(lambda at: x[(*outer, at)], step * TILE + column)

    panels = (rows + (TILE - 1)) // TILE
    attrs = {"together": together}
    return te.compute((panels, count // TILE, TILE, TILE), place, "row_tiles", attrs=attrs)


def matmul_words(
    words: te.Tensor, weight: te.Tensor, leading: Sequence, product: Product
) -> te.Tensor:
    """:func:`row_words` times ``weight[panels, words, 32]`` -> ``[rows, panels, 32]``.

    ``leading``: the dims of the rows.
    """
    panels, depth, tile = (int(d) for d in weight.shape)
    rk = te.reduce_axis((0, depth), "rk")

    def term(row, panel, column):
        left = words[row // TILE, rk // TILE, row % TILE, rk % TILE]
        return te.sum(product(left, weight[panel, rk, column]), axis=rk)

    return te.compute((prod(leading), panels, tile), term, "matmul")


def columns_of(
    total: te.Tensor,
    leading: Sequence,
    columns: int,
    final: Callable[[tirx.Expr, tirx.Expr], tirx.Expr] = lambda value, _: value,
) -> te.Tensor:
    """What :func:`matmul_words` gives as ``[..., columns]``; ``final`` of a sum and its column."""
    tile = int(total.shape[-1])

    def element(*index):
        *outer, column = index
        value = total[flatten_index(outer, leading), column // tile, column % tile]
        return final(value, column)

    return te.compute((*leading, tirx.const(columns, "int64")), element, "product")


def image_lines(
    x: te.Tensor, pads: Sequence[int], least: int, around: tirx.Expr | None = None
) -> te.Tensor:
    """``x[N, 1, H, W, C]``, with ``around``, by default 0, for pads, as ``[N, H, W * C]``.

    A line has ``least`` elements or more.
    """
    n, _, *image, channels = x.shape
    h, w, c = map(int, (*image, channels))
    first, last = pads[1] * c, (pads[1] + w) * c
    outside = tirx.const(0, x.dtype) if around is None else around

    def element(n, i, p):
        inside = tirx.all(i >= pads[0], i < pads[0] + h, p >= first, p < last)
        value = x[n, 0, i - pads[0], (p - first) // c, (p - first) % c]
        return tirx.if_then_else(inside, value, outside)

    shape = n, h + pads[0] + pads[2], max(last + pads[3] * c, least)
    return te.compute(shape, element, "image_lines", attrs={"lines": 1})


def columns_as_channels(weight: np.ndarray) -> np.ndarray:
    """``[OC, IC, KH, KW]`` -> ``[OC, KW * IC, KH, 1]``: what :func:`conv2d_line_words` multiplies,
    before it is packed."""
    moved = np.moveaxis(weight, 3, 1)
    return moved.reshape(len(moved), -1, weight.shape[2], 1)


def conv2d_line_words(
    x: te.Tensor,
    weight: te.Tensor,
    word: Callable[[Callable[[tirx.Expr], tirx.Expr], tirx.Expr], tirx.Expr],
    size: int,
    columns: int,
    out_lanes: int,
    filters: int,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    *,
    product: Product,
    around: tirx.Expr | None = None,
) -> te.Tensor:
    """:func:`conv2d_words` of ``x[N, 1, H, W, C]``: the channels of ``columns`` neighbours, which
    follow each other in a line of the image, are those of a tile.

    ``word(element, k)`` is the ``k``-th word of ``size`` elements, ``element`` one of those. The
    window of ``weight`` has one column; pixels of a line are not dilated.
    """
    n, _, _, across, channels = x.shape
    step, blocks = strides[1] * int(channels), int(weight.shape[1])
    width = (int(across) + pads[1] + pads[3] - columns) // strides[1] + 1
    least = (width - 1) * step + blocks * TILE * size
    lines = image_lines(x, pads, least, around)

    def place(n, o, i, j, lane):
        return word(lambda at: lines[n, i, j * step + at], o * TILE + lane)

    words = te.compute((n, blocks, lines.shape[1], width, TILE), place, "line_words")
    own = (strides[0], 1), (0, 0, 0, 0), (dilations[0], 1)
    return conv2d_words(words, weight, out_lanes, filters, 1, *own, product=product)


def conv2d_words(
    words: te.Tensor,
    weight: te.Tensor,
    out_lanes: int,
    filters: int,
    groups: int,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    *,
    product: Product,
    around: tirx.Expr | None = None,
) -> te.Tensor:
    """``words[N, blocks, H, W, 16]``, with ``around``, by default 0, for pads, convolved with
    ``weight[panels, blocks, KH, KW, 16, 32]`` -> ``[N, ceil(filters/out_lanes), .., out_lanes]``.

    Of several ``groups``, each has whole panels of filters and whole tiles of channels.
    """
    panels, blocks, *window, _, columns = (int(d) for d in weight.shape)
    n, _, h, w, _ = words.shape
    extents = [int(h) + pads[0] + pads[2], int(w) + pads[1] + pads[3]]
    source = padded(words, pads[:2], extents, around)
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
        left = source(n, first + block, *where, step)
        right = weight(panel, block, *taps, step, column)
        return te.sum(product(left, right), axis=[block, *taps, step])

    attrs = {"tiles": [*strides, *dilations]}
    total = te.compute((n, panels, *image, columns), term, "convolution", attrs=attrs)
    parts = columns // out_lanes

    def element(n, o, i, j, lane):
        return total[n, o // parts, i, j, o % parts * out_lanes + lane]

    return te.compute((n, -(-filters // out_lanes), *image, out_lanes), element, "untiled")
