"""Pairs of bfloat16 in words of 32 bits, and products of such pairs that are summed in float32.

Instructions for bfloat16 take two neighbours of the reduction at a time. Which two is free, as long
as both operands agree: here they are a whole vector apart, so that two loads and no shuffle make a
vector of words. TVM's own bfloat16 never appears: its legalisation would make float32 of it.
"""

from collections.abc import Sequence

import ml_dtypes
import numpy as np
from tvm import te, tirx
from tvm.ir import register_op_attr
from tvm.tirx.expr import CallEffectKind

from .conv2d_blocked import conv2d_blocked
from .matmul_packed import matmul_packed

__all__ = [
    "DOT",
    "PAIR",
    "channel_floats",
    "channel_pairs",
    "conv2d_pairs",
    "dot",
    "matmul_pairs",
    "pair",
    "pair_rows",
    "pair_weight",
    "pairs",
    "row_pairs",
]

#: The operators: ``dot(int32, int32) -> float32`` and ``pair(float32, float32) -> int32``, of any
#: number of lanes. :mod:`tvm_ext.executors.dots` lowers them.
DOT, PAIR = "tirx.tvm_ext.bfloat16_dot", "tirx.tvm_ext.bfloat16_pair"

for _operator in (DOT, PAIR):
    register_op_attr(_operator, "TCallEffectKind", CallEffectKind.Pure.value)
    register_op_attr(_operator, "TVectorizable", True)
    register_op_attr(_operator, "TScriptPrinterName", _operator.split(".")[-1], level=20)


def dot(x: tirx.Expr, y: tirx.Expr) -> tirx.Expr:
    """``x.low * y.low + x.high * y.high`` of int32 words, in float32.

    To be the term of a sum. The instructions round to nearest after each of both products, take
    subnormal numbers for 0, and pass NaN and infinities through.
    """
    return tirx.call_intrin("float32", DOT, x, y)


def pair(low: tirx.Expr, high: tirx.Expr) -> tirx.Expr:
    """An int32 word of two float32, each rounded to the nearest bfloat16, ties to even."""
    return tirx.call_intrin("int32", PAIR, low, high)


def _pair(low: tirx.Expr, high: tirx.Expr) -> tirx.Expr:
    """:func:`pair` of float32 or bfloat16."""
    return pair(low.astype("float32"), high.astype("float32"))


def pairs(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """:func:`pair` of arrays."""
    bits = (
        part.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32) for part in (low, high)
    )
    return (next(bits) | next(bits) << 16).view(np.int32)


def pair_rows(matrix: np.ndarray) -> np.ndarray:
    """``[K, N]`` -> int32 ``[ceil(K/2), N]``: row k with row ``k + ceil(K/2)``, or with zeros."""
    half = -(-len(matrix) // 2)
    padded = np.zeros((2 * half, matrix.shape[1]), matrix.dtype)
    padded[: len(matrix)] = matrix
    return pairs(padded[:half], padded[half:])


def row_pairs(x: te.Tensor) -> te.Tensor:
    """``x[..., K]`` -> int32 ``[..., ceil(K/2)]``, in the pairs of :func:`pair_rows`."""
    *leading, k = (int(d) for d in x.shape)
    half = -(-k // 2)

    def word(*index):
        *row, column = index
        other = x[(*row, column + half)]
        if k % 2:
            inside = column + half < k
            other = tirx.if_then_else(inside, other, tirx.const(0, x.dtype))
        return _pair(x[index], other)

    return te.compute((*leading, half), word, "row_pairs")


def matmul_pairs(x: te.Tensor, weight: te.Tensor, columns: int, rows: int) -> te.Tensor:
    """:func:`matmul_packed` of float ``x[..., K]`` rounded to bfloat16, and packed words
    ``weight[ceil(N/tile), ceil(K/2), tile]`` of :func:`pair_rows`."""
    return matmul_packed(row_pairs(x), weight, columns, rows, dot)


def pair_weight(packed: np.ndarray) -> np.ndarray:
    """``[tiles, IC/b, KH, KW, b, tile]`` of :func:`pack_weight` -> words of input channels.

    Of an even number of blocks, each is paired with the next: ``[tiles, IC/b/2, KH, KW, b, tile]``.
    Else the halves of each are, the last of an odd ``b`` with zeros: ``[..., ceil(b/2), tile]``.
    """
    if packed.shape[1] % 2 == 0:
        return pairs(packed[:, 0::2], packed[:, 1::2])
    lanes = packed.shape[-2]
    half = -(-lanes // 2)
    high = np.zeros_like(packed[..., :half, :])
    high[..., : lanes - half, :] = packed[..., half:, :]
    return pairs(packed[..., :half, :], high)


def channel_pairs(x: te.Tensor, of: str) -> te.Tensor:
    """``x[N, C/b, H, W, b]`` -> int32 with half the ``"blocks"`` or half the ``"lanes"``."""
    n, o, h, w, lane = x.shape
    blocks, lanes = int(o), int(lane)
    half = -(-lanes // 2)

    def of_blocks(n, o, i, j, lane):
        return _pair(x[n, 2 * o, i, j, lane], x[n, 2 * o + 1, i, j, lane])

    def of_lanes(n, o, i, j, lane):
        high = x[n, o, i, j, lane + half]
        if lanes % 2:
            inside = lane + half < lanes
            high = tirx.if_then_else(inside, high, tirx.const(0, x.dtype))
        return _pair(x[n, o, i, j, lane], high)

    if of == "blocks":
        return te.compute((n, blocks // 2, h, w, lanes), of_blocks, "channel_pairs")
    return te.compute((n, blocks, h, w, half), of_lanes, "channel_pairs")


def channel_floats(words: te.Tensor) -> te.Tensor:
    """What :func:`channel_pairs` made of blocks, ``words[N, C/b/2, H, W, b]``, as float32."""
    n, *blocked = words.shape
    blocks, h, w, lanes = map(int, blocked)

    def half(n, o, i, j, lane):
        word = words[n, o // 2, i, j, lane]
        bits = tirx.Select(o % 2 == 0, word << 16, word & tirx.const(-(1 << 16), "int32"))
        return tirx.reinterpret("float32", bits)

    return te.compute((n, 2 * blocks, h, w, lanes), half, "channel_floats")


def conv2d_pairs(
    x: te.Tensor,
    weight: te.Tensor,
    out_lanes: int,
    columns: int,
    groups: int,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> te.Tensor:
    """:func:`conv2d_blocked` of float ``x`` rounded to bfloat16, and a :func:`pair_weight`."""
    geometry = out_lanes, columns, groups, strides, pads, dilations
    whole = int(weight.shape[1]) * groups * 2 == int(x.shape[1])
    words = channel_pairs(x, "blocks" if whole else "lanes")
    return conv2d_blocked(words, weight, *geometry, dot)
