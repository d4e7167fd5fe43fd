"""Attention as exporters write it, and near misses."""

import numpy as np

from .choice import is_f32, other, spoil, swap


def attention(g):
    """Queries, keys and values of one tensor, as exporters write it, with a mask and a scale."""
    x = g.choose(lambda v: is_f32(v) and v.ndim == 3 and v.array.size and v.is_static(2))
    width = x.shape[2]
    heads = g.pick(*(h for h in (1, 2, 3, 4) if width % h == 0))
    size = width // heads
    computed = g.chance(0.4)

    def split_heads(v):
        if computed:
            shape = g.node("Shape", x)
            b = g.node("Gather", shape, g.ints(0))
            target = g.node("Concat", b, g.ints(-1), g.ints(heads), g.ints(size), axis=0)
            v = g.node("Reshape", v, target)
        else:
            v = g.node("Reshape", v, g.ints(0, -1, heads, size))
        return v

    def project(v):
        w = g.const(g.numbers((width, width)) * np.float32(width**-0.5))
        y = g.node("MatMul", v, w)
        return g.node("Add", *swap(g, y, g.const(g.numbers((width,))))) if g.chance(0.5) else y

    memory = x
    if g.chance(0.25):
        memory = g.choose(
            lambda v: (
                is_f32(v)
                and v.ndim == 3
                and v.array.size
                and v.shape[2] == width
                and all(v.arrays[k].shape[0] == x.arrays[k].shape[0] for k in (0, 1))
            )
        )
    if g.chance(0.5):
        q, k, v = project(x), project(memory), project(memory)
    else:
        q, k, v = x, memory, memory
    q = g.node("Transpose", split_heads(q), perm=[0, 2, 1, 3])
    v = g.node("Transpose", split_heads(v), perm=[0, 2, 1, 3])
    k = split_heads(k)
    scale = g.scalar(g.pick(size**0.5, 2.0))
    place = g.int(0, 3)
    if place == 0:
        q = g.node("Div", q, scale)
    if g.chance(0.6):
        k = g.node("Transpose", k, perm=[0, 2, 3, 1])
    else:
        k = g.node("Transpose", g.node("Transpose", k, perm=[0, 2, 1, 3]), perm=[0, 1, 3, 2])
    if place == 1:
        k = g.node("Mul", *swap(g, k, scale))
    scores = g.node("MatMul", q, spoil(g, k))
    if place == 2:
        scores = g.node(g.pick("Mul", "Div"), scores, scale)
    scores = masked(g, spoil(g, scores))
    axis = (
        g.pick(3, -1, None, 2) if g.chance(0.3) else g.pick(3, 3) if g.opset < 11 else g.pick(3, -1)
    )
    weights = g.node("Softmax", scores, axis=axis)
    if g.chance(0.1):
        weights = g.node("Mul", weights, other(g, weights))
    y = g.node("MatMul", spoil(g, weights), v)
    y = g.node("Transpose", y, perm=[0, 2, 1, 3])
    return g.node(
        "Reshape",
        y,
        g.ints(0, g.pick(-1, 0) if g.chance(0.5) else -1, width)
        if g.chance(0.7)
        else g.ints(0, 0, -1),
    )


def masked(g, scores):
    kind = g.int(0, 5)
    if kind == 0:
        return scores
    if kind == 1:  # any value that broadcasts
        return g.node("Add", *swap(g, scores, other(g, scores)))
    rows = [g.node("Gather", g.node("Shape", scores), g.const(np.array(k))) for k in (2, 3)]
    if g.opset < 13:
        return g.node("Add", scores, g.scalar(g.pick(0.5, -1.0)))
    i, j = (g.node("Range", g.const(np.array(0)), n, g.const(np.array(1))) for n in rows)
    i = g.node("Unsqueeze", i, g.ints(1))
    causal = g.node(g.pick("LessOrEqual", "GreaterOrEqual"), j, i)
    if kind == 2:
        return g.node("Where", causal, scores, g.scalar(-100.0))
    if kind == 3:
        return g.node("Where", causal, g.scalar(-50.0), scores)
    bias = g.node(
        "Where", causal, g.const(np.array(0.0, "float32")), g.const(np.array(-30.0, "float32"))
    )
    if kind == 4:
        bias = g.node("Unsqueeze", bias, g.ints(0, 1))
    return g.node("Add", *swap(g, scores, bias))
