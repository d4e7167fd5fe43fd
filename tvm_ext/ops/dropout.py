"""Dropout with a generator that needs no state: the mask is a hash of the element's index."""

from tvm import te, tirx

from .random import random_share

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
        share = random_share(index, seed)
        return tirx.any(tirx.Not(training()), share >= ratio().astype("float64"))

    mask = te.compute(x.shape, kept, "dropout_mask")

    def element(*i):
        share = tirx.const(1.0, "float32") - ratio().astype("float32")
        scaled = (x(*i).astype("float32") / share).astype(x.dtype)
        scaled = tirx.Select(training(), scaled, x(*i))
        return tirx.Select(mask(*i), scaled, tirx.const(0, x.dtype))

    return te.compute(x.shape, element, "dropout"), mask
