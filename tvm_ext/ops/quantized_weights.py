"""Weights of a few bits each: several to a byte, in blocks that share a scale."""

from tvm import te, tirx

from . import narrow
from .elementwise import dtype_of
from .float8 import from_float8

__all__ = [
    "UNPACKED", "blob_bytes", "blob_weights", "float4_weights", "gathered_weights",
    "looked_up_weights", "packed_code", "scaled_weights", "unpacked_weights",
]  # fmt: skip


#: The attribute of a kernel of :func:`unpacked_weights` without groups: depth, bits, block, and
#: the least accuracy of the product's left side (4: 8 bits; see MatMulNBits of com.microsoft).
UNPACKED = "unpacked_weights"
_BLOB_BLOCK = 32  # elements of a column that share a scale


def packed_code(packed, *place, bits):
    """The code at ``place`` as int32; the last axis of the bytes ``packed`` has low bits first."""
    *outer, last = place
    per_byte = 8 // bits
    if per_byte == 1:
        return packed(*place).astype("int32")
    byte = packed(*outer, tirx.floordiv(last, per_byte)).astype("int32")
    shift = (tirx.floormod(last, per_byte) * bits).astype("int32")
    return tirx.bitwise_and(tirx.shift_right(byte, shift), (1 << bits) - 1)


def unpacked_weights(codes, scales, zeros, groups, depth, bits, block):
    """``(code - zero) * scale`` as ``[depth, N]``, from ``codes[N, bytes]`` with low bits first.

    Block k of a row is its elements ``[k * block, (k + 1) * block)``, or those with
    ``groups[i] == k``. ``scales[N, blocks]``; ``zeros`` are packed as the codes are, or of the type
    of the scales, or None: the middle of the range.
    """
    dtype = dtype_of(scales)

    def code(packed, row, place):
        return packed_code(packed, row, place, bits=bits).astype(dtype)

    def zero(row, k):
        if zeros is None:
            return tirx.const(1 << (bits - 1), dtype)
        return code(zeros, row, k) if dtype_of(zeros) == "uint8" else zeros[row, k]

    def element(i, row):
        k = tirx.floordiv(i, block) if groups is None else groups[i].astype("int64")
        k = tirx.max(tirx.min(k, scales.shape[1] - 1), 0)
        return (code(codes, row, i) - zero(row, k)) * scales[row, k]

    return te.compute((depth, codes.shape[0]), element, "unpacked_weights")


def looked_up_weights(codes, levels, scales, rows, block, turned):
    """``levels[16][code] * scale`` of ``rows`` [R, C], or ``turned`` to [C, R].

    ``codes`` hold the rows one behind the other, two to a byte, high bits first; ``scales`` are of
    each ``block`` codes of that one row.
    """
    width = rows[1]

    def element(i, k):
        place = k * width + i if turned else i * width + k
        byte = codes[tirx.floordiv(place, 2)].astype("int32")
        shift = (1 - tirx.floormod(place, 2)) * 4
        code = tirx.bitwise_and(tirx.shift_right(byte, shift.astype("int32")), 15)
        return levels[code].astype(scales.dtype) * scales[tirx.floordiv(place, block)]

    return te.compute(rows[::-1] if turned else rows, element, "looked_up_weights")


def float4_weights(codes, scales, scale, block):
    """NVFP4 as float32 ``[K, N]``: ``codes[N, K / 2]``, low half first, ``scales[N, blocks]`` the
    bytes of float8e4m3fn, ``scale`` of one element."""

    def element(k, n):
        byte = codes[n, tirx.floordiv(k, 2)].astype("int32")
        code = tirx.bitwise_and(
            tirx.shift_right(byte, (tirx.floormod(k, 2) * 4).astype("int32")), 15
        )
        own = scales[n, tirx.floordiv(k, block)]
        factor = from_float8(tirx.reinterpret("float8_e4m3fn", own), "float8_e4m3fn")
        value = narrow.decode(code.astype("uint8"), narrow.FLOAT4)
        return value * factor * scale(*([0] * len(scale.shape)))

    return te.compute((codes.shape[1] * 2, codes.shape[0]), element, "float4_weights")


def scaled_weights(weights, scales, block):
    """``weights[N, K]`` times ``scales[N, ceil(K / block)]``, as ``[K, N]``."""

    def element(k, n):
        return weights[n, k] * scales[n, tirx.floordiv(k, block)]

    return te.compute(weights.shape[::-1], element, "scaled_weights")


def blob_bytes(depth, columns, has_zero):
    """The bytes that :func:`blob_weights` reads."""
    size = (5 if has_zero else 4) + _BLOB_BLOCK // 2
    return columns * -(-depth // _BLOB_BLOCK) * size


def blob_weights(blob, depth, columns, has_zero):
    """``[depth, columns]`` in float32 of a row of bytes, ``blob[bytes]``.

    Of each column, for each 32 elements: the scale, a float32; a zero point, one byte, if
    ``has_zero``, else it is 8; the codes, the first 16 in the low halves of 16 bytes.
    """
    head, block = 5 if has_zero else 4, _BLOB_BLOCK
    column = blob_bytes(depth, 1, has_zero)

    def element(k, n):
        start = n * column + tirx.floordiv(k, block) * (head + block // 2)
        bits = tirx.const(0, "uint32")
        for byte in range(4):
            bits = bits | (blob[start + byte].astype("uint32") << tirx.const(8 * byte, "uint32"))
        place = tirx.floormod(k, block)
        byte = blob[start + head + tirx.floormod(place, 16)]
        shift = (tirx.floordiv(place, 16) * 4).astype("int32")
        code = tirx.bitwise_and(tirx.shift_right(byte.astype("int32"), shift), 15)
        zero = blob[start + 4].astype("int32") if has_zero else tirx.const(8, "int32")
        return tirx.reinterpret("float32", bits) * (code - zero).astype("float32")

    return te.compute((depth, columns), element, "blob_weights")


def gathered_weights(data, indices, scales, zeros, take, along, block, bits, dtype, zero):
    """``(code - zero) * scale`` of the slices of ``data`` at ``indices`` of the axis ``take``.

    ``bits`` is None where ``data`` has a code per element, else its last axis packs so many bits
    each. A scale belongs to ``block`` elements of the axis ``along``; ``zeros`` (None: ``zero``)
    are packed as the data are. An index out of range gives zeros.
    """
    sizes = list(data.shape)
    if bits is not None:
        sizes[-1] = sizes[-1] * (8 // bits)
    rank, rows = len(indices.shape), sizes[take]
    shape = [*sizes[:take], *indices.shape, *sizes[take + 1 :]]

    def code(packed, *place):
        if bits is None:
            return packed(*place).astype(dtype)
        return packed_code(packed, *place, bits=bits).astype(dtype)

    def element(*index):
        row = indices(*index[take : take + rank]).astype("int64")
        row = tirx.Select(row < 0, row + rows, row)
        inside = tirx.all(row >= 0, row < rows)
        row = tirx.max(tirx.min(row, rows - 1), 0)
        place = [*index[:take], row, *index[take + rank :]]
        group = [tirx.floordiv(i, block) if k == along else i for k, i in enumerate(place)]
        offset = tirx.const(zero, dtype) if zeros is None else code(zeros, *group)
        value = (code(data, *place) - offset) * scales(*group).astype(dtype)
        return tirx.Select(inside, value, tirx.const(0, dtype)).astype(scales.dtype)

    return te.compute(shape, element, "gathered_weights")
