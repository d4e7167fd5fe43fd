"""Transcendental functions as polynomials, so that LLVM vectorises them.

The stock lowering calls libm once per element, and its tanh and atanh lose all relative
accuracy near 0. Each function here maps one scalar expression to another. float32 is computed
by polynomials without a branch, within the stated error (in ulp, over all finite arguments,
against float64; with fused multiply-add); NaN, infinities and subnormal results are as IEEE
says. float64 goes to libm, but for tanh and e**x - 1 of negative
numbers. The argument reductions rely on the order of operations: do not compile them with
reassociation.

The float32 polynomials are minimax fits on the reduced range of each function, in the forms that
N. Juffa published for single precision.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import factorial

import numpy as np
from tvm import tirx

from .formula import formula, once

__all__ = [
    "acos",
    "asin",
    "atan",
    "atanh",
    "cos",
    "erf",
    "exp",
    "exp_nonpositive",
    "expm1_negative",
    "gelu",
    "libm",
    "log",
    "log1p_positive",
    "sigmoid",
    "sin",
    "tan",
    "tanh",
]

LN2 = 0.693147182
LN2_HIGH, LN2_LOW = 6.93145752e-1, 1.42860677e-6  # n * LN2_HIGH is exact for |n| < 2**8
EXPM1 = (1.97350979e-4, 1.39309070e-3, 8.33343994e-3, 4.16668020e-2, 1.66666716e-1, 4.99999970e-1)
# The same of float64: the Taylor series, whose next term is below a tenth of an ulp.
LN2_HIGH_64, LN2_LOW_64 = 6.93147180369123816490e-1, 1.90821492927058770002e-10
EXPM1_64 = tuple(1 / factorial(k) for k in range(13, 1, -1))
# Added to a float of a smaller magnitude, this leaves the nearest integer in the low bits.
INTEGERS = 1.5 * 2.0**23
# e**r and 2**r without the first terms: 1, or 1 and r.
EXP = (1.38145836e-3, 8.36872397e-3, 4.16683887e-2, 1.66665206e-1, 4.99999934e-1)
EXP2 = (1.53211222e-4, 1.33901846e-3, 9.61851846e-3, 5.55036217e-2, 2.40226477e-1, 6.93147182e-1)
# log2(erfc(x / sqrt(2))) / x for x in [0, 9].
LOG_TAIL = (2.30334862e-9, -8.81339943e-8, 1.48925960e-6, -1.45214344e-5, 8.77251005e-5,
            -2.98770552e-4, 1.23587479e-5, 6.95521478e-3, -5.24582134e-2, -4.59212750e-1,
            -1.15110528)  # fmt: skip
LOG1P_ODD = (0.140869141, 0.139814854, 0.200120345)
LOG1P_EVEN = (-0.130310059, -0.121483512, -0.166846126, -0.249996200)
ERF_SMALL = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1,
             1.28379166e-1)  # fmt: skip
ERF_LARGE = (-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1,
             -6.34846687e-1, -1.28717512e-1)  # fmt: skip

SIN = 2.86567956e-6, -1.98559923e-4, 8.33338592e-3, -1.66666672e-1
COS = 2.44677067e-5, -1.38877297e-3, 4.16666567e-2, -0.5, 1.0
ATAN = (2.78569828e-3, -1.58660226e-2, 4.24722321e-2, -7.49753043e-2, 1.06448799e-1,
        -1.42070308e-1, 1.99934542e-1, -3.33331466e-1)  # fmt: skip
# 2 / pi in parts of 24 bits: the product of one and a float32 is exact in float64.
TWO_OVER_PI = 0xA2F983, 0x6E4E44, 0x1529FC, 0x2757D1, 0xF534DD, 0xC0DB62, 0x95993C, 0x439041
_PART_BITS = 24
# The product of a later part and any float32 is below 1.
_WHOLE_PARTS = 6

_by_libm: ContextVar[bool] = ContextVar("by_libm", default=False)


@contextmanager
def libm() -> Iterator[None]:
    """Inside, float32 goes to libm too: for programs that people read."""
    token = _by_libm.set(True)
    try:
        yield
    finally:
        _by_libm.reset(token)


@formula
def exp(x: tirx.Expr) -> tirx.Expr:
    """e**x, 1 ulp."""
    if not _by_polynomial(x):
        return tirx.exp(x)
    x = once(x)
    shifted, p = _reduced_expm1(tirx.Select(x > _f32(89.0), _f32(89.0), _at_least(x, -104.0)))
    # Two factors: 2**n alone overflows for n = 128 and underflows for subnormal results.
    bits = once(_as_int(shifted))
    half = once(tirx.shift_right(bits, tirx.const(1, "int32")))
    scale = once(_power_of_two(half))
    return (scale * p + scale) * _power_of_two(bits - half)


@formula
def exp_nonpositive(x: tirx.Expr) -> tirx.Expr:
    """e**x for x <= 0, 1 ulp; below -87 it is 0, where subnormal numbers are near."""
    if not _by_polynomial(x):
        return tirx.exp(x)
    x = once(x)
    n, scale = _rounded(x * 1.442695041)
    r = once(x - n * LN2_HIGH - n * LN2_LOW)
    p = once(_horner(EXPM1, r) * (r * r) + r)
    return tirx.Select(x < _f32(-87.0), _f32(0.0), scale * p + scale)


@formula
def expm1_negative(x: tirx.Expr) -> tirx.Expr:
    """e**x - 1 for x <= 0, 1 ulp; of float64 2 ulp."""
    if _is_double(x):
        return _expm1_negative_64(x)
    if not _by_polynomial(x):
        return _libm("expm1", x)
    shifted, p = _reduced_expm1(_at_least(once(x), -40.0))
    scale = once(_power_of_two(_as_int(shifted)))
    return scale * p + (scale - 1.0)


@formula
def log(x: tirx.Expr) -> tirx.Expr:
    """The natural logarithm, 1 ulp; -inf at 0, NaN below."""
    if not _by_polynomial(x):
        return tirx.log(x)
    x = once(x)
    is_subnormal = x < _f32(1.17549435e-38)
    normal = once(tirx.Select(is_subnormal, x * _f32(2.0**23), x))
    exponent = once(_exponent_above(normal, 2 / 3))
    mantissa = _as_float(_as_int(normal) - exponent)
    n = _exponent_value(exponent) + tirx.Select(is_subnormal, _f32(-23.0), _f32(0.0))
    result = n * LN2 + _log1p_reduced(mantissa - 1.0)
    result = tirx.Select(x < _infinity(), result, x)  # infinity and NaN
    singular = tirx.Select(x < 0.0, _f32(float("nan")), -_infinity())
    return tirx.Select(x <= 0.0, singular, result)


@formula
def log1p_positive(x: tirx.Expr) -> tirx.Expr:
    """log(1 + x) for x >= 0, 2 ulp."""
    if not _by_polynomial(x):
        return _libm("log1p", x)
    x = once(x)
    exponent = once(_exponent_above(x + 1.0, 2 / 3))
    # 1 + m = (1 + x) * 2**-n, without rounding x + 1.
    inverse = once(_as_float(_bits_of(4.0) - exponent) * 0.25)
    m = x * inverse + (inverse - 1.0)
    result = _exponent_value(exponent) * LN2 + _log1p_reduced(m)
    return tirx.Select(x < _infinity(), result, x)


@formula
def tanh(x: tirx.Expr) -> tirx.Expr:
    """Hyperbolic tangent, 3 ulp."""
    if not _by_polynomial(x) and not _is_double(x):
        return _libm("tanh", x)
    x = once(x)
    t = once(expm1_negative(_magnitude(x) * -2.0))
    return _with_sign(_magnitude(t) / (t + 2.0), x)


@formula
def atanh(x: tirx.Expr) -> tirx.Expr:
    """Inverse hyperbolic tangent, 3 ulp; NaN outside [-1, 1]."""
    if not _by_polynomial(x):
        return _libm("atanh", x)
    x = once(x)
    magnitude = once(_magnitude(x))
    inside = _with_sign(log1p_positive(magnitude * 2.0 / (1.0 - magnitude)) * 0.5, x)
    return tirx.Select(magnitude <= 1.0, inside, _f32(float("nan")))


@formula
def sigmoid(x: tirx.Expr) -> tirx.Expr:
    """1 / (1 + e**-x), 3 ulp, also of the smaller tail; below -87 it is 0."""
    zero, one = tirx.const(0.0, x.ty), tirx.const(1.0, x.ty)
    if not _by_polynomial(x):
        return one / (one + tirx.exp(zero - x))
    x = once(x)
    y = once(tirx.Select(x > _f32(87.0), _f32(87.0), x))
    n, scale = _rounded(y * -1.442695041)
    r = once(n * -LN2_HIGH - y - n * LN2_LOW)
    power = scale * _horner((*EXP, 1.0, 1.0), r)
    return tirx.Select(x < _f32(-87.0), zero, one / (power + 1.0))


@formula
def gelu(x: tirx.Expr) -> tirx.Expr:
    """x (1 + erf(x / sqrt(2))) / 2, 3 ulp above -1, within 2**-24 below; below -9 it is 0.

    max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2: nothing cancels, and one polynomial serves all x.
    """
    if not _by_polynomial(x):
        return x * 0.5 * (erf(x * 0.7071067811865476) + 1.0)
    x = once(x)
    magnitude = once(_magnitude(x))
    part = once(tirx.Select(magnitude > _f32(9.0), _f32(0.0), magnitude))
    logarithm = once(_even_odd(LOG_TAIL, part) * part - 1.0)
    n, scale = _rounded(logarithm)
    tail = scale * _horner((*EXP2, 1.0), once(logarithm - n))
    # x + |x| is 0 below 0, and NaN at -inf, as -inf (1 - 1) is.
    return tirx.Select(x < _f32(0.0), x + magnitude, x) - part * tail


@formula
def erf(x: tirx.Expr) -> tirx.Expr:
    """The error function, 1 ulp."""
    if not _by_polynomial(x):
        return tirx.erf(x)
    x = once(x)
    magnitude, square = once(_magnitude(x)), once(x * x)
    small = _horner(ERF_SMALL, square) * x + x
    # Beyond 4 the polynomial is no fit, and erf is 1 to the last bit; before, it is negative.
    tail = 1.0 - exp_nonpositive(_horner(ERF_LARGE, magnitude) * magnitude - magnitude)
    tail = _with_sign(tirx.Select(magnitude < 4.0, tail, _f32(1.0)), x)
    return _nan_or(x, tirx.Select(magnitude > 0.927734375, tail, small))


@formula
def sin(x: tirx.Expr) -> tirx.Expr:
    """Sine, 2 ulp, of any finite number."""
    if not _by_polynomial(x):
        return tirx.sin(x)
    x = once(x)
    quarter, sine, cosine = _in_quarter(x)
    value = once(tirx.Select(_is_odd(quarter), cosine, sine))
    is_negative = tirx.any(quarter < _f32(-0.5), quarter > _f32(1.5))
    return _tiny_or(x, tirx.Select(is_negative, -value, value))


@formula
def cos(x: tirx.Expr) -> tirx.Expr:
    """Cosine, 2 ulp, of any finite number."""
    if not _by_polynomial(x):
        return tirx.cos(x)
    quarter, sine, cosine = _in_quarter(once(x))
    value = once(tirx.Select(_is_odd(quarter), sine, cosine))
    is_negative = tirx.any(quarter < _f32(-1.5), quarter > _f32(0.5))
    return tirx.Select(is_negative, -value, value)


@formula
def tan(x: tirx.Expr) -> tirx.Expr:
    """Tangent, 3 ulp, of any finite number."""
    if not _by_polynomial(x):
        return tirx.tan(x)
    x = once(x)
    quarter, sine, cosine = _in_quarter(x)
    odd = _is_odd(quarter)
    return _tiny_or(x, tirx.Select(odd, -cosine, sine) / tirx.Select(odd, sine, cosine))


@formula
def atan(x: tirx.Expr) -> tirx.Expr:
    """Inverse tangent, 2 ulp."""
    if not _by_polynomial(x):
        return tirx.atan(x)
    x = once(x)
    magnitude = once(_magnitude(x))
    is_large = magnitude > _f32(1.0)
    t = once(tirx.Select(is_large, 1.0 / magnitude, magnitude))
    square = once(t * t)
    angle = once(_horner(ATAN, square) * square * t + t)
    # pi / 2 in two parts
    return _with_sign(tirx.Select(is_large, 1.57079637 - (angle + 4.37113883e-8), angle), x)


@formula
def asin(x: tirx.Expr) -> tirx.Expr:
    """Inverse sine, 3 ulp; NaN outside [-1, 1]."""
    if not _by_polynomial(x):
        return tirx.asin(x)
    x = once(x)
    return atan(x / tirx.sqrt((1.0 - x) * (1.0 + x)))


@formula
def acos(x: tirx.Expr) -> tirx.Expr:
    """Inverse cosine, 3 ulp; NaN outside [-1, 1]."""
    if not _by_polynomial(x):
        return tirx.acos(x)
    x = once(x)
    return atan(tirx.sqrt((1.0 - x) / (1.0 + x))) * 2.0


def _in_quarter(x: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
    """q, sin(r) and cos(r), where x = q pi / 2 + r up to whole turns, |r| <= pi / 4, |q| <= 2.

    Of each partial product with 2 / pi only the rest of whole turns counts, and is exact; so is
    their sum where it nearly vanishes. NaN where ``x`` is not finite.
    """
    wide = once(x.astype("float64"))
    parts = []
    for k, bits in enumerate(TWO_OVER_PI):
        part = once(wide * tirx.const(bits * 2.0 ** (-_PART_BITS * (k + 1)), "float64"))
        parts.append(_modulo_4(part) if k < _WHOLE_PARTS else part)
    total = parts[-1]
    for part in reversed(parts[:-1]):
        total = total + part
    whole = once(tirx.nearbyint(total))
    rest = parts[0] - whole
    for part in parts[1:]:
        rest = rest + part
    r = once((rest * tirx.const(1.5707963267948966, "float64")).astype("float32"))
    square = once(r * r)
    sine, cosine = _horner(SIN, square) * (r * square) + r, _horner(COS, square)
    return once(_modulo_4(whole).astype("float32")), once(sine), once(cosine)


def _modulo_4(x: tirx.Expr) -> tirx.Expr:
    """``x``, a float64, less the multiple of 4 that is nearest."""
    return once(x - tirx.nearbyint(x * 0.25) * 4.0)


def _is_odd(quarter: tirx.Expr) -> tirx.Expr:
    return tirx.any(quarter.equal(_f32(1.0)), quarter.equal(_f32(-1.0)))


def _tiny_or(x: tirx.Expr, result: tirx.Expr) -> tirx.Expr:
    """``result``, or ``x`` itself where that is so small that they are equal: it has a sign."""
    return tirx.Select(_magnitude(x) < _f32(2.0**-13), x, result)


def _rounded(x: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
    """The integer n nearest to ``x``, and 2**n, for -127 < n < 128.

    No conversion; NaN stays.
    """
    shifted = once(x + INTEGERS)
    return once(shifted - INTEGERS), once(_power_of_two(_as_int(shifted)))


def _reduced_expm1(x: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
    """n + ``INTEGERS`` and e**r - 1, where x = n ln 2 + r and |r| <= (ln 2) / 2; of NaN NaN."""
    x = once(x)
    shifted = once(x * 1.442695041 + INTEGERS)
    n = once(shifted - INTEGERS)
    r = once(x - n * LN2_HIGH - n * LN2_LOW)
    return shifted, once(_horner(EXPM1, r) * (r * r) + r)


def _expm1_negative_64(x: tirx.Expr) -> tirx.Expr:
    """e**x - 1 for x <= 0 of float64."""
    x = once(x)
    # NaN stays; adding 1.5 * 2**52 leaves the nearest integer in the low bits.
    part = once(tirx.Select(x < -40.0, tirx.const(-40.0, "float64"), x))
    shifted = once(part * 1.4426950408889634 + 6755399441055744.0)
    n = once(shifted - 6755399441055744.0)
    bits = tirx.shift_left(_as_int(shifted), tirx.const(52, "int64"))
    scale = once(_as_float(bits + tirx.const(1023 << 52, "int64")))
    r = once(part - n * LN2_HIGH_64 - n * LN2_LOW_64)
    p = once(_horner(EXPM1_64, r) * (r * r) + r)
    return _nan_or(x, scale * p + (scale - 1.0))


def _log1p_reduced(m: tirx.Expr) -> tirx.Expr:
    """log(1 + m) for m in [-1/3, 1/3]."""
    m = once(m)
    square = once(m * m)
    r = _horner(LOG1P_ODD, square) * m + _horner(LOG1P_EVEN, square)
    return ((r * m + 0.333331972) * m - 0.5) * square + m


def _exponent_above(x: tirx.Expr, low: float) -> tirx.Expr:
    """The exponent bits to take from ``x`` so that it falls into [low, 2 low)."""
    mask = tirx.const(-(1 << 23), "int32")
    return tirx.bitwise_and(_as_int(x) - _bits_of(low), mask)


def _exponent_value(bits: tirx.Expr) -> tirx.Expr:
    return bits.astype("float32") * 2.0**-23


def _power_of_two(n: tirx.Expr) -> tirx.Expr:
    """2**n, where n is in the low 9 bits."""
    return _as_float(tirx.shift_left(n, tirx.const(23, "int32")) + _bits_of(1.0))


def _horner(coefficients: Sequence[float], x: tirx.Expr) -> tirx.Expr:
    result = tirx.const(coefficients[0], x.ty.dtype)
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def _even_odd(coefficients: Sequence[float], x: tirx.Expr) -> tirx.Expr:
    """:func:`_horner` of an odd number: two chains, which a CPU interleaves, and a last term."""
    *others, last = coefficients
    square = once(x * x)
    return (_horner(others[::2], square) * x + _horner(others[1::2], square)) * x + last


def _at_least(x: tirx.Expr, low: float) -> tirx.Expr:
    return tirx.Select(x < _f32(low), _f32(low), x)  # NaN stays


def _magnitude(x: tirx.Expr) -> tirx.Expr:
    bits = _as_int(x)
    return _as_float(tirx.bitwise_and(bits, tirx.max_value(bits.ty.dtype)))


def _with_sign(magnitude: tirx.Expr, x: tirx.Expr) -> tirx.Expr:
    """A non-negative ``magnitude`` (or NaN) with the sign of ``x``."""
    bits = _as_int(x)
    sign = tirx.bitwise_and(bits, tirx.min_value(bits.ty.dtype))
    return _as_float(tirx.bitwise_or(_as_int(magnitude), sign))


def _nan_or(x: tirx.Expr, result: tirx.Expr) -> tirx.Expr:
    return tirx.Select(tirx.isnan(x), x, result)


def _by_polynomial(x: tirx.Expr) -> bool:
    return str(x.ty.dtype) == "float32" and not _by_libm.get()


def _is_double(x: tirx.Expr) -> bool:
    return str(x.ty.dtype) == "float64" and not _by_libm.get()


def _libm(name: str, x: tirx.Expr) -> tirx.Expr:
    dtype = str(x.ty.dtype)
    return tirx.call_pure_extern(dtype, f"{name}f" if dtype == "float32" else name, x)


def _f32(value: float) -> tirx.Expr:
    return tirx.const(value, "float32")


def _infinity() -> tirx.Expr:
    return _f32(float("inf"))


def _as_int(x: tirx.Expr) -> tirx.Expr:
    return tirx.reinterpret("int64" if str(x.ty.dtype) == "float64" else "int32", x)


def _bits_of(value: float) -> tirx.Expr:
    # Taken here: as a reinterpreted constant, CUDA C would need its address.
    return tirx.const(int(np.float32(value).view("int32")), "int32")


def _as_float(bits: tirx.Expr) -> tirx.Expr:
    return tirx.reinterpret("float64" if str(bits.ty.dtype) == "int64" else "float32", bits)
