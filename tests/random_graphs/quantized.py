"""Layers between QuantizeLinear and DequantizeLinear, and near misses."""

import numpy as np

from .choice import images, is_f32, other
from .graph import Rejected


def quantized(g):
    """A layer between QuantizeLinear and DequantizeLinear, some pieces missing."""
    if g.opset < 13:
        raise Rejected
    kind = g.pick("Conv", "MatMul", "Gemm", "Move", "Concat", "Add")
    dtype = g.pick("uint8", "int8")

    def qdq(v, piece=1.0):
        # Of 0.05 and 0.1 many a sum would lie between two steps.
        s = g.const(np.array(g.pick(0.0507, 0.0507, 0.0993), "float32"))
        z = [g.const(np.array(g.pick(0, 3) + (100 if dtype == "uint8" else 0), dtype))]
        q = g.node("QuantizeLinear", v, s, *z)
        if g.chance(0.05):
            g.outputs.append(q)
        return g.node("DequantizeLinear", q, s, *z) if g.chance(piece) else v

    def weight(array, axis):
        per = g.chance(0.5)
        n = array.shape[axis]
        scale = (
            g.const(np.abs(g.rng.normal(size=n)).astype("float32") * 0.02 + 0.01)
            if per
            else g.const(np.array(0.02, "float32"))
        )
        zero = g.pick(
            (),
            (g.const(np.zeros(n if per else (), "int8")),),
            (g.const(np.full(n if per else (), 2, "int8")),),
        )
        q = g.const(np.clip(np.round(array / 0.02), -127, 127).astype("int8"))
        return g.node("DequantizeLinear", q, scale, *zero, axis=axis if per else None)

    if kind == "Conv":
        x = g.choose(images)
        c, m = x.shape[1], g.pick(1, 3, 8)
        group = g.pick(1, 1, c)
        m *= group
        spatial = x.ndim - 2
        w = weight(g.numbers((m, c // group, *[3] * spatial)) * np.float32((9 * c) ** -0.5), 0)
        bias = g.pick((), (g.const(g.numbers((m,))),))
        y = g.node("Conv", qdq(x, 0.9), w, *bias, group=group, pads=[g.pick(0, 1)] * (2 * spatial))
        if g.chance(0.5):
            y = g.node("Relu", y)
    elif kind in ("MatMul", "Gemm"):
        x = g.choose(
            lambda v: (
                is_f32(v)
                and v.ndim >= (2 if kind == "Gemm" else 1)
                and v.array.size
                and v.is_static(-1)
            )
        )
        k, n = x.shape[-1], g.pick(1, 3, 16)
        tb = int(kind == "Gemm" and g.chance(0.5))
        w = g.numbers((n, k) if tb else (k, n)) * np.float32(k**-0.5)
        w = weight(w, g.pick(0, 1) if g.chance(0.2) else 1 - tb)
        if kind == "Gemm":
            bias = g.pick((), (g.const(g.numbers(g.pick((n,), (1, n), (), (x.shape[0], 1)))),))
            y = g.node("Gemm", qdq(x, 0.9), w, *bias, transB=tb, alpha=g.pick(None, None, 0.5))
        else:
            y = g.node("MatMul", qdq(x, 0.9), w)
            y = g.node("Add", y, other(g, y)) if g.chance(0.5) else y
    else:
        x = g.choose(lambda v: is_f32(v) and v.ndim > 1)
        y = qdq(x)
        if kind == "Move":
            y = g.node("Transpose", y, perm=g.rng.permutation(x.ndim).tolist())
        elif kind == "Concat":
            y = g.node("Concat", y, y if g.chance(0.5) else qdq(x), axis=0)
        else:
            y = g.node("Add", y, other(g, y))
    return qdq(y, 0.95) if g.chance(0.8) else y
