"""Converters for the activations of com.microsoft."""

from tvm import relax

from tvm_ext.ops import arithmetic

from ..broadcasting import emit_broadcast
from ..microsoft import microsoft
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


def _sum(bb, a, b):
    return emit_broadcast(bb, relax.op.add, arithmetic.add, a, b)
