"""Unary mathematics, rounding and trigonometry.

float32 goes through the vectorisable approximations where there is one; float16 and bfloat16 are
computed in float32.
"""

from tvm import tirx

from . import approximations
from .elementwise import dtype_of, elementwise

__all__ = [
    "abs_", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp",
    "floor", "log", "neg", "reciprocal", "round_", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
]  # fmt: skip

exp = elementwise(approximations.exp)
log = elementwise(approximations.log)
erf = elementwise(approximations.erf)
tanh = elementwise(approximations.tanh)
atanh = elementwise(approximations.atanh)

abs_ = elementwise(tirx.abs)
sqrt = elementwise(tirx.sqrt)
ceil = elementwise(tirx.ceil)
floor = elementwise(tirx.floor)
round_ = elementwise(tirx.nearbyint, "round_")  # half to even

sin = elementwise(approximations.sin)
cos = elementwise(approximations.cos)
tan = elementwise(approximations.tan)
asin = elementwise(approximations.asin)
acos = elementwise(approximations.acos)
atan = elementwise(approximations.atan)
sinh = elementwise(lambda x: _libm("sinh", x), "sinh")  # TVM lowers neither in a vector
cosh = elementwise(lambda x: _libm("cosh", x), "cosh")
asinh = elementwise(tirx.asinh)
acosh = elementwise(tirx.acosh)


def _libm(name: str, x: tirx.Expr) -> tirx.Expr:
    dtype = dtype_of(x)
    return tirx.call_pure_extern(dtype, f"{name}f" if dtype == "float32" else name, x)


@elementwise
def neg(x):
    """``x[...] -> -x``; the sign of 0 and of NaN flips too."""
    return x * tirx.const(-1, x.ty)


@elementwise
def reciprocal(x):
    """``x[...] -> 1 / x``."""
    return tirx.const(1, x.ty) / x


@elementwise
def sign(x):
    """``x[...] -> -1, 0 or 1``, and NaN for NaN."""
    zero = tirx.const(0, x.ty)
    result = tirx.Select(x > zero, tirx.const(1, x.ty), x)
    if dtype_of(x).startswith("uint"):
        return result
    return tirx.Select(x < zero, tirx.const(-1, x.ty), result)
