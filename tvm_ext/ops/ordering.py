"""Numbers as integers in the same order.

A float compare drops NaN, and a float maximum cannot be reassociated, so it is not vectorised.
The bits of a float, with those below the sign flipped for negative numbers, sort as the number
does; NaN is put at one end. Integer maxima are exact, and vectorise.
"""

import numpy as np
from tvm import tirx

from .elementwise import dtype_of, float_compute

__all__ = ["constant_key", "from_key", "key_dtype", "to_key", "total_key"]

_SIGN_SHIFT = {"int32": 31, "int64": 63}


def key_dtype(dtype: str) -> str:
    """The integer type that sorts as ``dtype`` does."""
    if dtype == "bool":
        return "uint8"
    return {"float32": "int32", "float64": "int64"}.get(float_compute(dtype), dtype)


def to_key(x: tirx.Expr, nan_is_largest: bool = True) -> tirx.Expr:
    """The integer that sorts as ``x``; every NaN is the largest (or the smallest) of all."""
    dtype = dtype_of(x)
    if "float" not in dtype:
        return x.astype(key_dtype(dtype))
    x = x.astype(float_compute(dtype))
    nan = float("nan") if nan_is_largest else -float("nan")
    key = _flipped(tirx.reinterpret(key_dtype(dtype), x))
    return tirx.Select(tirx.isnan(x), constant_key(nan, dtype_of(x)), key)


def total_key(x: tirx.Expr, nan_is_largest: bool = True) -> tirx.Expr:
    """:func:`to_key`, and zeros of both signs are equal."""
    if "float" in dtype_of(x):
        zero = tirx.const(0, dtype_of(x))
        x = tirx.Select(x.equal(zero), zero, x)
    return to_key(x, nan_is_largest=nan_is_largest)


def from_key(key: tirx.Expr, dtype: str) -> tirx.Expr:
    """The number of type ``dtype`` whose key this is."""
    if "float" not in dtype:
        return key.astype(dtype)
    return tirx.reinterpret(float_compute(dtype), _flipped(key)).astype(dtype)


def _flipped(bits: tirx.Expr) -> tirx.Expr:
    """Its own inverse: the bits below the sign are inverted where the sign is set."""
    dtype = dtype_of(bits)
    sign = tirx.shift_right(bits, tirx.const(_SIGN_SHIFT[dtype], dtype))
    largest = tirx.const((1 << _SIGN_SHIFT[dtype]) - 1, dtype)
    return tirx.bitwise_xor(bits, tirx.bitwise_and(sign, largest))


def constant_key(value: float, dtype: str) -> tirx.Expr:
    """The key of a float of type ``dtype``, float32 or float64."""
    # The bits are taken here: as a reinterpreted constant, CUDA C would need its address.
    bits = np.array(value, dtype).view(key_dtype(dtype))
    return _flipped(tirx.const(int(bits), key_dtype(dtype)))
