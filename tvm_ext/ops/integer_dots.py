"""Four 8-bit integers in a word of 32 bits, and products of such words that are summed in int32.

The four are neighbours of the reduction. What of :mod:`tvm_ext.ops.integer_products` has rows of
symbolic number is here: its schedule takes terms of single elements, and makes vectors of columns.
"""

import numpy as np
from tvm import te, tirx
from tvm.ir import register_op_attr
from tvm.tirx.expr import CallEffectKind

from .elementwise import dtype_of
from .integer_products import subtrahend
from .matmul_packed import matmul_rows, pack_columns

__all__ = ["BYTES", "DOT", "dot", "matmul_integer_rows", "pack_words", "row_words"]

#: The operator ``dot(int32, int32) -> int32`` of any number of lanes.
#: :mod:`tvm_ext.executors.dots` lowers it.
DOT = "tirx.tvm_ext.integer_dot"

#: Bytes in a word.
BYTES = 4

register_op_attr(DOT, "TCallEffectKind", CallEffectKind.Pure.value)
register_op_attr(DOT, "TVectorizable", True)
register_op_attr(DOT, "TScriptPrinterName", DOT.split(".")[-1], level=20)

# The first bit of each byte.
_SIGNS = np.uint32(0x80808080).view("int32").item()


def dot(x: tirx.Expr, y: tirx.Expr) -> tirx.Expr:
    """The sum of four products: of the unsigned bytes of ``x`` and the signed ones of ``y``.

    To be the term of a sum.
    """
    return tirx.call_intrin("int32", DOT, x, y)


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
    depth, signed = int(k), dtype_of(x) == "int8"

    def byte(row, at):
        value = tirx.reinterpret("uint8", x[(*row, at)]).astype("uint32")
        return value if depth % BYTES == 0 else tirx.if_then_else(at < k, value, _nothing())

    def word(*index):
        *row, column = index
        parts = [byte(row, column * BYTES + b) << tirx.const(8 * b, "uint32") for b in range(BYTES)]
        whole = tirx.reinterpret("int32", parts[0] | parts[1] | parts[2] | parts[3])
        return whole ^ tirx.const(_SIGNS, "int32") if signed else whole

    return te.compute((*leading, -(-depth // BYTES)), word, "row_words")


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


def _nothing() -> tirx.Expr:
    return tirx.const(0, "uint32")
