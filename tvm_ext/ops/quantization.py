"""Linear quantisation.

Scales and zero points are scalars, vectors along ``axis``, or have the rank of the data with one
element per block of ``block`` along ``axis``.
"""

from tvm import te, tirx

from . import narrow
from .float8 import FORMATS, from_float8, to_float8

__all__ = ["dequantize_linear", "dynamic_quantize_linear", "quantize_linear", "requantize"]


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
        shift = tirx.const(0.0, "float32")
        if zero is not None:
            shift = _parameter(zero, i, axis, block).astype("float32")
        held = narrow.STORAGE.get(dtype, dtype)
        return _saturated(tirx.nearbyint(quotient) + shift, bounds).astype(held)

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


def requantize(total, left_scale, right_scale, y_scale, y_zero, dtype, bounds):
    """int32 sums of products back to ``dtype``: scales broadcast against ``total``."""

    def element(*i):
        factor = _broadcast(left_scale, i) * _broadcast(right_scale, i) / _broadcast(y_scale, i)
        value = tirx.nearbyint(total(*i).astype("float32") * factor)
        return _saturated(value + _broadcast(y_zero, i), bounds).astype(dtype)

    return te.compute(total.shape, element, "requantize")


def dynamic_quantize_linear(x):
    """``x`` as uint8 with the scale (scalar) and zero point (scalar) that fit its range."""
    zero, top = tirx.const(0.0, "float32"), tirx.const(255.0, "float32")

    def extreme(reduce, name):
        axes = [te.reduce_axis((0, dim), f"r{k}") for k, dim in enumerate(x.shape)]
        return te.compute((1,), lambda _: reduce(x(*axes), axis=axes), name)

    low, high = extreme(te.min, "low"), extreme(te.max, "high")

    def span():
        # The range contains 0, so that 0 is exact.
        width = tirx.max(high[0], zero) - tirx.min(low[0], zero)
        return tirx.Select(width == zero, tirx.const(1.0, "float32"), width / top)

    scale = te.compute((), lambda *_: span(), "scale")
    start = te.compute(
        (),
        lambda *_: _saturated(tirx.nearbyint(-tirx.min(low[0], zero) / scale()), (0, 255)),
        "zero_point_exact",
    )

    def element(*i):
        return _saturated(tirx.nearbyint(x(*i) / scale()) + start(), (0, 255)).astype("uint8")

    y = te.compute(x.shape, element, "dynamic_quantize_linear")
    return y, scale, te.compute((), lambda *_: start().astype("uint8"), "zero_point")


def _saturated(value, bounds):
    """``value`` within ``bounds``; NaN stays NaN."""
    low, high = (tirx.const(float(bound), "float32") for bound in bounds)
    return tirx.Select(value < low, low, tirx.Select(value > high, high, value))


def _parameter(tensor, index, axis, block):
    """The scale or zero point of one element."""
    if len(tensor.shape) == 0:
        return tensor()
    if block:
        return tensor(*index[:axis], tirx.floordiv(index[axis], block), *index[axis + 1 :])
    return tensor(_clamped(index[axis], tensor.shape[0]))


def _broadcast(tensor, index):
    """The element of a tensor that broadcasts, as float32."""
    index = index[len(index) - len(tensor.shape) :]
    at = [_clamped(i, dim) for i, dim in zip(index, tensor.shape, strict=True)]
    return tensor(*at).astype("float32")


def _clamped(i, dim):
    return 0 if isinstance(dim, tirx.IntImm) and int(dim) == 1 else i
