"""Matrix products with weights of a few bits, which stay so in memory.

A word of 32 bits holds neighbours along the reduction, low bits first; a scale, and a zero point
where there are some, belong to a block of neighbours. Bits become floats in registers, and the
scale multiplies the sum of a block.
"""

from math import prod

import numpy as np
from tvm import te, tirx

from .flat_index import unflatten_index
from .matmul_packed import pack_columns, untiled

__all__ = ["codes_of", "matmul_blocks", "pack_codes", "pack_parameters"]

_WORD = 32


def codes_of(packed: np.ndarray, bits: int) -> np.ndarray:
    """The codes ``[..., n * 8 / bits]`` in bytes ``[..., n]``, low bits first."""
    shifts = np.arange(0, 8, bits, dtype="uint8")
    parts = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1)


def pack_codes(codes: np.ndarray, bits: int, tile: int) -> np.ndarray:
    """uint8 ``[N, K]`` -> int32 ``[ceil(N/tile), K * bits / 32, tile]``.

    Of signed codes: the middle of the range becomes 0.
    """
    count = _WORD // bits
    signed = codes ^ np.uint8(1 << (bits - 1))  # its first bit is a sign then
    parts = signed.reshape(len(codes), -1, count).astype("uint32")
    shifts = np.arange(0, _WORD, bits, dtype="uint32")
    words = np.bitwise_or.reduce(parts << shifts, axis=-1)
    return pack_columns(words.view("int32").T, tile)


def pack_parameters(parameters: np.ndarray, tile: int) -> np.ndarray:
    """``[N, blocks]``, a parameter per block -> ``[ceil(N/tile), blocks, tile]``."""
    return pack_columns(np.ascontiguousarray(parameters.T), tile)


def matmul_blocks(
    x: te.Tensor,
    words: te.Tensor,
    scales: te.Tensor,
    zeros: te.Tensor | None,
    columns: int,
    bits: int,
) -> te.Tensor:
    """``x[..., K]`` times ``(code - zero) * scale`` -> ``[..., columns]``, float32.

    Args:
        words: of :func:`pack_codes`.
        scales: ``[ceil(columns/tile), blocks, tile]``; the blocks divide K.
        zeros: of the same shape, less the middle of the range; None: 0.
    """
    *leading, k = x.shape
    count = prod(leading)
    tiles, blocks, tile = (int(d) for d in scales.shape)
    block, parts = int(k) // blocks, _WORD // bits
    within, along = te.reduce_axis((0, block), "within"), te.reduce_axis((0, blocks), "along")

    def weight(panel, part, step, column):
        place = part * block + step
        word = words[panel, place // parts, column]
        # The bits to the top of the word and back, which spreads the sign. Up without one: TVM
        # would make int64 of int32 that an index takes part in.
        up = ((_WORD - bits) - (step % parts) * bits).astype("uint32")
        top = tirx.reinterpret("int32", tirx.reinterpret("uint32", word) << up)
        value = (top >> tirx.const(_WORD - bits, "int32")).astype("float32")
        return value if zeros is None else value - zeros[panel, part, column]

    def term(row, panel, part, column):
        left = x[(*unflatten_index(row, leading), part * block + within)]
        return te.sum(left * weight(panel, part, within, column), axis=within)

    partial = te.compute((count, tiles, blocks, tile), term, "partial")

    def total(row, panel, column):
        sums = partial[row, panel, along, column] * scales[panel, along, column]
        return te.sum(sums, axis=along)

    return untiled(te.compute((count, tiles, tile), total, "matmul"), leading, columns)
