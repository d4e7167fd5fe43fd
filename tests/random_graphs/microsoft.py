"""Operators of com.microsoft that fuse several, or are older than those of ONNX."""

import numpy as np

from .choice import images, is_f32, of_shape, operand, other
from .graph import MICROSOFT, Rejected


def gelu_like(g):
    x = g.choose(lambda v: is_f32(v) and v.ndim and v.array.size and v.is_static(-1))
    op = g.pick("BiasGelu", "FastGelu", "QuickGelu", "Gelu")
    bias = operand(g, (x.shape[-1],))
    if op == "BiasGelu":
        return g.node(op, x, bias, **MICROSOFT)
    if op == "FastGelu":
        return g.node(op, x, *([bias] if g.chance(0.5) else []), **MICROSOFT)
    if op == "QuickGelu":
        return g.node(op, x, alpha=g.pick(None, 1.0), **MICROSOFT)
    return g.node(op, x, **MICROSOFT)


def fused_matmul(g):
    x = g.choose(lambda v: is_f32(v) and v.ndim >= 2 and v.array.size and v.static)
    ta, tb = g.pick(None, 0, 1), g.pick(None, 0, 1)
    k, n = x.shape[-2 if ta else -1], g.pick(1, 5, 16)
    w = operand(g, (n, k) if tb else (k, n))
    return g.node("FusedMatMul", x, w, transA=ta, transB=tb, alpha=g.pick(None, 0.5), **MICROSOFT)


def fused_gemm(g):
    x = g.choose(lambda v: is_f32(v) and v.ndim == 2 and v.array.size and v.is_static(1))
    n = g.pick(1, 5, 16)
    return g.node(
        "FusedGemm", x, operand(g, (x.shape[1], n)), operand(g, (n,)), alpha=g.pick(None, 0.5),
        activation=g.pick("Relu", "Tanh", "Sigmoid", "LeakyRelu"), **MICROSOFT,
    )  # fmt: skip


def fused_conv(g):
    x = g.choose(lambda v: images(v) and v.ndim == 4)
    c, m = x.shape[1], g.pick(1, 8, 17)
    w = g.const(g.numbers((m, c, 3, 3)) * np.float32((9 * c) ** -0.5))
    y = [w, g.const(g.numbers((m,)))]
    if g.chance(0.5):
        plain = g.node("Conv", x, *y, pads=[1] * 4)
        same = other(g, plain, lambda v: of_shape(v, plain))
        if not of_shape(same, plain):
            raise Rejected
        y.append(same)
    activation, parameters = g.pick(
        ("Relu", None), ("Tanh", None), ("LeakyRelu", [0.1]), ("Clip", [-0.5, 0.5]),
        ("HardSigmoid", [0.2, 0.5]),
    )  # fmt: skip
    return g.node(
        "FusedConv", x, *y, pads=[1] * 4, activation=activation, activation_params=parameters,
        **MICROSOFT,
    )  # fmt: skip


def expanded(g):
    """Small operators of com.microsoft."""
    kind = g.pick("ExpandDims", "Trilu", "Inverse", "Pad", "Unique", "CDist")
    if kind == "ExpandDims":
        x = g.choose(lambda v: v.ndim < 5)
        return g.node(kind, x, g.const(g.int(-x.ndim - 1, x.ndim), "int32"), **MICROSOFT)
    if kind == "Trilu":
        x = g.choose(lambda v: v.ndim >= 2 and v.dtype.kind in "fi")
        return g.node(kind, x, g.const(g.int(-2, 2), "int64"), upper=g.pick(0, 1), **MICROSOFT)
    if kind == "Inverse":
        n = g.pick(1, 2, 4)
        eye = g.const(np.eye(n) * 3, "float32")
        return g.node(kind, g.node("Add", operand(g, (g.pick(1, 3), n, n)), eye), **MICROSOFT)
    if kind == "Unique":
        return g.node(kind, operand(g, (g.pick(1, 6, (4, 9)),)), outputs=3, **MICROSOFT)
    if kind == "CDist":
        k = g.pick(1, 4)
        a, b = operand(g, (g.pick(2, (3, 4)), k)), operand(g, (g.pick(1, 5), k))
        return g.node(kind, a, b, metric=g.pick("sqeuclidean", "euclidean"), **MICROSOFT)
    x = g.choose(lambda v: is_f32(v) and v.ndim and v.array.size)
    pads = [g.int(0, 2) for _ in range(2 * x.ndim)]
    return g.node(kind, x, g.ints(*pads), g.const(0.5, "float32"), mode="constant", **MICROSOFT)


#: What makes a node, and how often it is chosen.
FUSED = [(gelu_like, 1), (fused_matmul, 1), (fused_gemm, 1), (fused_conv, 1), (expanded, 1)]
