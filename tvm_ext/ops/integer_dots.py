"""Four 8-bit or two 16-bit integers in a word, and products of such words, summed in int32.

They are neighbours of the reduction. What of :mod:`tvm_ext.ops.integer_products` has rows or
columns of symbolic number is here: its schedules take terms of single elements, and make vectors.
So are products of two activations: less their zero points they need nine bits.
"""

from collections.abc import Callable, Sequence

import numpy as np
from tvm import te, tirx
from tvm.ir import register_op_attr
from tvm.tirx.expr import CallEffectKind

from .conv2d_blocked import conv2d_blocked, pack_weight
from .elementwise import dtype_of
from .integer_products import SIGN, corrected, pad_value, subtrahend
from .matmul_packed import matmul_panels, matmul_rows, pack_columns, panels

__all__ = [
    "BYTES",
    "DOT",
    "PAIR_DOT",
    "channel_words",
    "column_pair_panels",
    "column_pairs",
    "conv2d_integer_words",
    "dot",
    "matmul_integer_pairs",
    "matmul_integer_pairs_plain",
    "matmul_integer_rows",
    "pack_filter_words",
    "pack_words",
    "pair_dot",
    "row_pairs",
    "row_words",
]

#: The operators ``dot(int32, int32) -> int32`` of bytes and of 16 bits, of any number of lanes.
#: :mod:`tvm_ext.executors.dots` lowers them.
DOT, PAIR_DOT = "tirx.tvm_ext.integer_dot", "tirx.tvm_ext.integer_pair_dot"

#: Bytes in a word.
BYTES = 4

for _operator in (DOT, PAIR_DOT):
    register_op_attr(_operator, "TCallEffectKind", CallEffectKind.Pure.value)
    register_op_attr(_operator, "TVectorizable", True)
    register_op_attr(_operator, "TScriptPrinterName", _operator.split(".")[-1], level=20)

# The first bit of each byte.
_SIGNS = np.uint32(0x80808080).view("int32").item()


def dot(x: tirx.Expr, y: tirx.Expr) -> tirx.Expr:
    """The sum of four products: of the unsigned bytes of ``x`` and the signed ones of ``y``.

    To be the term of a sum.
    """
    return tirx.call_intrin("int32", DOT, x, y)


def pair_dot(x: tirx.Expr, y: tirx.Expr) -> tirx.Expr:
    """``x.low * y.low + x.high * y.high``, all four signed. To be the term of a sum."""
    return tirx.call_intrin("int32", PAIR_DOT, x, y)


def pack_words(weight: np.ndarray, tile: int) -> np.ndarray:
    """int8 ``[K, N]`` -> int32 ``[ceil(N/tile), ceil(K/4), tile]``, padded with zeros."""
    k, n = weight.shape
    padded = np.zeros((-(-k // BYTES) * BYTES, n), "int8")
    padded[:k] = weight
    rows = padded.reshape(-1, BYTES, n).transpose(0, 2, 1)
    words = np.ascontiguousarray(rows).view("<i4").astype("int32")
    return pack_columns(words.reshape(-1, n), tile)


def row_words(x: te.Tensor) -> te.Tensor:
    """8-bit ``x[..., K]`` -> int32 ``[..., ceil(K/4)]`` of unsigned bytes, with zeros behind K.

    Signed ``x`` is moved by 128.
    """
    *leading, k = x.shape
    depth = int(k)

    def byte(row, at):
        value = _byte(x[(*row, at)])
        return value if depth % BYTES == 0 else tirx.if_then_else(at < k, value, _nothing())

    def word(*index):
        *row, column = index
        return _word(lambda b: byte(row, column * BYTES + b), x)

    return te.compute((*leading, -(-depth // BYTES)), word, "row_words")


def _byte(value: tirx.Expr) -> tirx.Expr:
    """The bits of an 8-bit integer."""
    return tirx.reinterpret("uint8", value).astype("uint32")


def _word(byte: Callable[[int], tirx.Expr], x: te.Tensor) -> tirx.Expr:
    """Four bytes of ``x``, unsigned, side by side."""
    parts = [byte(b) << tirx.const(8 * b, "uint32") for b in range(BYTES)]
    whole = tirx.reinterpret("int32", parts[0] | parts[1] | parts[2] | parts[3])
    return whole ^ tirx.const(_SIGNS, "int32") if dtype_of(x) == "int8" else whole


def matmul_integer_rows(
    x: te.Tensor, weight: te.Tensor, sums: te.Tensor, zero: te.Tensor | None, columns: int
) -> te.Tensor:
    """``(x[..., K] - zero)`` times packed ``weight`` -> int32, where dims of ``x`` are symbolic.

    Args:
        weight: of :func:`pack_words`.
        sums: int32 ``[columns]``, what is subtracted for each unit of ``zero``.
        zero: int32, one element; None: 1.
    """
    total = matmul_rows(row_words(x), weight, columns, dot)

    def element(*index):
        return total[index] - subtrahend(sums[index[-1]], zero, x, unsigned=True)

    return te.compute(total.shape, element, "corrected")


def pack_filter_words(
    weight: np.ndarray, in_lanes: int, out_lanes: int, vectors: int
) -> np.ndarray:
    """int8 ``[OC, IC, KH, KW]`` -> words of input channels, as :func:`pack_weight` has them.

    ``in_lanes`` words are a block of the input; channels are padded with zeros to whole blocks.
    """
    oc, ic, *window = weight.shape
    block = in_lanes * BYTES
    padded = np.zeros((oc, -(-ic // block) * block, *window), "int8")
    padded[:, :ic] = weight
    split = padded.reshape(oc, -1, BYTES, *window)
    words = np.ascontiguousarray(np.moveaxis(split, 2, -1)).view("<i4")[..., 0].astype("int32")
    return pack_weight(words, in_lanes, out_lanes, vectors)


def channel_words(x: te.Tensor) -> te.Tensor:
    """8-bit ``x[N, C/b, H, W, b]`` -> int32 ``[N, C/b, H, W, b/4]`` of unsigned bytes.

    ``x[N, C, H, W]`` gives ``[N, ceil(C/4), H, W, 1]``, which repeats the last channel.
    """
    if len(x.shape) == 5:
        n, blocks, h, w, lanes = x.shape

        def of_lanes(n, o, i, j, lane):
            return _word(lambda b: _byte(x(n, o, i, j, lane * BYTES + b)), x)

        return te.compute((n, blocks, h, w, int(lanes) // BYTES), of_lanes, "channel_words")
    n, channels, h, w = x.shape

    def of_channels(n, o, i, j, _):
        return _word(lambda b: _byte(x(n, tirx.min(o * BYTES + b, channels - 1), i, j)), x)

    return te.compute((n, -(-int(channels) // BYTES), h, w, 1), of_channels, "channel_words")


def conv2d_integer_words(
    x: te.Tensor,
    weight: te.Tensor,
    sums: te.Tensor,
    zero: te.Tensor | None,
    around: int,
    out_lanes: int,
    columns: int,
    groups: int,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> te.Tensor:
    """``x - zero`` convolved with packed ``weight`` -> int32, where dims of ``x`` are symbolic.

    Args:
        weight: of :func:`pack_filter_words`.

    The others are those of :func:`tvm_ext.ops.integer_products.conv2d_integer`.
    """
    moved = SIGN if dtype_of(x) == "int8" else 0
    byte = pad_value(x, zero, around).astype("int32") + moved
    total = conv2d_blocked(
        channel_words(x), weight, out_lanes, columns, groups, strides, pads, dilations, dot,
        around=_repeated(byte),
    )  # fmt: skip
    return corrected(total, sums, zero, x, True)


def _repeated(byte: tirx.Expr) -> tirx.Expr:
    """A word of four times ``byte``, an int32."""
    if isinstance(byte, tirx.IntImm):  # of constants TVM reinterprets none that is 0
        return tirx.const(np.full(4, int(byte), "uint8").view("int32").item(), "int32")
    # The product of unsigned numbers is no overflow.
    word = byte.astype("uint32") * tirx.const(0x01010101, "uint32")
    return tirx.reinterpret("int32", word)


def row_pairs(x: te.Tensor) -> te.Tensor:
    """int32 ``x[..., K]`` of 16 bits -> words ``[..., ceil(K/2)]``, with 0 behind K."""
    *leading, k = x.shape

    def word(*index):
        *row, column = index
        return _pair(lambda at: x[(*row, at)], column, k)

    return te.compute((*leading, _pairs(k)), word, "row_pairs")


def column_pairs(x: te.Tensor) -> te.Tensor:
    """int32 ``x[..., K, N]`` of 16 bits -> words ``[..., ceil(K/2), N]``, with 0 behind K."""
    *leading, k, n = x.shape

    def word(*index):
        *outer, row, column = index
        return _pair(lambda at: x[(*outer, at, column)], row, k)

    return te.compute((*leading, _pairs(k), n), word, "column_pairs")


def column_pair_panels(x: te.Tensor, tile: int) -> te.Tensor:
    """:func:`column_pairs` as panels ``[batch, ceil(N/tile), ceil(K/2), tile]``."""
    return panels(column_pairs(x), tile)


def matmul_integer_pairs(
    a: te.Tensor, packed: te.Tensor, dims: Sequence[int], rows: int
) -> te.Tensor:
    """:func:`row_pairs` times the :func:`column_pair_panels` of what has ``dims`` -> int32."""
    return matmul_panels(a, packed, dims, rows, pair_dot)


def matmul_integer_pairs_plain(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """:func:`row_pairs` times :func:`column_pairs` of the same leading dims -> int32.

    Any dims may be symbolic.
    """
    *batch, m, words = a.shape
    step = te.reduce_axis((0, words), "rk")

    def element(*index):
        *outer, row, column = index
        return te.sum(pair_dot(a[(*outer, row, step)], b[(*outer, step, column)]), axis=step)

    return te.compute((*batch, m, b.shape[-1]), element, "matmul")


def _pairs(count: tirx.Expr) -> tirx.Expr:
    return (count + 1) // 2


def _pair(element, word, count: tirx.Expr) -> tirx.Expr:
    """Elements ``2 * word`` and the next, the latter 0 behind ``count``."""
    low, high = element(2 * word), element(2 * word + 1)
    if not isinstance(count, tirx.IntImm) or int(count) % 2:
        high = tirx.if_then_else(2 * word + 1 < count, high, tirx.const(0, "int32"))
    return (low & 0xFFFF) | (high << 16)


def _nothing() -> tirx.Expr:
    return tirx.const(0, "uint32")
