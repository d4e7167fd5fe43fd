"""Activation functions."""

import numpy as np
from onnx import defs
from tvm import relax

from tvm_ext.ops import activation as ops

from ..arithmetic import multiplied
from ..broadcasting import emit_broadcast
from ..known import is_literal
from ..precision import constant
from ..table import converter

_LEAST, _GREATEST = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)


@converter("LeakyRelu", 1, 6, 16)
def leaky_relu(bb, x, *, alpha=0.01):
    return bb.emit_te(ops.leaky_relu, x, alpha=alpha)


@converter("PRelu", 7, 9, 16)
def prelu(bb, x, slope):
    return emit_broadcast(bb, None, ops.prelu, x, slope)


@converter("PRelu", 1, 6)
def prelu_1(bb, x, slope):
    if bb.rank(slope) == 1 and bb.rank(x) > 2:  # one slope per channel, or one for all
        slope = bb.reshape(slope, [*bb.shape(slope), *[1] * (bb.rank(x) - 2)])
    return prelu(bb, x, slope)


@converter("Elu", 1, 6, 22)
def elu(bb, x, *, alpha=1.0):
    return bb.emit_te(ops.elu, x, alpha=alpha)


@converter("Celu", 12, 28)
def celu(bb, x, *, alpha=1.0):
    return bb.emit_te(ops.celu, x, alpha=alpha)


@converter("Selu", 1)
def selu_1(bb, x, *, alpha=1.6732, gamma=1.0507):
    return bb.emit_te(ops.selu, x, alpha=alpha, gamma=gamma)


@converter("Selu", 6, 22)
def selu(bb, x, *, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875):
    return bb.emit_te(ops.selu, x, alpha=alpha, gamma=gamma)


@converter("ThresholdedRelu", 10, 22)
def thresholded_relu(bb, x, *, alpha=1.0):
    return bb.emit_te(ops.thresholded_relu, x, alpha=alpha)


@converter("HardSigmoid", 1, 6, 22)
def hard_sigmoid(bb, x, *, alpha=0.2, beta=0.5):
    return bb.emit_te(ops.hard_sigmoid, x, alpha=alpha, beta=beta)


@converter("HardSwish", 14, 22)
def hard_swish(bb, x):
    return bb.emit_te(ops.hard_swish, x)


@converter("Softplus", 1, 22)
def softplus(bb, x):
    return bb.emit_te(ops.softplus, x)


@converter("Softsign", 1, 22)
def softsign(bb, x):
    return bb.emit_te(ops.softsign, x)


@converter("Gelu", 20)
def gelu(bb, x, *, approximate="none"):
    if approximate not in ("none", "tanh"):
        raise NotImplementedError(f"approximate={approximate!r}")
    return bb.emit(relax.op.nn.gelu_tanh(x) if approximate == "tanh" else relax.op.nn.gelu(x))


@converter("Mish", 18, 22)
def mish(bb, x):
    return bb.emit_te(ops.mish, x)


@converter("Swish", 24)
def swish(bb, x, *, alpha=1.0):
    if alpha == 1.0:
        return bb.emit(relax.op.nn.silu(x))
    return bb.emit_te(ops.swish, x, alpha=alpha)


# Of opset 28, whose schema the installed onnx may lack.
@converter("SwiGLU", 28 if defs.has("SwiGLU") else 1)
def swiglu(bb, a, b, *, alpha=1.0):
    return multiplied(bb, swish(bb, a, alpha=alpha), b)


@converter("Shrink", 9)
def shrink(bb, x, *, bias=0.0, lambd=0.5):
    return bb.emit_te(ops.shrink, x, bias=bias, lambd=lambd)


@converter("Clip", 11, 12, 13)
def clip(bb, x, low=None, high=None):
    """Two numbers known at compile time make a Relax clip, which passes recognise."""
    low, high = (_bound(bb, x, *pair) for pair in ((low, "min"), (high, "max")))
    limits = [constant(bb, bound) for bound in (low, high)]
    if all(limit is not None and is_literal(limit) for limit in limits):
        return bb.emit(relax.op.clip(x, *(limit.item() for limit in limits)))
    return emit_broadcast(bb, None, ops.clip, x, low, high)


def _bound(bb, x, bound, which):
    """``bound``, or the infinity (or extreme value) of the type of ``x`` that it stands for."""
    if bound is not None:
        return bound
    dtype = bb.dtype(x)
    if "int" in dtype:
        return bb.const(getattr(np.iinfo(dtype), which), dtype)
    return bb.const(-np.inf if which == "min" else np.inf, dtype)


@converter("Clip", 6)
def clip_6(bb, x, *, max=_GREATEST, min=_LEAST):
    return clip(bb, x, bb.const(min, bb.dtype(x)), bb.const(max, bb.dtype(x)))


@converter("Clip", 1)
def clip_1(bb, x, *, max=None, min=None):
    low, high = (None if v is None else bb.const(v, bb.dtype(x)) for v in (min, max))
    return clip(bb, x, low, high)
