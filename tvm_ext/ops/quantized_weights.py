"""Weights of a few bits each."""

from tvm import te, tirx

from .elementwise import dtype_of

__all__ = ["unpacked_weights"]


def unpacked_weights(codes, scales, zeros, groups, depth, bits, block):
    """``(code - zero) * scale`` as ``[depth, N]``, from ``codes[N, bytes]`` with low bits first.

    Block k of a row is its elements ``[k * block, (k + 1) * block)``, or those with
    ``groups[i] == k``. ``scales[N, blocks]``; ``zeros`` are packed as the codes are, or of the type
    of the scales, or None: the middle of the range.
    """
    dtype = dtype_of(scales)
    per_byte, mask = 8 // bits, (1 << bits) - 1

    def code(packed, row, place):
        shift = (place % per_byte) * bits
        byte = packed[row, place // per_byte].astype("int32")
        return tirx.bitwise_and(tirx.shift_right(byte, shift.astype("int32")), mask).astype(dtype)

    def zero(row, k):
        if zeros is None:
            return tirx.const(1 << (bits - 1), dtype)
        return code(zeros, row, k) if dtype_of(zeros) == "uint8" else zeros[row, k]

    def element(i, row):
        k = tirx.floordiv(i, block) if groups is None else groups[i].astype("int64")
        k = tirx.max(tirx.min(k, scales.shape[1] - 1), 0)
        return (code(codes, row, i) - zero(row, k)) * scales[row, k]

    return te.compute((depth, codes.shape[0]), element, "unpacked_weights")
