"""Four 8-bit or two 16-bit integers in a word, and products of such words, summed in int32.

They are neighbours of the reduction. What of :mod:`tvm_ext.ops.integer_products` has rows or
columns of symbolic number is here: its schedules take terms of single elements, and make vectors.
So are products of two activations: of words, less what their zero points have added. Those of pairs
are in :mod:`tvm_ext.ops.integer_pairs`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import register_op_attr
from tvm.tirx.expr import CallEffectKind

from .conv2d_blocked import (
    IN_REGISTERS,
    conv2d_blocked,
    convolution,
    pack_depthwise_weight,
    pack_weight,
    padded,
)
from .elementwise import dtype_of
from .flat_index import broadcast_index
from .integer_products import SIGN, corrected, pad_value
from .matmul_packed import matmul_panels, matmul_rows, pack_columns, panels

__all__ = [
    "BYTES",
    "BYTE_PAIR",
    "BYTE_WORD",
    "DOT",
    "PAIR",
    "PAIR_DOT",
    "SIGNED_PAIR",
    "ZeroPoint",
    "channel_words",
    "column_sums",
    "column_word_panels",
    "column_words",
    "conv2d_integer_words",
    "count_words",
    "depthwise_conv2d_integer_words",
    "dot",
    "joined",
    "matmul_as_it_lies",
    "matmul_integer_rows",
    "matmul_integer_words",
    "matmul_integer_words_plain",
    "pack_depthwise_words",
    "pack_filter_words",
    "pack_words",
    "pair_dot",
    "repeated",
    "row_sums",
    "row_words",
    "word_of",
]

#: The operators ``dot(int32, int32) -> int32`` of bytes and of 16 bits, ``byte_word`` of four
#: uint8, the first lowest, ``byte_pair`` of two, each 16 bits wide, and ``signed_pair`` of an int16
#: that holds two int8, of any number of lanes. :mod:`tvm_ext.executors.dots` lowers them.
DOT, PAIR_DOT = "tirx.tvm_ext.integer_dot", "tirx.tvm_ext.integer_pair_dot"
BYTE_WORD, BYTE_PAIR = "tirx.tvm_ext.byte_word", "tirx.tvm_ext.byte_pair"
SIGNED_PAIR = "tirx.tvm_ext.signed_pair"

#: Bytes in a word, and numbers of 16 bits.
BYTES, PAIR = 4, 2

for _operator in (DOT, PAIR_DOT, BYTE_WORD, BYTE_PAIR, SIGNED_PAIR):
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


def joined(weight: np.ndarray) -> np.ndarray:
    """Integers ``[..., size]`` as one number of all their bits, the first lowest."""
    size = weight.dtype.itemsize * weight.shape[-1]
    little = np.ascontiguousarray(weight.astype(weight.dtype.newbyteorder("<")))
    return little.view(f"<i{size}")[..., 0].astype(f"int{8 * size}")


def pack_words(weight: np.ndarray, tile: int, size: int = BYTES) -> np.ndarray:
    """int8 ``[K, N]`` -> ``[ceil(N/tile), ceil(K/size), tile]``, padded with zeros.

    Of four bytes each, int32, or of two, int16.
    """
    k, n = weight.shape
    padded = np.zeros((-(-k // size) * size, n), "int8")
    padded[:k] = weight
    return pack_columns(joined(padded.reshape(-1, size, n).transpose(0, 2, 1)), tile)


def row_words(x: te.Tensor) -> te.Tensor:
    """8-bit ``x[..., K]`` -> int32 ``[..., ceil(K/4)]`` of unsigned bytes.

    Signed ``x`` is moved by 128, and so are the zeros behind K.
    """
    *leading, k = x.shape
    flips = dtype_of(x) == "int8"

    def word(*index):
        *row, column = index
        return word_of(lambda at: x[(*row, at)], column, k, flips)

    return te.compute((*leading, count_words(k, BYTES)), word, "row_words")


def column_words(x: te.Tensor) -> te.Tensor:
    """8-bit ``x[..., K, N]`` -> int32 ``[..., ceil(K/4), N]`` of signed bytes, 0 behind K.

    Unsigned ``x`` is moved by -128.
    """
    *leading, k, n = x.shape
    flips = dtype_of(x) == "uint8"

    def word(*index):
        *outer, row, column = index
        return word_of(lambda at: x[(*outer, at, column)], row, k, flips, 128 if flips else 0)

    return te.compute((*leading, count_words(k, BYTES), n), word, "column_words")


def column_word_panels(x: te.Tensor, tile: int) -> te.Tensor:
    """:func:`column_words` as panels ``[batch, ceil(N/tile), ceil(K/4), tile]``."""
    return panels(column_words(x), tile)


def row_sums(x: te.Tensor) -> te.Tensor:
    """The int32 sums ``[...]`` of the bytes of :func:`row_words` but those behind K."""
    *leading, k = x.shape
    step, move = te.reduce_axis((0, k), "rk"), SIGN if dtype_of(x) == "int8" else 0

    def total(*index):
        return te.sum(x[(*index, step)].astype("int32") + move, axis=step)

    return te.compute(leading, total, "row_sums")


def column_sums(x: te.Tensor) -> te.Tensor:
    """The int32 sums ``[..., N]`` of the bytes of :func:`column_words`."""
    *leading, k, n = x.shape
    step, move = te.reduce_axis((0, k), "rk"), SIGN if dtype_of(x) == "uint8" else 0

    def total(*index):
        *outer, column = index
        return te.sum(x[(*outer, step, column)].astype("int32") - move, axis=step)

    return te.compute((*leading, n), total, "column_sums")


def count_words(count: tirx.Expr, size: int) -> tirx.Expr:
    """How many words of ``size`` elements hold ``count``."""
    return (count + (size - 1)) // size


def word_of(
    element: Callable[[tirx.Expr], tirx.Expr],
    word: tirx.Expr,
    count: tirx.Expr | None,
    flips: bool,
    behind: int = 0,
) -> tirx.Expr:
    """Four 8-bit elements side by side, with their first bits flipped or not.

    ``behind`` is the byte of those behind ``count``.
    """

    def byte(b: int) -> tirx.Expr:
        at = word * BYTES + b
        value = tirx.reinterpret("uint8", element(at)).astype("uint32")
        if count is None or (isinstance(count, tirx.IntImm) and int(count) % BYTES == 0):
            return value
        return tirx.if_then_else(at < count, value, tirx.const(behind, "uint32"))

    parts = [byte(b) << tirx.const(8 * b, "uint32") for b in range(BYTES)]
    whole = tirx.reinterpret("int32", parts[0] | parts[1] | parts[2] | parts[3])
    return whole ^ tirx.const(_SIGNS, "int32") if flips else whole


@dataclass(frozen=True)
class ZeroPoint:
    """Of one side of a product of words: a ``known`` number, or None, and what bytes are moved by.

    Bytes are unsigned on the left, signed on the right.
    """

    known: int | None
    moved: int

    @classmethod
    def left(cls, dtype: str, known: int | None) -> "ZeroPoint":
        return cls(known, SIGN if dtype == "int8" else 0)

    @classmethod
    def right(cls, dtype: str, known: int | None) -> "ZeroPoint":
        return cls(known, -SIGN if dtype == "uint8" else 0)

    @property
    def is_nothing(self) -> bool:
        """Whether it is 0 of the bytes."""
        return self.known is not None and self.known + self.moved == 0

    def number(self, tensors: Iterator[te.Tensor]) -> tirx.Expr | int:
        """That of the bytes; it is the next of ``tensors`` where it is not known."""
        if self.known is not None:
            return self.known + self.moved
        zero = next(tensors)
        return zero(*(0 for _ in zero.shape)) + self.moved


def matmul_integer_words(
    a: te.Tensor,
    packed: te.Tensor,
    *rest: Any,
) -> te.Tensor:
    """:func:`row_words` times the :func:`column_word_panels` of what has ``dims`` -> int32.

    ``rest`` is ``*tensors, dims, rows, depth, left, right``: the tensors of :func:`_less_zeros`,
    the rows that share a register tile, K, and the attributes of both zero points.
    """
    *tensors, dims, rows, depth, left, right = rest
    total = matmul_panels(a, packed, dims, rows, dot)
    return _less_zeros(total, tensors, depth, ZeroPoint(*left), ZeroPoint(*right))


def matmul_integer_words_plain(a: te.Tensor, b: te.Tensor, *rest: Any) -> te.Tensor:
    """:func:`row_words` times :func:`column_words` of the same leading dims -> int32.

    Any dims may be symbolic; ``rest`` is ``*tensors, depth, left, right``.
    """
    *tensors, depth, left, right = rest
    total = matmul_as_it_lies(a, b, dot)
    return _less_zeros(total, tensors, depth, ZeroPoint(*left), ZeroPoint(*right))


def _less_zeros(
    total: te.Tensor,
    tensors: Sequence[te.Tensor],
    depth: tirx.Expr | int,
    left: ZeroPoint,
    right: ZeroPoint,
) -> te.Tensor:
    """``total`` of bytes, less what the zero points of both sides have added.

    Of ``tensors`` the first are the :func:`row_sums`, where ``right`` is something, and the
    :func:`column_sums`, where ``left`` is; then come int32 zero points that are not known.
    """
    rest = iter(tensors)
    rows = None if right.is_nothing else next(rest)
    columns = None if left.is_nothing else next(rest)
    a, b = left.number(rest), right.number(rest)
    count = depth if isinstance(depth, int) else depth.astype("int32")

    def element(*index):
        *batch, row, column = index
        value = total(*index)
        if columns is not None:
            value = value - columns[(*_aligned(batch, columns), column)] * a
        if rows is not None:
            value = value - (rows[(*_aligned(batch, rows), row)] - count * a) * b
        return value

    return te.compute(total.shape, element, "corrected")


def _aligned(batch: Sequence[tirx.Expr], sums: te.Tensor) -> Sequence[tirx.Expr]:
    """``batch`` for the leading dims of ``sums``, which may be broadcast where they are known."""
    leading = sums.shape[:-1]
    if all(isinstance(dim, tirx.IntImm) for dim in leading):
        return broadcast_index(batch, [int(dim) for dim in leading])
    return batch


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

    return corrected(total, sums, zero, x, True)


def pack_filter_words(
    weight: np.ndarray, in_lanes: int, out_lanes: int, vectors: int, size: int = BYTES
) -> np.ndarray:
    """int8 ``[OC, IC, KH, KW]`` -> words of input channels, as :func:`pack_weight` has them.

    ``in_lanes`` words, of ``size`` channels, are a block of the input; channels are padded with
    zeros to whole blocks.
    """
    oc, ic, *window = weight.shape
    block = in_lanes * size
    padded = np.zeros((oc, -(-ic // block) * block, *window), "int8")
    padded[:, :ic] = weight
    split = padded.reshape(oc, -1, size, *window)
    return pack_weight(joined(np.moveaxis(split, 2, -1)), in_lanes, out_lanes, vectors)


def channel_words(x: te.Tensor) -> te.Tensor:
    """8-bit ``x[N, C/b, H, W, b]`` -> int32 ``[N, C/b, H, W, b/4]`` of unsigned bytes.

    ``x[N, C, H, W]`` gives ``[N, ceil(C/4), H, W, 1]``, which repeats the last channel.
    """
    flips = dtype_of(x) == "int8"
    if len(x.shape) == 5:
        n, blocks, h, w, lanes = x.shape

        def of_lanes(n, o, i, j, lane):
            return word_of(lambda at: x(n, o, i, j, at), lane, None, flips)

        return te.compute((n, blocks, h, w, int(lanes) // BYTES), of_lanes, "channel_words")
    n, channels, h, w = x.shape

    def of_channels(n, o, i, j, _):
        return word_of(lambda at: x(n, tirx.min(at, channels - 1), i, j), o, None, flips)

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
        around=repeated(byte),
    )  # fmt: skip
    return corrected(total, sums, zero, x, True)


# How many columns are in a word -> what makes it of them, the first bits of their bytes, and what
# multiplies it.
_COLUMNS = {BYTES: (BYTE_WORD, _SIGNS, dot), PAIR: (BYTE_PAIR, 0x00800080, pair_dot)}


def pack_depthwise_words(weight: np.ndarray, lanes: int, size: int) -> np.ndarray:
    """int8 ``[C, 1, KH, KW]`` -> int32 ``[C/lanes, KH, ceil(KW/size), lanes]``, columns in words.

    They are four bytes or two numbers of 16 bits.
    """
    packed = pack_depthwise_weight(weight, lanes).astype(f"int{32 // size}")
    behind = -packed.shape[2] % size
    whole = np.pad(packed, ((0, 0), (0, 0), (0, behind), (0, 0)))
    return joined(np.moveaxis(whole.reshape(*packed.shape[:2], -1, size, lanes), 3, -1))


def depthwise_conv2d_integer_words(
    x: te.Tensor,
    weight: te.Tensor,
    sums: te.Tensor,
    zero: te.Tensor | None,
    around: int,
    size: int,
    taps: int,
    columns: int,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> te.Tensor:
    """Convolve each channel of ``x - zero``, ``[N, C/b, H, W, b]``, by words of a row's neighbours.

    Columns are not dilated.

    Args:
        weight: of :func:`pack_depthwise_words`, of rows of ``taps``, ``size`` in a word.

    The others are those of :func:`tvm_ext.ops.integer_products.conv2d_integer`.
    """
    blocks, height, steps, lanes = (int(d) for d in weight.shape)
    n, o, h, w, _ = x.shape
    make, signs, product = _COLUMNS[size]
    behind = steps * size - taps  # what the last words of a row hold
    high, wide = h + pads[0] + pads[2], w + pads[1] + pads[3] + behind
    source = padded(x, pads[:2], [high, wide], pad_value(x, zero, around))
    flips = dtype_of(x) == "int8"

    def word(n, o, i, j, lane):
        row = [tirx.reinterpret("uint8", source(n, o, i, j + b, lane)) for b in range(size)]
        whole = tirx.call_intrin("int32", make, *row)
        return whole ^ tirx.const(signs, "int32") if flips else whole

    shape, attrs = (n, o, high, wide - (size - 1), lanes), {IN_REGISTERS: 1}
    words = te.compute(shape, word, "row_words", attrs=attrs)

    def term(pixel, o, lane, *tap):
        return product(pixel(o, lane), weight(o, *tap, lane))

    total = convolution(
        words, (height, steps), blocks, lanes, columns, strides, [0] * 4, (dilations[0], size),
        term,
    )  # fmt: skip
    return corrected(total, sums, zero, x, True)


def repeated(byte: tirx.Expr) -> tirx.Expr:
    """A word of four times ``byte``, an int32."""
    if isinstance(byte, tirx.IntImm):  # of constants TVM reinterprets none that is 0
        return tirx.const(np.full(4, int(byte), "uint8").view("int32").item(), "int32")
    # The product of unsigned numbers is no overflow.
    word = byte.astype("uint32") * tirx.const(0x01010101, "uint32")
    return tirx.reinterpret("int32", word)


def matmul_as_it_lies(
    a: te.Tensor, b: te.Tensor, product: Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
) -> te.Tensor:
    *batch, m, words = a.shape
    step = te.reduce_axis((0, words), "rk")

    def element(*index):
        *outer, row, column = index
        return te.sum(product(a[(*outer, row, step)], b[(*outer, step, column)]), axis=step)

    return te.compute((*batch, m, b.shape[-1]), element, "matmul")
