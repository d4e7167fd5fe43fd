"""Subgraphs of networks that rewrites and compound operators look for, and near misses of them."""

import numpy as np

from .choice import floats, images, is_f32, other, spoil, swap
from .graph import Rejected


def reduce_mean(g, x, axes, keepdims=1):
    if g.opset >= 18:
        return g.node("ReduceMean", x, g.ints(*axes), keepdims=keepdims)
    return g.node("ReduceMean", x, axes=list(axes), keepdims=keepdims)


def gelu(g):
    x = g.choose(floats)
    s = lambda n: g.scalar(n, x.dtype)  # noqa: E731
    half, one = g.pick(0.5, 0.5, 0.5, 0.6), g.pick(1.0, 1.0, 1.0, 1.5)
    if g.chance(0.5) and g.opset >= 9:
        root = g.pick(2**0.5, 2**0.5, 2**0.5, 1.5)
        inner = (
            g.node("Div", x, s(root)) if g.chance(0.5) else g.node("Mul", *swap(g, x, s(1 / root)))
        )
        curve = g.node("Erf", spoil(g, inner))
    else:
        cube = (
            g.node("Pow", x, s(g.pick(3.0, 3.0, 2.0)))
            if g.chance(0.5)
            else g.node("Mul", g.node("Mul", x, x), x)
        )
        inner = g.node("Add", x, g.node("Mul", *swap(g, cube, s(g.pick(0.044715, 0.044715, 0.05)))))
        curve = g.node("Tanh", g.node("Mul", *swap(g, inner, s((2 / np.pi) ** 0.5))))
    total = g.node("Add", *swap(g, spoil(g, curve), s(one)))
    if g.chance(0.5):
        return g.node("Mul", g.node("Mul", *swap(g, x, s(half))), total)
    return g.node("Mul", *swap(g, g.node("Mul", *swap(g, x, total)), s(half)))


def swish(g):
    x = g.choose(floats)
    inner = (
        x
        if g.chance(0.5)
        else g.node("Mul", *swap(g, x, g.scalar(g.pick(1.702, 0.0, -1.0), x.dtype)))
    )
    gate = g.node(g.pick("Sigmoid", "Sigmoid", "HardSigmoid"), inner)
    return g.node(
        "Mul",
        *swap(
            g,
            g.choose(lambda v: v.dtype == x.dtype and v.shape == x.shape) if g.chance(0.2) else x,
            spoil(g, gate),
        ),
    )


def layer_norm(g):
    x = g.choose(lambda v: is_f32(v) and v.ndim and v.array.size)
    first = g.int(-x.ndim, -1)
    axes = list(range(first, 0)) if g.chance(0.7) else [first]
    if g.chance(0.3):
        axes = [a + x.ndim for a in axes]
    keep = 1 if g.chance(0.95) else 0
    centred = x
    if g.chance(0.7):
        mean = reduce_mean(g, x, axes if g.chance(0.95) else [0], keep)
        centred = g.node("Sub", *((x, spoil(g, mean)) if g.chance(0.95) else (mean, x)))
    if g.chance(0.5):
        square = g.node("Pow", centred, g.scalar(g.pick(2.0, 2.0, 2.0, 3.0)))
    else:
        square = g.node("Mul", centred, centred)
    variance = g.node(
        "Add", *swap(g, reduce_mean(g, spoil(g, square), axes, keep), g.scalar(g.pick(1e-5, 1e-2)))
    )
    root = g.node("Sqrt", g.node("Abs", variance) if g.chance(0.1) else variance)
    way = g.int(0, 2)
    if way == 0:
        y = g.node("Div", centred, root)
    elif way == 1:
        y = g.node("Mul", *swap(g, centred, g.node("Reciprocal", root)))
    else:
        y = g.node("Mul", *swap(g, centred, g.node("Div", g.scalar(g.pick(1.0, 1.0, 2.0)), root)))
    for op in ("Mul", "Add"):
        if g.chance(0.7):
            tail = [d if x.is_static(k) else 1 for k, d in enumerate(x.shape)][
                min(a % x.ndim for a in axes) :
            ]
            shape = g.pick(tail, tail, tail[-1:], [1, *tail], [], [1] * x.ndim)
            operand = g.const(g.numbers(shape)) if g.chance(0.8) else other(g, y)
            y = g.node(op, *swap(g, spoil(g, y), operand))
    return y


def softmax_by_hand(g):
    x = g.choose(lambda v: is_f32(v) and v.ndim and v.array.size)
    axis = g.int(-x.ndim, -1)

    def over(op, v):
        if g.opset >= (13 if op == "ReduceSum" else 18):
            return g.node(op, v, g.ints(axis))
        return g.node(op, v, axes=[axis])

    e = g.node("Exp", g.node("Sub", x, over("ReduceMax", x)))
    return g.node("Div", spoil(g, e), over("ReduceSum", e))


def residual(g):
    x = g.choose(lambda v: is_f32(v) and v.ndim >= 2 and v.array.size and v.is_static(-1))
    w = x.shape[-1]
    n = g.pick(w, 2 * w, 3)
    h = g.node("MatMul", x, g.const(g.numbers((w, n)) * np.float32(w**-0.5)))
    if g.chance(0.7):
        h = g.node(
            "Add",
            *swap(g, spoil(g, h), g.const(g.numbers(g.pick((n,), (1, n), (1,), (1,) * x.ndim)))),
        )
    if g.chance(0.5):
        h = g.node(g.pick("Relu", "Sigmoid", "Tanh"), h)
    h = g.node("MatMul", h, g.const(g.numbers((n, w)) * np.float32(n**-0.5)))
    y = g.node("Add", *swap(g, h, x))
    return g.node("Add", y, g.pick(x, h, y)) if g.chance(0.3) else y


def glu(g):
    x = g.choose(
        lambda v: is_f32(v) and v.ndim and v.array.size and any(d % 2 == 0 for d in v.shape)
    )
    axis = g.pick(*(k for k, d in enumerate(x.shape) if d % 2 == 0))
    if not x.is_static(axis):
        raise Rejected
    half = x.shape[axis] // 2
    if g.opset >= 13:
        a, b = g.node("Split", x, g.ints(half, half), outputs=2, axis=axis)
    else:
        a, b = g.node("Split", x, split=[half, half], outputs=2, axis=axis)
    return g.node("Mul", *swap(g, a, g.node(g.pick("Sigmoid", "Tanh", "Relu"), b)))


def rope(g):
    x = g.choose(
        lambda v: (
            is_f32(v) and v.ndim >= 2 and v.array.size and v.shape[-1] % 2 == 0 and v.is_static(-1)
        )
    )
    if g.opset < 10:
        raise Rejected
    n = x.shape[-1]
    a = g.node("Slice", x, g.ints(0), g.ints(n // 2), g.ints(-1 % x.ndim))
    b = g.node("Slice", x, g.ints(n // 2), g.ints(2**31 - 1), g.ints(-1 % x.ndim))
    turned = g.node("Concat", g.node("Neg", b), a, axis=x.ndim - 1)
    return g.node("Add", g.node("Mul", x, other(g, x)), g.node("Mul", turned, other(g, turned)))


def shuffle(g):
    """Channel shuffle, pixel shuffle and window partition by Reshape and Transpose."""
    x = g.choose(lambda v: images(v) and v.ndim == 4 and v.static)
    n, c, h, w = x.shape
    if g.chance(0.5):
        f = g.pick(*(k for k in (1, 2, 3, 4) if c % k == 0))
        y = g.node("Reshape", x, g.ints(n, f, c // f, h, w))
        y = g.node("Transpose", y, perm=[0, 2, 1, 3, 4])
        return g.node("Reshape", y, g.ints(n, c, h, w))
    f = g.pick(*(k for k in (1, 2, 3, 4) if h % k == 0))
    y = g.node("Reshape", x, g.ints(n, c, h // f, f, w))
    y = g.node("Transpose", y, perm=[0, 2, 4, 3, 1])
    return g.node("Reshape", y, g.ints(-1, f, c))


def class_token(g):
    x = g.choose(lambda v: is_f32(v) and v.ndim == 3 and v.array.size and v.is_static(2))
    if g.opset < 8:
        raise Rejected
    b = (
        g.node("Slice", g.node("Shape", x), g.ints(0), g.ints(1), g.ints(0))
        if g.opset >= 10
        else None
    )
    if b is None:
        raise Rejected
    target = g.node("Concat", b, g.ints(-1, -1) if False else g.ints(1, x.shape[2]), axis=0)
    token = g.node("Expand", g.const(g.numbers((1, 1, x.shape[2]))), target)
    return g.node("Concat", token, x, axis=1)


def tokens(g):
    """An image as a sequence, and back."""
    x = g.choose(lambda v: images(v) and v.ndim == 4)
    y = g.node("Transpose", g.node("Reshape", x, g.ints(0, x.shape[1], -1)), perm=[0, 2, 1])
    if g.chance(0.5):
        return y
    y = g.node("Relu", y)
    back = g.node("Transpose", y, perm=[0, 2, 1])
    return g.node("Reshape", back, g.node("Shape", x))


def roll(g):
    x = g.choose(lambda v: v.ndim and v.array.size)
    if g.opset < 10:
        raise Rejected
    axis, k = g.int(0, x.ndim - 1), g.int(1, 2)
    a = g.node("Slice", x, g.ints(-k), g.ints(2**31 - 1), g.ints(axis))
    b = g.node("Slice", x, g.ints(0), g.ints(-k), g.ints(axis))
    return g.node("Concat", a, b, axis=axis)


def cache(g):
    """What attention keeps of earlier tokens: joined with the new, then the last ones taken."""
    x = g.choose(lambda v: is_f32(v) and v.ndim in (3, 4) and v.array.size)
    if g.opset < 10:
        raise Rejected
    axis = x.ndim - 2
    joined = g.node("Concat", x, g.node("Tanh", x), axis=axis)
    last = g.node("Slice", joined, g.ints(-g.int(1, 3)), g.ints(2**31 - 1), g.ints(axis))
    return g.node("Add", g.node("Expand", last, g.node("Shape", last)), g.scalar(1.0))


PATTERNS = [gelu, swish, layer_norm, layer_norm, softmax_by_hand, residual, glu, rope, shuffle,
            class_token, tokens, roll, cache]  # fmt: skip
