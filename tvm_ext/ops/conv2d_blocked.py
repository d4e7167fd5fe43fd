"""2-D convolution in the blocked layout NCHW[x]c with packed weights.

A blocked tensor is ``[N, C/b, H, W, b]``: ``b`` channels side by side fill a vector register.
Weights of a dense convolution are packed ``[OC/(t*b), IC/b', KH, KW, b', t*b]`` so that a
register tile of ``t`` vectors of output channels reads them in one stream.
"""

from collections.abc import Callable, Sequence

import numpy as np
from tvm import te, tirx

from .elementwise import dtype_of, float_compute

__all__ = [
    "block",
    "conv2d_blocked",
    "convolution",
    "depthwise_conv2d_blocked",
    "pack_channels",
    "pack_depthwise_weight",
    "pack_weight",
    "padded",
    "unblock",
    "unpack_weight",
]


def pack_channels(array: np.ndarray, lanes: int) -> np.ndarray:
    """``[N, C, H, W]`` -> ``[N, C/lanes, H, W, lanes]``."""
    n, c, h, w = array.shape
    return np.ascontiguousarray(array.reshape(n, c // lanes, lanes, h, w).transpose(0, 1, 3, 4, 2))


def pack_weight(weight: np.ndarray, in_lanes: int, out_lanes: int, vectors: int) -> np.ndarray:
    """``[OC, IC, KH, KW]`` -> ``[OC/tile, IC/in_lanes, KH, KW, in_lanes, tile]``.

    ``tile = vectors * out_lanes``; output channels are padded with zeros to a multiple of it.
    """
    oc, ic, kh, kw = weight.shape
    tile = vectors * out_lanes
    padded = np.zeros((-(-oc // tile) * tile, ic, kh, kw), weight.dtype)
    padded[:oc] = weight
    split = padded.reshape(-1, tile, ic // in_lanes, in_lanes, kh, kw)
    return np.ascontiguousarray(split.transpose(0, 2, 4, 5, 3, 1))


def unpack_weight(packed: np.ndarray) -> np.ndarray:
    """What :func:`pack_weight` packed, with the output channels that it added."""
    tiles, ic_blocks, kh, kw, in_lanes, tile = packed.shape
    channels = packed.transpose(0, 5, 1, 4, 2, 3)
    return np.ascontiguousarray(channels.reshape(tiles * tile, ic_blocks * in_lanes, kh, kw))


def pack_depthwise_weight(weight: np.ndarray, lanes: int) -> np.ndarray:
    """``[C, 1, KH, KW]`` -> ``[C/lanes, KH, KW, lanes]``."""
    c, _, kh, kw = weight.shape
    return np.ascontiguousarray(weight.reshape(c // lanes, lanes, kh, kw).transpose(0, 2, 3, 1))


def block(x: te.Tensor, lanes: int) -> te.Tensor:
    """``x[N, C, H, W]`` -> ``[N, C/lanes, H, W, lanes]``."""
    n, c, h, w = x.shape
    return te.compute(
        (n, c // lanes, h, w, lanes), lambda n, o, h, w, i: x[n, o * lanes + i, h, w], "block"
    )


def unblock(x: te.Tensor, channels: int) -> te.Tensor:
    """``x[N, C/b, H, W, b]`` -> ``[N, channels, H, W]``; padded channels are dropped."""
    n, _, h, w, lanes = x.shape
    return te.compute(
        (n, channels, h, w), lambda n, c, h, w: x[n, c // lanes, h, w, c % lanes], "unblock"
    )


def padded(
    x: te.Tensor, before: Sequence[int], extents: Sequence[int], value: tirx.Expr | None = None
) -> te.Tensor:
    """``x[N, C/b, H, W, b]`` with ``value``, by default zeros, around H and W.

    ``before``: rows above and columns to the left; ``extents``: height and width of the result.
    """
    n, o, h, w, lanes = (int(d) for d in x.shape)
    top, left = before
    if not (top or left) and (h, w) == (*extents,):
        return x
    around = tirx.const(0, x.dtype) if value is None else value

    def inside(n, o, i, j, lane):
        within = tirx.all(i >= top, i < h + top, j >= left, j < w + left)
        return tirx.if_then_else(within, x[n, o, i - top, j - left, lane], around)

    return te.compute((n, o, *extents, lanes), inside, "padded")


def _extent(size: int, kernel: int, stride: int, dilation: int) -> int:
    return (int(size) - (kernel - 1) * dilation - 1) // stride + 1


def conv2d_blocked(
    x: te.Tensor,
    weight: te.Tensor,
    out_lanes: int,
    columns: int,
    groups: int,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    product: Callable[[tirx.Expr, tirx.Expr], tirx.Expr] | None = None,
) -> te.Tensor:
    """Convolve ``x[N, IC/b, H, W, b]`` with a packed ``weight`` into ``[N, OC/out_lanes, ...]``.

    ``columns`` neighbouring pixels share a register tile. With ``groups`` > 1 each group holds
    whole blocks of input and output channels. float16 and bfloat16 give float32. ``product``, of
    an element of ``x`` and one of ``weight``, is what is summed.
    """
    tiles, ic_blocks, kh, kw, in_lanes, tile = weight.shape
    vectors = tile // out_lanes
    oc_blocks = tiles * vectors
    blocks_per_group = oc_blocks // groups
    ro, ri = te.reduce_axis((0, ic_blocks), "ro"), te.reduce_axis((0, in_lanes), "ri")

    def term(pixel, o, lane, rh, rw):
        group = (o // blocks_per_group) * ic_blocks if groups > 1 else 0
        part = weight[o // vectors, ro, rh, rw, ri, (o % vectors) * out_lanes + lane]
        element = pixel(group + ro, ri)
        return _product(element, part, x) if product is None else product(element, part)

    return convolution(
        x, (kh, kw), oc_blocks, out_lanes, columns, strides, pads, dilations, term, (ro,), (ri,)
    )


def depthwise_conv2d_blocked(
    x: te.Tensor,
    weight: te.Tensor,
    columns: int,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> te.Tensor:
    """Convolve each channel of ``x[N, C/b, H, W, b]`` with its own ``weight[C/b, KH, KW, b]``.

    float16 and bfloat16 give float32.
    """
    blocks, kh, kw, lanes = weight.shape

    def term(pixel, o, lane, rh, rw):
        return _product(pixel(o, lane), weight[o, rh, rw, lane], x)

    return convolution(x, (kh, kw), blocks, lanes, columns, strides, pads, dilations, term)


def _product(a: te.TensorSlice, b: te.TensorSlice, x: te.Tensor) -> tirx.Expr:
    """``a * b`` of elements of the type of ``x``, in the type that products are summed in."""
    wide = float_compute(dtype_of(x))
    return a * b if wide == dtype_of(x) else a.astype(wide) * b.astype(wide)


def convolution(
    x, kernel, oc_blocks, lanes, columns, strides, pads, dilations, term, outer=(), inner=(),
    around=None,
):  # fmt: skip
    """Sum ``term`` over the window and the axes given, in tiles of ``columns``, then untile.

    ``term(pixel, block, lane, rh, rw)``; ``around`` is the value of pads, 0 by default.
    Columns past the end repeat the last one and are never written: no tile needs a tail.
    """
    top, left, bottom, right = pads
    rows, row = (int(d) for d in x.shape[2:4])
    source = padded(x, (top, left), (rows + top + bottom, row + left + right), around)
    n, _, h, w, _ = source.shape
    (sh, sw), (dh, dw), (kh, kw) = strides, dilations, kernel
    height, width = _extent(h, kh, sh, dh), _extent(w, kw, sw, dw)
    rh, rw = te.reduce_axis((0, kh), "rh"), te.reduce_axis((0, kw), "rw")

    def product(n, o, i, jo, ji, lane):
        column = jo * columns + ji
        if width % columns:
            column = tirx.min(column, width - 1)

        def pixel(channel_block, channel_lane):
            return source[n, channel_block, i * sh + rh * dh, column * sw + rw * dw, channel_lane]

        return te.sum(term(pixel, o, lane, rh, rw), axis=[*outer, rh, rw, *inner])

    tiles = (n, oc_blocks, height, -(-width // columns), columns, lanes)
    tiled = te.compute(tiles, product, "convolution")
    return te.compute(
        (n, oc_blocks, height, width, lanes),
        lambda n, o, i, j, lane: tiled[n, o, i, j // columns, j % columns, lane],
        "untiled",
    )
