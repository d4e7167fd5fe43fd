"""Activation functions: one formula each, on one element; NaN stays NaN.

Attributes are keyword arguments with the names of the ONNX operators.
"""

import math

from tvm import tirx

from . import approximations
from .approximations import exp, expm1_negative, log1p_positive
from .elementwise import dtype_of, elementwise
from .formula import number, once

__all__ = [
    "celu", "clip", "elu", "gelu", "gelu_tanh", "hard_sigmoid", "hard_swish", "leaky_relu", "mish",
    "prelu", "relu", "selu", "shrink", "sigmoid", "silu", "softplus", "softsign",
    "swish", "thresholded_relu",
]  # fmt: skip

sigmoid = elementwise(approximations.sigmoid)


@elementwise
def relu(x):
    """``x[...] -> max(x, 0)``."""
    return tirx.Select(x < _zero(x), _zero(x), x)


@elementwise
def leaky_relu(x, *, alpha):
    """``x[...] -> x``, scaled by ``alpha`` below 0."""
    return tirx.Select(x < 0.0, x * number(alpha, dtype_of(x)), x)


@elementwise
def prelu(x, slope):
    """``x[...] -> x``, scaled by ``slope[...]`` (broadcast) below 0."""
    return tirx.Select(x < _zero(x), x * slope, x)


@elementwise
def elu(x, *, alpha):
    """``x[...] -> x``, and ``alpha (e**x - 1)`` below 0."""
    curve = expm1_negative(_negative_part(x)) * number(alpha, dtype_of(x))
    return tirx.Select(x < 0.0, curve, x)


@elementwise
def celu(x, *, alpha):
    """``x[...] -> max(0, x) + min(0, alpha (e**(x / alpha) - 1))``."""
    if alpha == 0:  # x / 0 is infinite or NaN, and what is not below 0 becomes 0 * inf
        return tirx.Select(x < 0.0, _zero(x), number(math.nan, dtype_of(x)))
    part = _negative_part(x) / alpha
    curve = expm1_negative(part) if alpha > 0 else exp(part) - 1.0
    return tirx.Select(x < 0.0, curve * alpha, x)


@elementwise
def selu(x, *, alpha, gamma):
    """``x[...] -> gamma x``, and ``gamma alpha (e**x - 1)`` below 0."""
    curve = tirx.Select(x < 0.0, expm1_negative(_negative_part(x)) * alpha, x)
    return curve * number(gamma, dtype_of(x))


@elementwise
def thresholded_relu(x, *, alpha):
    """``x[...] -> x`` above ``alpha``, else 0."""
    return tirx.Select(x > alpha, x, _zero(x))


@elementwise
def hard_sigmoid(x, *, alpha, beta):
    """``x[...] -> max(0, min(1, alpha x + beta))``."""
    return _bounded(x * number(alpha, dtype_of(x)) + beta, 0.0, 1.0)


@elementwise
def hard_swish(x):
    """``x[...] -> x max(0, min(1, x / 6 + 1/2))``."""
    return x * _bounded(x / 6.0 + 0.5, 0.0, 1.0)


@elementwise
def softplus(x):
    """``x[...] -> log(1 + e**x)``."""
    tail = log1p_positive(exp(tirx.Select(x < 0.0, x, _zero(x) - x)))
    return tirx.Select(x < 0.0, _zero(x), x) + tail


@elementwise
def softsign(x):
    """``x[...] -> x / (1 + |x|)``."""
    return x / (tirx.abs(x) + 1.0)


@elementwise
def gelu(x):
    """``x[...] -> x (1 + erf(x / sqrt(2))) / 2``."""
    return approximations.gelu(x)


@elementwise
def gelu_tanh(x):
    """``x[...] -> x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2``."""
    # (1 + tanh(z)) / 2 = sigmoid(2 z), which keeps the relative accuracy of the negative tail.
    return x * approximations.sigmoid((x * x * x * 0.044715 + x) * 1.5957691216057308)


@elementwise
def mish(x):
    """``x[...] -> x tanh(log(1 + e**x))``."""
    # tanh(log(1 + e)) = (e**2 + 2 e) / (e**2 + 2 e + 2), which is 1 to the last bit beyond 20.
    e = once(exp(tirx.Select(x > 20.0, tirx.const(20.0, x.ty), x)))
    square = once(e * (e + 2.0))
    return x * (square / (square + 2.0))


@elementwise
def swish(x, *, alpha):
    """``x[...] -> x sigmoid(alpha x)``."""
    return x * approximations.sigmoid(x * alpha)


@elementwise
def silu(x):
    """``x[...] -> x sigmoid(x)``."""
    return x * approximations.sigmoid(x)


@elementwise
def shrink(x, *, bias, lambd):
    """``x[...] -> x + bias`` below ``-lambd``, ``x - bias`` above ``lambd``, else 0."""
    dtype = dtype_of(x)
    if "float" not in dtype:
        x = once(x.astype("float64"))  # also uint64, in which -lambd does not exist
    lambd, bias = _literal(lambd, x), _literal(bias, x)
    above = tirx.Select(x > lambd, x - bias, _zero(x))
    return tirx.Select(x < _zero(x) - lambd, x + bias, above).astype(dtype)


@elementwise
def clip(x, low, high):
    """``x[...] -> min(max(x, low), high)``; ``low`` and ``high`` are scalars."""
    low, high = (bound.astype(str(x.ty.dtype)) for bound in (low, high))
    x = tirx.Select(x < low, low, x)
    return tirx.Select(x > high, high, x)


def _bounded(x, low, high):
    x = tirx.Select(x < low, _literal(low, x), x)
    return tirx.Select(x > high, _literal(high, x), x)


def _negative_part(x):
    return tirx.Select(x < 0.0, x, _zero(x))


def _zero(x):
    return tirx.const(0, x.ty)


def _literal(value, x):
    return tirx.const(int(value) if "int" in str(x.ty.dtype) else value, x.ty)
