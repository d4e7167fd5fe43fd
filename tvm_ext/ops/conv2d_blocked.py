"""Convolution over 1 to 3 spatial axes in the blocked layout NC..[x]c with packed weights.

A blocked tensor is ``[N, C/b, H, W, b]`` (or has one spatial axis less or more): ``b`` channels
side by side fill a vector register, or a part of it. Weights of a dense convolution are packed
``[OC/(t*v), IC/b', KH, KW, b', t*v]`` so that a register tile of ``t`` vectors of ``v`` output
channels reads them in one stream.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_equal

from .elementwise import dtype_of, float_compute
from .flat_index import flatten_index, unflatten_index

__all__ = [
    "IN_REGISTERS",
    "block",
    "block_channels_last",
    "conv2d_blocked",
    "conv2d_flat",
    "convolution",
    "depthwise_conv2d_blocked",
    "gated_conv2d_blocked",
    "gated_conv2d_flat",
    "pack_channels",
    "pack_depthwise_weight",
    "pack_weight",
    "packed_depthwise_weight",
    "packed_weight",
    "padded",
    "reblock",
    "unblock",
    "unblock_channels_last",
    "unpack_weight",
]


def pack_channels(array: np.ndarray, lanes: int) -> np.ndarray:
    """``[N, C, H, W]`` -> ``[N, C/lanes, H, W, lanes]``, whatever the spatial axes."""
    n, c, *image = array.shape
    return np.ascontiguousarray(np.moveaxis(array.reshape(n, c // lanes, lanes, *image), 2, -1))


def pack_weight(weight: np.ndarray, in_lanes: int, out_lanes: int, vectors: int) -> np.ndarray:
    """``[OC, IC, KH, KW]`` -> ``[OC/tile, IC/in_lanes, KH, KW, in_lanes, tile]``.

    ``tile = vectors * out_lanes``; output channels are padded with zeros to a multiple of it.
    """
    oc, ic, *window = weight.shape
    tile = vectors * out_lanes
    padded = np.zeros((-(-oc // tile) * tile, ic, *window), weight.dtype)
    padded[:oc] = weight
    split = padded.reshape(-1, tile, ic // in_lanes, in_lanes, *window)
    return np.ascontiguousarray(np.moveaxis(split, (3, 1), (-2, -1)))


def unpack_weight(packed: np.ndarray) -> np.ndarray:
    """What :func:`pack_weight` packed, with the output channels that it added."""
    tiles, ic_blocks, *window, in_lanes, tile = packed.shape
    channels = np.moveaxis(packed, (-1, -2), (1, 3))
    return np.ascontiguousarray(channels.reshape(tiles * tile, ic_blocks * in_lanes, *window))


#: The attribute of what is made of the image, or its pads, for each tap, and never stored.
IN_REGISTERS = "in_registers"


def pack_depthwise_weight(weight: np.ndarray, lanes: int) -> np.ndarray:
    """``[C, 1, KH, KW]`` -> ``[C/lanes, KH, KW, lanes]``."""
    c, _, *window = weight.shape
    return np.ascontiguousarray(np.moveaxis(weight.reshape(c // lanes, lanes, *window), 1, -1))


def packed_weight(weight: te.Tensor, in_lanes: int, out_lanes: int, vectors: int) -> te.Tensor:
    """:func:`pack_weight` of weights that are known at run time only."""
    oc, ic, *window = (int(d) for d in weight.shape)
    tile = vectors * out_lanes

    def element(o, i, *at):
        *taps, inner, lane = at
        filter, channel = o * tile + lane, i * in_lanes + inner
        if oc % tile == 0:
            return weight(filter, channel, *taps)
        inside = weight(tirx.min(filter, oc - 1), channel, *taps)
        return tirx.Select(filter < oc, inside, tirx.const(0, weight.dtype))

    shape = (-(-oc // tile), ic // in_lanes, *window, in_lanes, tile)
    return te.compute(shape, element, "packed")


def packed_depthwise_weight(weight: te.Tensor, lanes: int) -> te.Tensor:
    """:func:`pack_depthwise_weight` of weights that are known at run time only."""
    channels, _, *window = (int(d) for d in weight.shape)
    return te.compute(
        (channels // lanes, *window, lanes),
        lambda o, *at: weight(o * lanes + at[-1], 0, *at[:-1]),
        "packed",
    )


def block(x: te.Tensor, lanes: int, times: int = 1) -> te.Tensor:
    """``x[N, C, H, W]`` -> ``[N, C*times/lanes, H, W, lanes]``, each channel ``times`` in a row."""
    n, c, *image = x.shape
    return te.compute(
        (n, c * times // lanes, *image, lanes),
        lambda n, o, *at: x(n, (o * lanes + at[-1]) // times, *at[:-1]),
        "block",
    )


def unblock(x: te.Tensor, channels: int) -> te.Tensor:
    """``x[N, C/b, H, W, b]`` -> ``[N, channels, H, W]``; padded channels are dropped."""
    n, _, *image, lanes = x.shape
    return te.compute(
        (n, channels, *image), lambda n, c, *at: x(n, c // lanes, *at, c % lanes), "unblock"
    )


def reblock(x: te.Tensor, lanes: int) -> te.Tensor:
    """``x[N, C/b, H, W, b]`` as blocks of ``lanes``, of which one divides the other.

    Blocks are not yet joined, or parted, but lie as they shall: ``[N, C/lanes, H, W, lanes/b, b]``,
    or ``[N, C/b, b/lanes, H, W, lanes]``.
    """
    n, blocks, *image, own = x.shape
    if int(own) < lanes:
        parts = lanes // int(own)
        return te.compute(
            (n, blocks // parts, *image, parts, own),
            lambda n, o, *at: x(n, o * parts + at[-2], *at[:-2], at[-1]),
            "reblock",
        )
    return te.compute(
        (n, blocks, int(own) // lanes, *image, lanes),
        lambda n, o, part, *at: x(n, o, *at[:-1], part * lanes + at[-1]),
        "reblock",
    )


def block_channels_last(x: te.Tensor, image: Sequence[int], lanes: int) -> te.Tensor:
    """``x[N, H, W, C]`` or ``x[N, H*W, C]`` -> ``[N, C/lanes, H, W, lanes]``; ``image`` is H, W."""
    n, *pixels, c = x.shape

    def element(n, o, *at):
        *place, lane = at
        place = place if len(pixels) == len(image) else [flatten_index(place, image)]
        return x(n, *place, o * lanes + lane)

    return te.compute((n, c // lanes, *image, lanes), element, "block")


def unblock_channels_last(x: te.Tensor, flat: bool) -> te.Tensor:
    """``x[N, C/b, H, W, b]`` -> ``[N, H, W, C]``; ``flat``: ``[N, H*W, C]``."""
    n, blocks, *image, lanes = x.shape

    def element(n, *at):
        *place, c = at
        place = unflatten_index(place[0], image) if flat else place
        return x(n, c // lanes, *place, c % lanes)

    pixels = [prod(image[1:], start=image[0])] if flat else image
    return te.compute((n, *pixels, blocks * lanes), element, "unblock")


def padded(
    x: te.Tensor, before: Sequence[int], extents: Sequence[int], value: tirx.Expr | None = None
) -> te.Tensor:
    """``x[N, C/b, H, W, b]`` with ``value``, by default zeros, around H and W.

    ``before``: rows above and columns to the left; ``extents``: height and width of the result.
    """
    n, o, *image, lanes = map(_plain, x.shape)
    if not any(before) and all(map(_equal, image, extents)):
        return x
    around = tirx.const(0, x.dtype) if value is None else value

    def inside(n, o, *at):
        *place, lane = at
        within = [
            test
            for i, begin, size in zip(place, before, image, strict=True)
            for test in (i >= begin, i < size + begin)
        ]
        source = (i - begin for i, begin in zip(place, before, strict=True))
        return tirx.if_then_else(tirx.all(*within), x(n, o, *source, lane), around)

    return te.compute((n, o, *extents, lanes), inside, "padded")


def _extent(size: int | tirx.Expr, kernel: int, stride: int, dilation: int) -> int | tirx.Expr:
    return _plain((_plain(size) - (kernel - 1) * dilation - 1) // stride + 1)


def _plain(extent: int | tirx.Expr) -> int | tirx.Expr:
    """A number where ``extent`` is one, else its simplest formula."""
    simple = extent if isinstance(extent, int) else Analyzer().simplify(extent)
    return int(simple) if isinstance(simple, int | tirx.IntImm) else simple


def _equal(a: int | tirx.Expr, b: int | tirx.Expr) -> bool:
    return a == b if isinstance(a, int) and isinstance(b, int) else structural_equal(a, b)


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
    *,
    word: Callable[[Callable[[tirx.Expr], tirx.Expr], tirx.Expr], tirx.Expr] | None = None,
    vector: int | None = None,
    blocks: int | None = None,
    around: tirx.Expr | None = None,
) -> te.Tensor:
    """Convolve ``x[N, IC/b, H, W, b]`` with a packed ``weight`` into ``[N, OC/out_lanes, ...]``.

    ``columns`` neighbouring pixels share a register tile. With ``groups`` > 1 each group holds
    whole vectors of input and output channels. float16 and bfloat16 give float32. ``product``, of
    an element of ``x`` and one of ``weight``, is what is summed; ``word``, of the elements of a
    block and a number, may stand in the place of the former. ``vector`` channels, several blocks of
    the result, are summed side by side; of those that there are then, ``blocks`` are written. By
    default one block and all. Pads are ``around``, by default 0.
    """
    tiles, ic_blocks, *window, in_lanes, tile = (int(d) for d in weight.shape)
    vector = vector or out_lanes
    vectors = tile // vector
    oc_vectors = tiles * vectors
    vectors_per_group = oc_vectors // groups
    ro, ri = te.reduce_axis((0, ic_blocks), "ro"), te.reduce_axis((0, in_lanes), "ri")

    def term(pixel, o, lane, *taps):
        group = (o // vectors_per_group) * ic_blocks if groups > 1 else 0
        part = weight(o // vectors, ro, *taps, ri, (o % vectors) * vector + lane)
        own = partial(pixel, group + ro)
        element = own(ri) if word is None else word(own, ri)
        return _product(element, part, x) if product is None else product(element, part)

    return convolution(
        x, window, oc_vectors, vector, columns, strides, pads, dilations, term, (ro,), (ri,),
        around, lanes=out_lanes, blocks=blocks,
    )  # fmt: skip


def conv2d_flat(
    x: te.Tensor, weight: te.Tensor, *geometry: Any, steps: Sequence[int], **options: Any
) -> te.Tensor:
    """As :func:`conv2d_blocked`, with a window of one pixel: all rows of an image are one.

    The window of ``weight`` and the geometry have one axis then. Of each axis of ``x``, pixels are
    used that are ``steps`` apart.
    """
    return _flat(x, x, "flat", weight, geometry, steps, options)


def gated_conv2d_flat(
    x: te.Tensor,
    weight: te.Tensor,
    gate: te.Tensor,
    *geometry: Any,
    steps: Sequence[int],
    **options: Any,
) -> te.Tensor:
    """As :func:`conv2d_flat`, of ``x`` times ``gate[N, IC/b, 1, 1, b]``."""

    def element(n, o, i, j, lane):
        return x(n, o, i, j, lane) * gate(n, o, 0, 0, lane)

    return _flat(x, element, "gated", weight, geometry, steps, options)


def _flat(x, element, name, weight, geometry, steps, options) -> te.Tensor:
    """The convolution of ``element`` of each place in ``x``, pixels by their numbers."""
    n, channels, *whole, lanes = map(_plain, x.shape)
    image = [(size - 1) // step + 1 for size, step in zip(whole, steps, strict=True)]

    def pixel(n, o, at, lane):
        place = unflatten_index(at, image)
        return element(n, o, *(i * step for i, step in zip(place, steps, strict=True)), lane)

    pixels = te.compute((n, channels, prod(image), lanes), pixel, name)
    y = conv2d_blocked(pixels, weight, *geometry, **options)
    return te.compute(
        (n, y.shape[1], *image, y.shape[3]),
        lambda n, o, *at: y(n, o, flatten_index(at[:-1], image), at[-1]),
        "image",
    )


def gated_conv2d_blocked(
    x: te.Tensor, weight: te.Tensor, gate: te.Tensor, *geometry: Any, **options: Any
) -> te.Tensor:
    """As :func:`conv2d_blocked`, of ``x`` times ``gate[N, IC/b, 1, 1, b]``."""

    def element(n, o, i, j, lane):
        return x(n, o, i, j, lane) * gate(n, o, 0, 0, lane)

    return conv2d_blocked(te.compute(x.shape, element, "gated"), weight, *geometry, **options)


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
    blocks, *window, lanes = (int(d) for d in weight.shape)

    def term(pixel, o, lane, *taps):
        return _product(pixel(o, lane), weight(o, *taps, lane), x)

    return convolution(x, window, blocks, lanes, columns, strides, pads, dilations, term)


def _product(a: te.TensorSlice, b: te.TensorSlice, x: te.Tensor) -> tirx.Expr:
    """``a * b`` of elements of the type of ``x``, in the type that products are summed in."""
    wide = float_compute(dtype_of(x))
    return a * b if wide == dtype_of(x) else a.astype(wide) * b.astype(wide)


def convolution(
    x, kernel, oc_vectors, vector, columns, strides, pads, dilations, term, outer=(), inner=(),
    around=None, lanes=None, blocks=None,
):  # fmt: skip
    """Sum ``term`` over the window and the axes given, in tiles of ``columns``, then untile.

    ``term(pixel, vector, lane, *taps)``; ``around`` is the value of pads, 0 by default.
    Columns past the end repeat the last one and are never written: no tile needs a tail. Of
    symbolic rows or columns there are no tiles: those of the schedule are of several widths. The
    result is in blocks of ``lanes``, which divide the ``vector`` of channels, and has ``blocks``.
    """
    lanes = lanes or vector
    parts = vector // lanes
    n, _, *image, _ = map(_plain, x.shape)
    before, after = pads[: len(image)], pads[len(image) :]
    source = padded(x, before, [sum(d) for d in zip(before, image, after, strict=True)], around)
    geometry = zip(source.shape[2:-1], kernel, strides, dilations, strict=True)
    *rows, width = (_extent(*axis) for axis in geometry)
    taps = [te.reduce_axis((0, size), name) for size, name in zip(kernel, _TAPS, strict=False)]
    tiled_rows = all(isinstance(size, int) for size in (*rows, width))

    def product(n, o, *at):
        *place, column, lane = at
        if tiled_rows:
            *place, tile = place
            column = tile * columns + column
            if width % columns:
                column = tirx.min(column, width - 1)
        where = [
            i * stride + tap * dilation
            for i, stride, tap, dilation in zip(
                (*place, column), strides, taps, dilations, strict=True
            )
        ]

        def pixel(channel_block, channel_lane):
            return source(n, channel_block, *where, channel_lane)

        return te.sum(term(pixel, o, lane, *taps), axis=[*outer, *taps, *inner])

    across = (-(-width // columns), columns) if tiled_rows else (width,)
    tiles = (n, oc_vectors, *rows, *across, vector)
    attrs = {}
    # Schedules leave out taps that see zeros alone.
    if source is not x and around is None:
        if all(isinstance(size, int) for size in image):
            attrs["padded"] = [*zip(image, before, strides, dilations, strict=True)]
        else:
            attrs["pads"] = [*zip(before, after, strides, dilations, strict=True)]
    tiled = te.compute(tiles, product, "convolution", attrs=attrs)

    def element(n, o, *at):
        *place, j, lane = at
        if parts > 1:
            o, lane = o // parts, o % parts * lanes + lane
        across = (j // columns, j % columns) if tiled_rows else (j,)
        return tiled(n, o, *place, *across, lane)

    blocks = oc_vectors * parts if blocks is None else blocks
    return te.compute((n, blocks, *rows, width, lanes), element, "untiled")


_TAPS = ("r0", "r1", "r2")
