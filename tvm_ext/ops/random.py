"""Random tensors from a generator without state: each element is a hash of its place and a seed.

Equal seeds give equal tensors, on every target and in every run.
"""

from math import pi
from operator import mul

from tvm import te, tirx

from .arithmetic import wrapping
from .search import arg_extremum

__all__ = ["bernoulli", "multinomial", "normal", "random_share", "uniform"]


def uniform(shape, low, high, dtype, seed):
    """Even over ``[low, high)``."""

    def element(*i):
        return (low + (high - low) * random_share(_flat(i, shape), seed)).astype(dtype)

    return te.compute(shape, element, "random_uniform")


def normal(shape, mean, scale, dtype, seed):
    """Normal with ``mean`` and standard deviation ``scale``, by Box and Muller."""

    def element(*i):
        place = _flat(i, shape)
        radius = tirx.sqrt(-2.0 * tirx.log(random_share(place, seed)))
        turn = tirx.cos(2.0 * pi * random_share(place, seed + 1))
        return (mean + scale * radius * turn).astype(dtype)

    return te.compute(shape, element, "random_normal")


def bernoulli(x, dtype, seed):
    """1 with the probability ``x[...]``, else 0."""

    def element(*i):
        share = random_share(_flat(i, x.shape), seed)
        return (share < x(*i).astype("float64")).astype(dtype)

    return te.compute(x.shape, element, "bernoulli")


def multinomial(x, samples, dtype, seed):
    """``[B, samples]`` classes, drawn with probabilities proportional to ``exp(x[B, classes])``.

    The largest of the logarithms with Gumbel noise added is such a draw.
    """
    shape = (x.shape[0], samples, x.shape[1])

    def noisy(*i):
        share = random_share(_flat(i, shape), seed)
        return x(i[0], i[2]).astype("float64") - tirx.log(-tirx.log(share))

    drawn = arg_extremum(te.compute(shape, noisy, "noisy"), 2, False, largest=True, last=False)
    return te.compute(drawn.shape, lambda *i: drawn(*i).astype(dtype), "multinomial")


def random_share(place, seed):
    """A float64 above 0 and below 1 that depends on the integers ``place`` and ``seed``."""
    start = _word(_mixed(seed % (1 << 32)) ^ _mixed(seed >> 32))
    # Unsigned: TVM makes indices int32 where they fit, and then refuses to shift them so far.
    high = (place.astype("uint64") >> tirx.const(32, "uint64")).astype("uint32")
    hashed = _hashed(place.astype("uint32") ^ start) ^ _hashed(high + _word(0x9E3779B9))
    return (hashed.astype("float64") + 0.5) * tirx.const(2.0**-32, "float64")


def _hashed(x):
    """A permutation of the 32-bit words that leaves no bit correlated with another (lowbias32)."""
    x = wrapping(mul, x ^ (x >> _word(16)), _word(0x7FEB352D))
    x = wrapping(mul, x ^ (x >> _word(15)), _word(0x846CA68B))
    return x ^ (x >> _word(16))


def _mixed(seed):
    """The same permutation, of a Python int."""
    x = ((seed ^ (seed >> 16)) * 0x7FEB352D) % (1 << 32)
    x = ((x ^ (x >> 15)) * 0x846CA68B) % (1 << 32)
    return x ^ (x >> 16)


def _flat(index, shape):
    flat = tirx.const(0, "int64")
    for i, extent in zip(index, shape, strict=True):
        flat = flat * extent + i
    return flat


def _word(value):
    return tirx.const(value, "uint32")
