"""Linear quantisation.

Scales and zero points are scalars, vectors along ``axis``, or have the rank of the data with one
element per block of ``block`` along ``axis``.
"""

import numpy as np
from tvm import te, tirx

from . import narrow
from .float8 import FORMATS, from_float8, to_float8

__all__ = [
    "CODES",
    "dequantize_linear",
    "dynamic_parameters",
    "extremes",
    "nearest",
    "quantize_linear",
    "requantize",
]

#: The attribute of a kernel that makes such integers of float32, its scale 1, or the reverse.
CODES = "codes"


def quantize_linear(x, scale, zero, axis, block, dtype, bounds, precision):
    """``saturate(round(x / scale) + zero)`` as ``dtype``, whose range is ``bounds``.

    ``scale`` None is 1. The quotient is rounded to ``precision`` first. For floats, ``bounds``
    None means overflow to infinity or NaN, and ``zero`` is 0.
    """

    def element(*i):
        quotient = x(*i).astype("float32")
        if scale is not None:
            quotient = quotient / _parameter(scale, i, axis, block).astype("float32")
        quotient = quotient.astype(precision).astype("float32")
        if dtype in FORMATS:
            return to_float8(quotient, dtype, saturate=bounds is not None)
        if dtype in narrow.STORAGE and dtype not in narrow.INTEGERS:
            return narrow.encode(quotient, dtype)
        shift = tirx.const(0, "int32")
        if zero is not None:
            shift = _parameter(zero, i, axis, block).astype("int32")
        return _rounded(quotient, shift, bounds).astype(narrow.STORAGE.get(dtype, dtype))

    return te.compute(x.shape, element, "quantize_linear")


def dequantize_linear(x, scale, zero, axis, block, code, dtype):
    """``(x - zero) * scale`` of elements of type ``code`` as ``dtype``, computed in float32."""

    def number(value):
        if code in FORMATS:
            return from_float8(value, code)
        return (narrow.decode(value, code) if code in narrow.STORAGE else value).astype("float32")

    def element(*i):
        value, factor = number(x(*i)), _parameter(scale, i, axis, block).astype("float32")
        if zero is not None and "float" not in code:
            value = value - _parameter(zero, i, axis, block).astype("float32")
        return (value * factor).astype(dtype)

    return te.compute(x.shape, element, "dequantize_linear")


def requantize(total, factor, y_zero, dtype, bounds):
    """int32 sums of products back to ``dtype``; ``factor`` broadcasts against ``total``."""

    def element(*i):
        value = total(*i).astype("float32") * _broadcast(factor, i)
        return _rounded(value, _broadcast(y_zero, i, "int32"), bounds).astype(dtype)

    return te.compute(total.shape, element, "requantize")


def extremes(x):
    """The least and the greatest element of ``x``, each ``[1]``.

    Those of each row first: a row is read from memory once for both.
    """
    *rows, extent = [*x.shape] or [1]
    r = te.reduce_axis((0, extent), "r")

    def largest(*i):
        value = x(*i[:-1], r) if len(x.shape) else x()
        sign = tirx.Select(i[-1] == 0, tirx.const(-1.0, x.dtype), tirx.const(1.0, x.dtype))
        return te.max(value * sign, axis=r)

    of_rows = te.compute((*rows, 2), largest, "row_extremes")

    def extreme(which, name):
        axes = [te.reduce_axis((0, dim), f"r{k}") for k, dim in enumerate(rows)]
        found = of_rows(*axes, which)
        best = te.compute((1,), lambda _: te.max(found, axis=axes) if axes else found, "extreme")
        return te.compute((1,), lambda i: best[i] * (1.0 if which else -1.0), name)

    return extreme(0, "low"), extreme(1, "high")


def dynamic_parameters(low, high):
    """Scale and uint8 zero point (scalars) for numbers from ``low`` to ``high``."""
    start, step = code_range(low[0], high[0])
    scale = te.compute((), lambda *_: step, "scale")
    least = tirx.const(0, "int32")
    return scale, te.compute(
        (), lambda *_: _rounded(-start / scale(), least, (0, 255)).astype("uint8"), "zero_point"
    )


def code_range(low, high):
    """The number that the least code stands for, and the scale, of numbers from ``low`` to
    ``high``."""
    zero, top = tirx.const(0.0, "float32"), tirx.const(255.0, "float32")
    # The range contains 0, so that 0 is exact.
    start = tirx.min(low, zero)
    width = tirx.max(high, zero) - start
    return start, tirx.Select(width == zero, tirx.const(1.0, "float32"), width / top)


#: Added to a float32 of less than 2**22 this leaves its nearest integer, ties to even, in the low
#: bits; the lowest 22 of its own are 0.
_INTEGER_BITS = 1.5 * 2**23


def nearest(value, low, high):
    """The whole number, as float32, next to a float32 ``value`` between two of up to 16 bits.

    Ties go to even; NaN becomes ``low``.
    """
    # A difference of floats TVM would take for that of numbers without rounding.
    value = tirx.min(tirx.max(value, low), high) + tirx.const(_INTEGER_BITS, "float32")
    whole = tirx.reinterpret("int32", value) - np.float32(_INTEGER_BITS).view("int32").item()
    return whole.astype("float32")


def _rounded(value, zero, bounds):
    """``saturate(round(value) + zero)``, whose low bits alone count; ``bounds`` are of 16 bits.

    Saturated first, which is exact as well: what is left fits the low bits. NaN becomes a bound.
    """
    low, high = ((tirx.const(bound, "int32") - zero).astype("float32") for bound in bounds)
    value = tirx.min(tirx.max(value, low), high)
    return tirx.reinterpret("int32", value + tirx.const(_INTEGER_BITS, "float32")) + zero


def _parameter(tensor, index, axis, block):
    """The scale or zero point of one element."""
    if not tensor.shape or not index:  # a number, too, may have a scale of one dim
        return tensor(*[0] * len(tensor.shape))
    if block:
        return tensor(*index[:axis], tirx.floordiv(index[axis], block), *index[axis + 1 :])
    return tensor(_clamped(index[axis], tensor.shape[0]))


def _broadcast(tensor, index, dtype="float32"):
    """The element of a tensor that broadcasts, as ``dtype``."""
    index = index[len(index) - len(tensor.shape) :]
    at = [_clamped(i, dim) for i, dim in zip(index, tensor.shape, strict=True)]
    return tensor(*at).astype(dtype)


def _clamped(i, dim):
    """``i`` along an axis that broadcasts where its ``dim`` is 1, which may show at run time."""
    if isinstance(dim, tirx.IntImm):
        return 0 if int(dim) == 1 else i
    return tirx.Select(dim == 1, tirx.const(0, dim.ty.dtype), i)
