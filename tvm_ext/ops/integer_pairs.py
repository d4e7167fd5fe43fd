"""Products of integers in pairs of 16 bits, summed in int32, for CPUs that multiply such at once.

Bytes are widened first, :mod:`tvm_ext.ops.integer_dots` has the operators. Constant weights stay
bytes in memory, two in an int16, and become pairs as they are loaded; of two activations the
factors are differences of nine bits.
"""

from collections.abc import Callable, Sequence

from tvm import te, tirx

from .conv2d_blocked import conv2d_blocked
from .integer_dots import PAIR, SIGNED_PAIR, count_words, matmul_as_it_lies, pair_dot
from .integer_products import corrected, pad_value
from .matmul_packed import matmul_packed, matmul_panels, matmul_rows, panels

__all__ = [
    "column_pair_panels",
    "column_pairs",
    "conv2d_byte_pairs",
    "matmul_byte_pairs",
    "matmul_integer_pairs",
    "matmul_integer_pairs_plain",
    "pair_of",
    "row_pairs",
    "times_bytes",
    "widened",
]


def times_bytes(x: tirx.Expr, y: tirx.Expr) -> tirx.Expr:
    """The product of a pair ``x`` of 16 bits, and a pair ``y`` of signed bytes, an int16."""
    return pair_dot(x, tirx.call_intrin("int32", SIGNED_PAIR, y))


def pair_of(element: Callable[[tirx.Expr], tirx.Expr], word: tirx.Expr) -> tirx.Expr:
    """Elements ``2 * word`` and the next, of 16 bits at most; LLVM loads neighbours as one."""
    low, high = (element(2 * word + k).astype("int32") for k in range(PAIR))
    return (low & 0xFFFF) | (high << 16)


def _pair(element, word, count: tirx.Expr) -> tirx.Expr:
    """Elements ``2 * word`` and the next, the latter 0 behind ``count``."""
    if isinstance(count, tirx.IntImm) and int(count) % 2 == 0:
        return pair_of(element, word)

    def within(at):
        return tirx.if_then_else(at < count, element(at).astype("int32"), tirx.const(0, "int32"))

    return pair_of(within, word)


def row_pairs(x: te.Tensor) -> te.Tensor:
    """``x[..., K]`` of 16 bits at most -> int32 words ``[..., ceil(K/2)]``, with 0 behind K."""
    *leading, k = x.shape

    def word(*index):
        *row, column = index
        return _pair(lambda at: x[(*row, at)], column, k)

    return te.compute((*leading, count_words(k, PAIR)), word, "row_pairs")


def column_pairs(x: te.Tensor) -> te.Tensor:
    """int32 ``x[..., K, N]`` of 16 bits -> words ``[..., ceil(K/2), N]``, with 0 behind K."""
    *leading, k, n = x.shape

    def word(*index):
        *outer, row, column = index
        return _pair(lambda at: x[(*outer, at, column)], row, k)

    return te.compute((*leading, count_words(k, PAIR), n), word, "column_pairs")


def column_pair_panels(x: te.Tensor, tile: int) -> te.Tensor:
    """:func:`column_pairs` as panels ``[batch, ceil(N/tile), ceil(K/2), tile]``."""
    return panels(column_pairs(x), tile)


def matmul_byte_pairs(
    words: te.Tensor,
    weight: te.Tensor,
    sums: te.Tensor,
    zero: te.Tensor | None,
    columns: int,
    rows: int | None = None,
) -> te.Tensor:
    """``x - zero`` times packed ``weight`` -> int32 ``[..., columns]``; ``words`` are pairs of x.

    Args:
        words: of :func:`row_pairs`.
        weight: of :func:`tvm_ext.ops.integer_dots.pack_words`, by two.
        sums: int32 ``[columns]``, what is subtracted for each unit of ``zero``.
        zero: int32, one element; None: 1.
        rows: of ``words`` that share a register tile; None: the schedule chooses, as of rows of
            symbolic number.
    """
    if rows is None:
        total = matmul_rows(words, weight, columns, times_bytes)
    else:
        total = matmul_packed(words, weight, columns, rows, times_bytes)

    return corrected(total, sums, zero, words, False)


def matmul_integer_pairs(
    a: te.Tensor, packed: te.Tensor, dims: Sequence[int], rows: int
) -> te.Tensor:
    """:func:`row_pairs` times the :func:`column_pair_panels` of what has ``dims`` -> int32."""
    return matmul_panels(a, packed, dims, rows, pair_dot)


def matmul_integer_pairs_plain(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """:func:`row_pairs` times :func:`column_pairs` of the same leading dims -> int32.

    Any dims may be symbolic.
    """
    return matmul_as_it_lies(a, b, pair_dot)


def widened(x: te.Tensor) -> te.Tensor:
    """8-bit ``x[N, C/b, H, W, b]`` as int16; of ``x[N, C, H, W]`` blocks of two channels.

    Behind the last channel it is repeated.
    """
    if len(x.shape) == 5:
        return te.compute(x.shape, lambda *at: x(*at).astype("int16"), "widened")
    n, channels, h, w = x.shape

    def element(n, o, i, j, lane):
        return x(n, tirx.min(PAIR * o + lane, channels - 1), i, j).astype("int16")

    return te.compute((n, -(-int(channels) // PAIR), h, w, PAIR), element, "widened")


def conv2d_byte_pairs(
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
    """``x - zero`` convolved with packed ``weight`` -> int32; dims of ``x`` may be symbolic.

    Args:
        weight: of :func:`tvm_ext.ops.integer_dots.pack_filter_words`, by two.

    The others are those of :func:`tvm_ext.ops.integer_products.conv2d_integer`.
    """
    total = conv2d_blocked(
        widened(x), weight, out_lanes, columns, groups, strides, pads, dilations, times_bytes,
        word=pair_of, around=pad_value(x, zero, around).astype("int16"),
    )  # fmt: skip
    return corrected(total, sums, zero, x, False)
