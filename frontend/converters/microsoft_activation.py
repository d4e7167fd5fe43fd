"""Converters for the activations of com.microsoft."""

from tvm import relax

from tvm_ext.ops import activation, arithmetic

from ..broadcasting import emit_broadcast
from ..microsoft import microsoft
from ..precision import cast
from .activation import gelu, swish


@microsoft("Gelu")
def gelu_1(bb, x):
    return gelu(bb, x)


@microsoft("BiasGelu")
def bias_gelu(bb, a, b):
    return gelu(bb, _sum(bb, a, b))


@microsoft("FastGelu")
def fast_gelu(bb, x, bias=None):
    return gelu(bb, x if bias is None else _sum(bb, x, bias), approximate="tanh")


@microsoft("QuickGelu")
def quick_gelu(bb, x, *, alpha=1.702):
    return swish(bb, x, alpha=alpha)


@microsoft("BiasSplitGelu")
def bias_split_gelu(bb, x, bias):
    """The first half of the last axis times the gelu of the second."""
    value, gate = bb.emit(relax.op.split(_sum(bb, x, bias), 2, -1))
    return bb.emit(relax.op.multiply(value, gelu(bb, gate)))


@microsoft("BiasAdd")
def bias_add(bb, x, bias, skip):
    return _sum(bb, _sum(bb, x, bias), skip)


@microsoft("ScaledSiLU")
def scaled_silu(bb, x, scale=None, *, alpha=1.0):
    factor = bb.const(alpha, bb.dtype(x)) if scale is None else cast(bb, scale, bb.dtype(x))
    return bb.emit_te(activation.silu, _product(bb, x, factor))


@microsoft("GatedAdd")
def gated_add(bb, x, y, gate, gate_weight=None):
    if gate_weight is not None:
        raise NotImplementedError("a projected gate, which onnxruntime has on GPUs only")
    return _sum(bb, x, _product(bb, y, gate))


@microsoft("LinearAttentionGate")
def linear_attention_gate(bb, a, dt_bias, decay_scale, b=None):
    """``decay_scale * softplus(a + dt_bias)`` in float32, and ``sigmoid(b)``."""
    rate = bb.emit_te(activation.softplus, _sum(bb, cast(bb, a, "float32"), dt_bias))
    decay = cast(bb, _product(bb, rate, decay_scale), bb.dtype(a))
    return decay, None if b is None else bb.emit_te(activation.sigmoid, b)


def _product(bb, a, b):
    return emit_broadcast(bb, relax.op.multiply, arithmetic.mul, a, b)


def _sum(bb, a, b):
    return emit_broadcast(bb, relax.op.add, arithmetic.add, a, b)
