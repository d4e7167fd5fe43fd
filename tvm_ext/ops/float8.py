"""float8 <-> float32, exact.

The compiler's own conversion knows neither subnormal codes nor NaN: it reads code 0 of e4m3fn
as 2**-7. Here codes are taken apart as integers. Rounding is to nearest even.
"""

from dataclasses import dataclass

import numpy as np
from tvm import tirx

__all__ = ["FORMATS", "Format", "decode", "encode", "from_float8", "to_float8"]


@dataclass(frozen=True)
class Format:
    """Mantissa bits, exponent bias, the largest finite value, and the codes beyond it."""

    mantissa: int
    bias: int
    largest: float
    infinity: int | None  # code of +inf
    nan: int
    negative_zero: bool = True  # "fnuz" formats have none: its code is NaN


FORMATS = {
    "float8_e4m3fn": Format(3, 7, 448.0, None, 0x7F),
    "float8_e4m3fnuz": Format(3, 8, 240.0, None, 0x80, negative_zero=False),
    "float8_e5m2": Format(2, 15, 57344.0, 0x7C, 0x7F),
    "float8_e5m2fnuz": Format(2, 16, 57344.0, None, 0x80, negative_zero=False),
}


def from_float8(x: tirx.Expr, dtype: str) -> tirx.Expr:
    """The float32 value of a float8 scalar ``x`` of type ``dtype``."""
    return decode(tirx.reinterpret("uint8", x).astype("uint32"), FORMATS[dtype])


def to_float8(x: tirx.Expr, dtype: str, saturate: bool) -> tirx.Expr:
    """A float32 scalar ``x`` as float8 ``dtype``; see :func:`encode`."""
    code = encode(x, FORMATS[dtype], saturate)
    return tirx.reinterpret(dtype, code.astype("uint8"))


def decode(code: tirx.Expr, form: Format) -> tirx.Expr:
    """The float32 value of a code (uint32), its sign in bit 7."""
    magnitude = code & _word(0x7F)
    # The code's fields, in the place of float32's own: off by the difference of the biases.
    value = _float(magnitude << _word(23 - form.mantissa)) * _power(127 - form.bias)
    negative, nan = code >= _word(0x80), _single(float("nan"))
    value = tirx.Select(negative, _single(-1.0) * value, value)
    if not form.negative_zero:
        return tirx.Select(code == _word(form.nan), nan, value)
    if form.infinity is None:
        return tirx.Select(magnitude > _word(_largest_code(form)), nan, value)
    infinity = _word(form.infinity)
    infinite = tirx.Select(negative, _single(float("-inf")), _single(float("inf")))
    beyond = tirx.Select(magnitude == infinity, infinite, nan)
    return tirx.Select(magnitude >= infinity, beyond, value)


def encode(x: tirx.Expr, form: Format, saturate: bool) -> tirx.Expr:
    """The code (uint32) of a float32 scalar ``x``.

    What exceeds the largest value becomes that value, or, not saturating, infinity where the
    format has one and NaN elsewhere.
    """
    bits = tirx.reinterpret("uint32", x)
    sign = (bits >> _word(24)) & _word(0x80)
    bits = bits & _word(0x7FFFFFFF)

    # The distance of neighbours: constant below the least normal exponent.
    exponent = tirx.max(bits >> _word(23), _word(128 - form.bias))
    step = _float((exponent - _word(form.mantissa)) << _word(23))
    rounded = tirx.nearbyint(_float(bits) / step) * step
    code = _code(rounded, form)
    beyond = form.nan if form.infinity is None else form.infinity
    over = _word(_largest_code(form) if saturate else beyond)
    code = tirx.Select(rounded > _single(form.largest), over, code)
    if not form.negative_zero:
        sign = tirx.Select(code == _word(0), _word(0), sign)
    return tirx.Select(tirx.isnan(x), _word(form.nan), code | sign)


def _code(magnitude: tirx.Expr, form: Format) -> tirx.Expr:
    """The code of a positive value that the format has."""
    scaled = tirx.reinterpret("uint32", magnitude * _power(form.bias - 127))
    return scaled >> _word(23 - form.mantissa)


def _largest_code(form: Format) -> int:
    # As a constant of its own: CUDA C cannot take the address of a reinterpreted constant.
    scaled = np.float32(form.largest * 2.0 ** (form.bias - 127))
    return int(scaled.view("uint32")) >> (23 - form.mantissa)


# Unsigned words: kernels with symbolic dims widen int32 arithmetic to int64, as index arithmetic.
def _word(value: int) -> tirx.Expr:
    return tirx.const(value, "uint32")


def _single(value: float) -> tirx.Expr:
    return tirx.const(value, "float32")


def _float(bits: tirx.Expr) -> tirx.Expr:
    return tirx.reinterpret("float32", bits)


def _power(n: int) -> tirx.Expr:
    return _single(2.0**n)
