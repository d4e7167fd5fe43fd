"""Converters for the activations of com.microsoft."""

import numpy as np
from tvm import relax

from tvm_ext.ops import activation

from ..arithmetic import added, multiplied, shifted
from ..microsoft import microsoft
from ..precision import cast
from .activation import gelu, swish
from .softmax import softmax_of_rows


@microsoft("Gelu")
def gelu_1(bb, x):
    return gelu(bb, x)


@microsoft("BiasGelu")
def bias_gelu(bb, a, b):
    return gelu(bb, added(bb, a, b))


@microsoft("FastGelu")
def fast_gelu(bb, x, bias=None):
    return gelu(bb, x if bias is None else added(bb, x, bias), approximate="tanh")


@microsoft("QuickGelu")
def quick_gelu(bb, x, *, alpha=1.702):
    return swish(bb, x, alpha=alpha)


@microsoft("BiasSplitGelu")
def bias_split_gelu(bb, x, bias):
    """The first half of the last axis times the gelu of the second."""
    value, gate = bb.emit(relax.op.split(added(bb, x, bias), 2, -1))
    return bb.emit(relax.op.multiply(value, gelu(bb, gate)))


@microsoft("BiasAdd")
def bias_add(bb, x, bias, skip):
    return added(bb, added(bb, x, bias), skip)


@microsoft("ScaledSiLU")
def scaled_silu(bb, x, scale=None, *, alpha=1.0):
    factor = bb.const(alpha, bb.dtype(x)) if scale is None else cast(bb, scale, bb.dtype(x))
    return bb.emit_te(activation.silu, multiplied(bb, x, factor))


@microsoft("GatedAdd")
def gated_add(bb, x, y, gate, gate_weight=None):
    if gate_weight is not None:
        raise NotImplementedError("a projected gate, which onnxruntime has on GPUs only")
    return added(bb, x, multiplied(bb, y, gate))


@microsoft("LinearAttentionGate")
def linear_attention_gate(bb, a, dt_bias, decay_scale, b=None):
    """``decay_scale * softplus(a + dt_bias)`` in float32, and ``sigmoid(b)``."""
    rate = bb.emit_te(activation.softplus, added(bb, cast(bb, a, "float32"), dt_bias))
    decay = cast(bb, multiplied(bb, rate, decay_scale), bb.dtype(a))
    return decay, None if b is None else bb.emit_te(activation.sigmoid, b)


@microsoft("BiasSoftmax")
def bias_softmax(bb, data, bias, *, axis=1, is_inner_broadcast):
    """``is_inner_broadcast`` tells kernels which dims of the bias are 1."""
    return softmax_of_rows(bb, added(bb, data, bias), axis)


@microsoft("SwiGLU")
def swiglu(bb, gate, up=None, *, activation_alpha=1.0, activation_beta=0.0, limit=0.0,
           round_activation=0):  # fmt: skip
    """``gate sigmoid(alpha gate) (up + beta)``; without ``up``, ``gate`` holds both, gate first."""
    dtype = bb.dtype(gate)
    if round_activation:
        raise NotImplementedError(
            "round_activation, the rounding of an operator that this replaces"
        )
    if up is None:
        pair = bb.emit(relax.op.split(gate, 2, -1))
        gate, up = bb.emit(pair[0]), bb.emit(pair[1])
    gate, up = cast(bb, gate, "float32"), cast(bb, up, "float32")
    if limit > 0:
        gate = bb.emit(relax.op.minimum(gate, bb.const(np.float32(limit))))
        up = bb.emit(relax.op.clip(up, -limit, limit))
    up = shifted(bb, up, activation_beta) if activation_beta else up
    return cast(bb, multiplied(bb, swish(bb, gate, alpha=activation_alpha), up), dtype)
