"""Products of 8-bit integers, summed in int32, with packed constant weights.

``x`` has a zero point, which pads have, too. It is subtracted from the sum and not from each
element: ``sum((x - zero) * w) == sum(x * w) - zero * sum(w)``, and ``sum(w)`` is known. Groups of
``depth`` neighbours along the reduction lie side by side in the weights, so that one instruction
sums their products; ``depth`` 1 is for machines that have none.

Signed ``x`` is moved by 128 where ``unsigned`` is asked for, which such instructions may want.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
from tvm import te, tirx

from .conv2d_blocked import convolution
from .elementwise import dtype_of
from .flat_index import flatten_index, unflatten_index

__all__ = [
    "SIGN",
    "conv2d_integer",
    "corrected",
    "depthwise_conv2d_integer",
    "matmul_integer_packed",
    "pack_integer_columns",
    "pack_integer_weight",
    "pad_value",
    "subtrahend",
]

#: What signed numbers are moved by to become unsigned.
SIGN = 128


def pack_integer_columns(weight: np.ndarray, tile: int, depth: int) -> np.ndarray:
    """``[K, N]`` -> ``[ceil(N/tile), ceil(K/depth), tile, depth]``, padded with zeros."""
    k, n = weight.shape
    padded = np.zeros((-(-k // depth) * depth, -(-n // tile) * tile), weight.dtype)
    padded[:k, :n] = weight
    split = padded.reshape(-1, depth, padded.shape[1] // tile, tile)
    return np.ascontiguousarray(split.transpose(2, 0, 3, 1))


def pack_integer_weight(weight: np.ndarray, in_lanes: int, tile: int, depth: int) -> np.ndarray:
    """``[OC, IC, KH, KW]`` -> ``[OC/tile, IC/in_lanes, KH, KW, in_lanes/depth, tile, depth]``.

    Channels are padded with zeros to whole blocks.
    """
    oc, ic, kh, kw = weight.shape
    padded = np.zeros((-(-oc // tile) * tile, -(-ic // in_lanes) * in_lanes, kh, kw), weight.dtype)
    padded[:oc, :ic] = weight
    split = padded.reshape(-1, tile, padded.shape[1] // in_lanes, in_lanes // depth, depth, kh, kw)
    return np.ascontiguousarray(split.transpose(0, 2, 5, 6, 3, 1, 4))


def matmul_integer_packed(
    x: te.Tensor,
    weight: te.Tensor,
    sums: te.Tensor,
    zero: te.Tensor | None,
    columns: int,
    rows: int,
    unsigned: bool,
) -> te.Tensor:
    """``(x[..., K] - zero)`` times packed ``weight`` -> int32 ``[..., columns]``.

    Args:
        weight: ``[ceil(N/tile), ceil(K/depth), tile, depth]``.
        sums: int32 ``[columns]``, what is subtracted for each unit of ``zero``.
        zero: int32, one element; None: 1.
        rows: of ``x`` that share a register tile.
    """
    *leading, k = (int(d) for d in x.shape)
    count = prod(leading)
    tiles, steps, tile, depth = (int(d) for d in weight.shape)
    if steps * depth != k:
        x = _extended(x, steps * depth)
    rk, (within, rb) = te.reduce_axis((0, steps), "rk"), _neighbours(depth)

    def term(mo, no, mi, ni):
        row = tirx.min(mo * rows + mi, count - 1) if count % rows else mo * rows + mi
        left = x[(*unflatten_index(row, leading), rk * depth + rb)]
        return te.sum(_product(left, weight[no, rk, ni, rb], x, unsigned), axis=[rk, *within])

    product = te.compute((-(-count // rows), tiles, rows, tile), term, "matmul")

    def element(*index):
        *outer, column = index
        row = flatten_index(outer, leading)
        total = product[row // rows, column // tile, row % rows, column % tile]
        return total - subtrahend(sums[column], zero, x, unsigned)

    return te.compute((*leading, columns), element, "product")


def conv2d_integer(
    x: te.Tensor,
    weight: te.Tensor,
    sums: te.Tensor,
    zero: te.Tensor | None,
    around: int,
    in_lanes: int,
    out_lanes: int,
    columns: int,
    groups: int,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    unsigned: bool,
) -> te.Tensor:
    """Convolve ``x - zero`` with a packed ``weight`` into int32 ``[N, OC/out_lanes, ...]``.

    Args:
        x: ``[N, IC/in_lanes, H, W, in_lanes]``, or ``[N, IC, H, W]``, whose channels are padded.
        weight: ``[OC/tile, IC/in_lanes, KH, KW, in_lanes/depth, tile, depth]``.
        sums: int32 ``[OC/out_lanes, out_lanes]``, what is subtracted for each unit of ``zero``.
        zero: int32, one element; None: 1.
        around: the value of pads, where ``zero`` is None.
        columns: pixels that share a register tile.
        groups: each holds whole blocks.
    """
    tiles, ic_blocks, kh, kw, steps, tile, depth = (int(d) for d in weight.shape)
    vectors = tile // out_lanes
    oc_blocks = tiles * vectors
    blocks_per_group = oc_blocks // groups
    x = x if len(x.shape) == 5 else _blocked(x, in_lanes)
    ro, ri = te.reduce_axis((0, ic_blocks), "ro"), te.reduce_axis((0, steps), "ri")
    within, rb = _neighbours(depth)

    def term(pixel, o, lane, rh, rw):
        group = (o // blocks_per_group) * ic_blocks if groups > 1 else 0
        part = weight[o // vectors, ro, rh, rw, ri, (o % vectors) * out_lanes + lane, rb]
        return _product(pixel(group + ro, ri * depth + rb), part, x, unsigned)

    total = convolution(
        x, (kh, kw), oc_blocks, out_lanes, columns, strides, pads, dilations, term, (ro,),
        (ri, *within), pad_value(x, zero, around),
    )  # fmt: skip
    return corrected(total, sums, zero, x, unsigned)


def depthwise_conv2d_integer(
    x: te.Tensor,
    weight: te.Tensor,
    sums: te.Tensor,
    zero: te.Tensor | None,
    around: int,
    columns: int,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> te.Tensor:
    """Convolve each channel of ``x - zero`` with its own ``weight[C/b, KH, KW, b]``.

    ``x`` is ``[N, C/b, H, W, b]``; the other operands are those of :func:`conv2d_integer`.
    """
    blocks, kh, kw, lanes = (int(d) for d in weight.shape)

    def term(pixel, o, lane, rh, rw):
        return _product(pixel(o, lane), weight[o, rh, rw, lane], x, False)

    total = convolution(
        x, (kh, kw), blocks, lanes, columns, strides, pads, dilations, term,
        around=pad_value(x, zero, around),
    )  # fmt: skip
    return corrected(total, sums, zero, x, False)


def _neighbours(depth: int) -> tuple[tuple[tirx.IterVar, ...], tirx.IterVar | int]:
    """The axis along the group that one instruction sums, and its variable: none for 1."""
    if depth == 1:
        return (), 0
    axis = te.reduce_axis((0, depth), "rb")
    return (axis,), axis


def _product(a, b, x: te.Tensor, unsigned: bool) -> tirx.Expr:
    """``a * b`` in int32, ``a`` an element of ``x``."""
    wide = a.astype("int32")
    if unsigned and dtype_of(x) == "int8":
        wide = wide + SIGN
    return wide * b.astype("int32")


def subtrahend(total: tirx.Expr, zero: te.Tensor | None, x: te.Tensor, unsigned: bool) -> tirx.Expr:
    """What to subtract: ``total`` is the sum of the weights, or that times a known zero point."""
    if zero is None:
        return total
    move = SIGN if unsigned and dtype_of(x) == "int8" else 0
    return total * (zero(*(0 for _ in zero.shape)) + move)


def corrected(total: te.Tensor, sums, zero, x: te.Tensor, unsigned: bool) -> te.Tensor:
    """``total`` less what the zero point has added.

    It is ``[..., columns]``, and ``sums`` ``[columns]``; or these are ``[N, OC/b, H, W, b]`` and
    ``[OC/b, b]``.
    """

    def element(*index):
        own = index[-1:] if len(sums.shape) == 1 else (index[1], index[-1])
        return total[index] - subtrahend(sums[own], zero, x, unsigned)

    names = ["n", "o", "i", "j", "lane"] if len(sums.shape) == 2 else None
    return te.compute(total.shape, element, "corrected", varargs_names=names)


def pad_value(x: te.Tensor, zero: te.Tensor | None, around: int) -> tirx.Expr:
    """The zero point, ``around`` where it is known, as an element of ``x``."""
    dtype = dtype_of(x)
    return (
        tirx.const(around, dtype) if zero is None else zero(*(0 for _ in zero.shape)).astype(dtype)
    )


def _extended(x: te.Tensor, depth: int) -> te.Tensor:
    """``x[..., K]`` with zeros behind K, up to ``depth``."""
    *leading, k = x.shape

    def element(*index):
        return tirx.if_then_else(index[-1] < k, x(*index), tirx.const(0, x.dtype))

    return te.compute((*leading, depth), element, "extended")


def _blocked(x: te.Tensor, lanes: int) -> te.Tensor:
    """``x[N, C, H, W]`` as ``[N, ceil(C/lanes), H, W, lanes]``; the weights of the rest are 0."""
    n, channels, h, w = x.shape

    def element(n, o, i, j, lane):
        channel = o * lanes + lane
        return x[n, tirx.min(channel, channels - 1), i, j]

    return te.compute((n, -(-int(channels) // lanes), h, w, lanes), element, "blocked")
