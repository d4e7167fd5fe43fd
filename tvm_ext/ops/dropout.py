"""Dropout with a generator that needs no state: the mask is a hash of the element's index."""

from tvm import te, tirx

__all__ = ["dropout"]


def dropout(x, ratio, training, seed):
    """``x / (1 - ratio)`` where the mask is true, else 0; and the mask (bool), shapes of ``x``.

    ``ratio`` (float) and ``training`` (bool) are scalars; without training nothing is dropped.
    Equal seeds give equal masks.
    """

    def kept(*i):
        index = tirx.const(0, "int64")
        for k, extent in zip(i, x.shape, strict=True):
            index = index * extent + k
        # Reinterpreted: the compiler would bound an index, and knows no overflow.
        word = tirx.reinterpret("uint64", index).astype("uint32")
        uniform = (_hashed(word, seed) >> _word(8)).astype("float32")
        share = uniform * tirx.const(2.0**-24, "float32")
        return tirx.any(tirx.Not(training()), share >= ratio().astype("float32"))

    mask = te.compute(x.shape, kept, "dropout_mask")

    def element(*i):
        share = tirx.const(1.0, "float32") - ratio().astype("float32")
        scaled = (x(*i).astype("float32") / share).astype(x.dtype)
        scaled = tirx.Select(training(), scaled, x(*i))
        return tirx.Select(mask(*i), scaled, tirx.const(0, x.dtype))

    return te.compute(x.shape, element, "dropout"), mask


def _hashed(index, seed):
    """The finaliser of MurmurHash3 over an index mixed with the seed (uint32)."""
    h = index * _word(0x9E3779B1) + _word(seed * 0x85EBCA77 % 2**32)
    h = (h ^ (h >> _word(16))) * _word(0x85EBCA6B)
    h = (h ^ (h >> _word(13))) * _word(0xC2B2AE35)
    return h ^ (h >> _word(16))


def _word(value):
    return tirx.const(value, "uint32")
