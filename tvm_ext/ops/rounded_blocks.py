"""Matrix products with weights of a few bits, whose left side is rounded to 8 bits by blocks.

A word of 32 bits is four bytes of neighbours along the reduction: of codes of the weights, which
are unsigned, several in a byte, and of the rows, which are signed. An instruction multiplies and
sums them; scales and zero points belong to the sum of a block.
"""

from math import prod
from operator import add

import numpy as np
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from .flat_index import unflatten_index
from .integer_dots import BYTES, dot, word_of
from .matmul_packed import pack_columns, untiled
from .quantization import nearest

__all__ = ["LANES", "matmul_rounded_blocks", "pack_code_words", "rounded_blocks"]

#: What a block holds a multiple of.
LANES = 16
_TOP = 127  # of the codes of rows
_LEAST_NORMAL = float(np.finfo("float32").tiny)


def pack_code_words(codes: np.ndarray, bits: int, tile: int) -> np.ndarray:
    """uint8 ``[N, K]`` -> int32 ``[ceil(N/tile), K * bits / 32, tile]``.

    The lowest bits of the bytes of a word are four neighbours, the next ones the four behind these.
    """
    parts = codes.reshape(len(codes), -1, 8 // bits, BYTES)
    shifts = np.arange(0, 8, bits, dtype="uint8")[:, None]
    words = np.ascontiguousarray(np.bitwise_or.reduce(parts << shifts, axis=2)).view("<i4")[..., 0]
    return pack_columns(words.astype("int32").T, tile)


def rounded_blocks(x: te.Tensor, block: int) -> te.Tensor:
    """float32 ``x[..., K]`` as ``scale * code`` -> int32 ``[..., K / block, block / 4 + 2]``.

    Of each block: words of its codes, from -127 to 127, then the bits of the scale, then the sum of
    the codes. NaN makes the scale NaN; what is infinite stays so.
    """
    *leading, depth = x.shape
    count, blocks = prod(leading), int(depth) // block
    shape = (*leading, tirx.const(blocks, "int64"), tirx.const(block // BYTES + 2, "int64"))

    def body(ins, outs):
        (rows,), (rounded,) = ins, outs
        with IRBuilder() as builder:
            with T.serial(0, count) as row_loop, T.serial(0, blocks) as loop, T.sblock("blocks"):
                flat, number = T.axis.spatial(count, row_loop), T.axis.spatial(blocks, loop)
                T.reads(rows[_whole(x.shape)])
                T.writes(rounded[_whole(shape)])
                row = unflatten_index(flat, leading)
                _emit_block(
                    lambda t: rows[(*row, number * block + t)],
                    lambda k, word: T.buffer_store(rounded, word, [*row, number, k]),
                    block,
                )
        return builder.get()

    # The block around an extern is the function's root; schedules look it up by that name.
    return te.extern([shape], [x], body, name="root", dtype=["int32"])


def _emit_block(element, store, block):
    """Round the numbers ``element(t)`` of a block; ``store(k, word)`` takes the result."""
    top = _emit_top(element, block)
    scale, inverse = T.sblock_alloc_buffer((1,)), T.sblock_alloc_buffer((1,))
    T.buffer_store(scale, top / tirx.const(_TOP, "float32"), [0])
    # Not 0, of which an infinite number would have no code.
    least = tirx.const(_LEAST_NORMAL, "float32")
    T.buffer_store(inverse, tirx.max(tirx.const(_TOP, "float32") / top, least), [0])
    codes, total = _emit_codes(lambda t: element(t) * inverse[0], block)
    words = block // BYTES
    with T.serial(0, words) as k:
        store(k, word_of(lambda at: codes[at], k, None, False))
    store(words, tirx.reinterpret("int32", scale[0]))
    store(words + 1, total)


def _emit_top(element, block):
    """The largest of a block without its sign."""
    tops = T.sblock_alloc_buffer((LANES,), "int32")
    with T.vectorized(0, LANES) as lane:
        T.buffer_store(tops, 0, [lane])
    with T.serial(0, block // LANES) as k, T.vectorized(0, LANES) as lane:
        # As integers, numbers without their sign have the same order, and NaN is above all.
        bits = tirx.reinterpret("int32", element(k * LANES + lane)) & 0x7FFFFFFF
        T.buffer_store(tops, tirx.max(tops[lane], bits), [lane])
    return tirx.reinterpret("float32", _folded(tirx.max, tops))


def _emit_codes(element, block):
    """The whole numbers next to those of a block, as int8, and their sum."""
    codes, sums = T.sblock_alloc_buffer((block,), "int8"), T.sblock_alloc_buffer((LANES,), "int32")
    low, high = (tirx.const(bound, "float32") for bound in (-_TOP, _TOP))
    with T.vectorized(0, LANES) as lane:
        T.buffer_store(sums, 0, [lane])
    with T.serial(0, block // LANES) as k, T.vectorized(0, LANES) as lane:
        code = nearest(element(k * LANES + lane), low, high).astype("int32")
        T.buffer_store(sums, sums[lane] + code, [lane])
        T.buffer_store(codes, code.astype("int8"), [k * LANES + lane])
    return codes, _folded(add, sums)


def _whole(shape):
    """Its region."""
    return tuple(slice(0, extent) for extent in shape)


def _folded(combine, buffer):
    """All lanes of ``buffer``, by pairs."""
    values = [buffer[lane] for lane in range(LANES)]
    while len(values) > 1:
        half = len(values) // 2
        values = [combine(a, b) for a, b in zip(values[:half], values[half:], strict=True)]
    return values[0]


def matmul_rounded_blocks(
    x: te.Tensor,
    words: te.Tensor,
    scales: te.Tensor,
    zeros: te.Tensor | None,
    columns: int,
    bits: int,
) -> te.Tensor:
    """``x`` of :func:`rounded_blocks` times ``(code - zero) * scale`` -> ``[..., columns]``.

    Args:
        words: of :func:`pack_code_words`.
        scales: ``[ceil(columns/tile), blocks, tile]``.
        zeros: of the same shape, of any type; None: the middle of the range.
    """
    *leading, _, width = x.shape
    count = prod(leading)
    tiles, blocks, tile = (int(d) for d in scales.shape)
    steps, parts = int(width) - 2, 8 // bits
    within, along = te.reduce_axis((0, steps), "within"), te.reduce_axis((0, blocks), "along")

    def of_row(row, *place):
        return x[(*unflatten_index(row, leading), *place)]

    def term(row, panel, part, column):
        place = part * steps + within
        word = words[panel, place // parts, column]
        if parts > 1:
            # Without a sign: TVM would make int64 of int32 that an index takes part in.
            down = tirx.reinterpret("uint32", word) >> ((place % parts) * bits).astype("uint32")
            word = tirx.reinterpret("int32", down & _repeated((1 << bits) - 1))
        return te.sum(dot(word, of_row(row, part, within)), axis=within)

    partial = te.compute((count, tiles, blocks, tile), term, "partial")

    def total(row, panel, column):
        value, sum_ = partial[row, panel, along, column], of_row(row, along, steps + 1)
        if zeros is None:
            value = (value - sum_ * (1 << (bits - 1))).astype("float32")
        else:
            zero = zeros[panel, along, column].astype("float32")
            value = value.astype("float32") - zero * sum_.astype("float32")
        scale = tirx.reinterpret("float32", of_row(row, along, steps))
        return te.sum(value * (scale * scales[panel, along, column]), axis=along)

    return untiled(te.compute((count, tiles, tile), total, "matmul"), leading, columns)


def _repeated(byte: int) -> tirx.Expr:
    """A word of four equal bytes."""
    return tirx.const(np.full(BYTES, byte, "uint8").view("<u4").item(), "uint32")
