"""Dropout with a generator that needs no state: the mask is a hash of the element's index."""

from tvm import te, tirx

from .random import random_share

__all__ = ["dropout", "packed_mask"]


def dropout(x, ratio, training, seed):
    """``x / (1 - ratio)`` where the mask is true, else 0; and the mask (bool), shapes of ``x``.

    ``ratio`` (float) and ``training`` (bool) are scalars; without training nothing is dropped.
    Equal seeds give equal masks.
    """

    def kept(*i):
        index = tirx.const(0, "int64")
        for k, extent in zip(i, x.shape, strict=True):
            index = index * extent + k
        share = random_share(index, seed)
        return tirx.any(tirx.Not(training()), share >= ratio().astype("float64"))

    mask = te.compute(x.shape, kept, "dropout_mask")

    def element(*i):
        share = tirx.const(1.0, "float32") - ratio().astype("float32")
        scaled = (x(*i).astype("float32") / share).astype(x.dtype)
        scaled = tirx.Select(training(), scaled, x(*i))
        return tirx.Select(mask(*i), scaled, tirx.const(0, x.dtype))

    return te.compute(x.shape, element, "dropout"), mask


def packed_mask(mask):
    """``mask[N]`` (bool) as bits of uint32 words, the first in the lowest: ``[ceil(N / 32)]``."""
    count = mask.shape[0]
    bit = te.reduce_axis((0, 32), "bit")

    def word(i):
        place = i * 32 + bit
        held = tirx.if_then_else(place < count, mask[tirx.min(place, count - 1)], False)
        one = tirx.shift_left(tirx.const(1, "uint32"), bit.astype("uint32"))
        return te.sum(tirx.Select(held, one, tirx.const(0, "uint32")), axis=bit)

    return te.compute((tirx.floordiv(count + 31, 32),), word, "packed_mask")
