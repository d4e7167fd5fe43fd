"""Conversions that a plain machine conversion does not give: to bool, to float8, of bits."""

from tvm import te, tirx

from .elementwise import dtype_of
from .formula import formula, once

__all__ = ["bit_cast", "cast"]

# mantissa bits, bias of the exponent, largest finite value, code of infinity (or NaN) and of NaN
_FLOAT8 = {
    "float8_e4m3fn": (3, 7, 448.0, 0x7F, 0x7F),
    "float8_e5m2": (2, 15, 57344.0, 0x7C, 0x7E),
}


def cast(x: te.Tensor, dtype: str, saturate: bool = True) -> te.Tensor:
    """``x[...]`` as ``dtype``, bool or float8, as ONNX Cast.

    float8 rounds half to even; out of range it gives the largest finite value, or, unless
    ``saturate``, infinity (NaN where the type has none).
    """
    if dtype == "bool":
        zero = tirx.const(0, dtype_of(x))
        return te.compute(x.shape, lambda *i: tirx.NE(x(*i), zero), "cast")

    @formula
    def element(value):
        return tirx.reinterpret(dtype, _float8_code(once(value), dtype, saturate))

    return te.compute(x.shape, lambda *i: element(x(*i).astype("float32")), "cast")


def bit_cast(x: te.Tensor, dtype: str) -> te.Tensor:
    """The bits of ``x[...]`` read as ``dtype``, which has the same size."""
    return te.compute(x.shape, lambda *i: tirx.reinterpret(dtype, x(*i)), "bit_cast")


def _float8_code(x: tirx.Expr, dtype: str, saturate: bool) -> tirx.Expr:
    """The uint8 that encodes the float32 ``x``."""
    mantissa_bits, bias, largest, infinity, nan = _FLOAT8[dtype]
    bits = once(tirx.reinterpret("uint32", x))
    sign = tirx.bitwise_and(tirx.shift_right(bits, _u32(24)), _u32(0x80))
    magnitude = once(tirx.bitwise_and(bits, _u32(0x7FFFFFFF)))

    # Normal: rebias, then round half to even by carrying into the bits that are kept.
    dropped = 23 - mantissa_bits
    rebiased = once(magnitude - _u32((127 - bias) << 23))
    is_odd = tirx.bitwise_and(tirx.shift_right(rebiased, _u32(dropped)), _u32(1))
    normal = tirx.shift_right(rebiased + _u32((1 << (dropped - 1)) - 1) + is_odd, _u32(dropped))
    # Subnormal: adding a power of two whose last bit is the smallest step rounds the same way.
    step = 2.0 ** (1 - bias - mantissa_bits + 23)
    absolute = tirx.reinterpret("float32", magnitude)
    subnormal = tirx.reinterpret("uint32", absolute + step) - tirx.reinterpret(
        "uint32", tirx.const(step, "float32")
    )
    is_subnormal = absolute < 2.0 ** (1 - bias)
    code = once(tirx.Select(is_subnormal, subnormal, normal))

    top = {"float8_e4m3fn": 0x7E, "float8_e5m2": 0x7B}[dtype]
    is_above = tirx.any(code > _u32(top), absolute > 2.0 * largest)
    code = tirx.Select(is_above, _u32(top if saturate else infinity), code)
    code = tirx.Select(tirx.isnan(x), _u32(nan), code)
    return tirx.bitwise_or(code, sign).astype("uint8")


def _u32(value: int) -> tirx.Expr:
    return tirx.const(value, "uint32")
