"""Operators that compute element by element, and those that reduce."""

import numpy as np
from onnx import helper

from .choice import broadcasts, floats, other
from .graph import Rejected

UNARY = {
    "Relu": 6, "Sigmoid": 6, "Tanh": 6, "Abs": 6, "Neg": 6, "Erf": 9, "Softplus": 1, "LeakyRelu": 6,
    "Elu": 6, "HardSigmoid": 6, "Floor": 6, "Ceil": 6, "Sign": 9, "Sin": 7, "Cos": 7, "Atan": 7,
    "Mish": 18, "HardSwish": 14, "Gelu": 20, "Selu": 6, "Round": 11, "Identity": 1, "Softsign": 1,
    "ThresholdedRelu": 10, "Celu": 12, "Exp": 6, "Reciprocal": 6, "Sqrt": 6, "Log": 6, "Swish": 24,
}  # fmt: skip


def unary(g):
    op = g.pick(*(op for op, since in UNARY.items() if since <= g.opset))
    x = g.choose(floats)
    if op in ("Sqrt", "Log", "Reciprocal"):
        x = g.node("Add", g.node("Abs", x), g.scalar(0.1, x.dtype))
    if op == "Exp":
        x = g.node("Tanh", x)
    return g.node(op, x)


def binary(g):
    x = g.choose(lambda v: v.dtype.kind in "fi")
    op = g.pick("Add", "Add", "Sub", "Mul", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Pow")
    if x.dtype.kind == "i" and op in ("Div", "Sum", "Mean", "Pow"):
        op = "Add"
    if x.dtype.kind == "i" and op in ("Max", "Min") and g.opset < 12:
        op = "Mul"
    y = other(g, x)
    if op == "Div":
        y = g.node("Add", g.node("Abs", y), g.scalar(0.3, x.dtype))
    if op == "Pow":
        y = g.scalar(g.pick(2, 3, 1, 0), x.dtype)
    pair = (x, y) if g.chance(0.5) or op in ("Div", "Pow") else (y, x)
    if op in ("Sum", "Mean", "Max") and g.chance(0.4):
        return g.node(op, *pair, other(g, x))
    return g.node(op, *pair)


def compare(g):
    x = g.choose(floats)
    c = g.node(g.pick("Less", "Greater"), x, other(g, x))
    if g.chance(0.4):
        c = g.node("Not", c)
    if g.opset >= 9:
        a = g.choose(lambda v: floats(v) and broadcasts(v, c))
        return g.node("Where", c, a, other(g, a))
    return g.node("Cast", c, to=1)


def logic(g):
    a = g.choose(lambda v: v.dtype == bool)
    b = other(g, a)
    return g.node(g.pick("And", "Or", "Xor"), a, b)


def cast(g):
    x = g.choose()
    to = g.pick("float32", "float32", "float16", "float64", "int64", "int32", "bool")
    return g.node("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))


def clip(g):
    x = g.choose(floats)
    if g.opset < 11:
        return g.node("Clip", x, min=-0.5, max=g.pick(0.75, None))
    bounds = [g.const(np.array(v, x.dtype)) for v in (-0.5, 0.75)]
    return g.node("Clip", x, *g.pick(bounds, bounds[:1], (None, bounds[1]), ()))


def reduce(g):
    x = g.choose(lambda v: floats(v) and v.ndim and v.array.size)
    op = g.pick(
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSumExp",
    )
    axes = sorted(g.rng.permutation(x.ndim)[: g.int(1, x.ndim)].tolist())
    if g.chance(0.4):
        axes = [axis - x.ndim for axis in axes]
    keepdims = g.pick(0, 1, None)
    if g.chance(0.15):
        return g.node(op, x, keepdims=keepdims)
    if g.opset >= (13 if op == "ReduceSum" else 18):
        return g.node(op, x, g.ints(*axes), keepdims=keepdims)
    return g.node(op, x, axes=axes, keepdims=keepdims)


def arg(g):
    x = g.choose(lambda v: floats(v) and v.ndim)
    return g.node(
        g.pick("ArgMax", "ArgMin"),
        x,
        axis=g.int(-x.ndim if g.opset >= 11 else 0, x.ndim - 1),
        keepdims=g.pick(0, 1),
    )


def cumulated(g):
    x = g.choose(lambda v: v.dtype.kind in "fi" and v.ndim)
    return g.node(
        g.pick("CumSum", "CumProd") if g.opset >= 26 else "CumSum",
        x,
        g.const(g.int(-x.ndim, x.ndim - 1), g.pick("int32", "int64")),
        exclusive=g.pick(0, 1),
        reverse=g.pick(0, 1),
    )


def topk(g):
    x = g.choose(lambda v: floats(v) and v.ndim and min(v.shape))
    axis = g.int(0, x.ndim - 1)
    k = g.int(1, min(a.shape[axis] for a in x.arrays))
    if g.opset >= 10:
        return g.node("TopK", x, g.ints(k), outputs=2, axis=axis)
    return g.node("TopK", x, k=k, outputs=2, axis=axis)


def softmax(g):
    x = g.choose(lambda v: floats(v) and v.ndim and v.array.size)
    axis = g.pick(None, g.int(0, x.ndim - 1), -1 if g.opset >= 11 else None)
    return g.node(g.pick("Softmax", "Softmax", "LogSoftmax", "Hardmax"), x, axis=axis)


def bits(g):
    x = g.choose(lambda v: v.dtype in (np.int32, np.int64))
    kind = g.pick("And", "Or", "Xor", "Not", "Shift")
    if kind == "Not":
        return g.node("BitwiseNot", x)
    if kind == "Shift":
        unsigned = g.node("Cast", x, to=g.pick(2, 12, 13))
        by = g.const(np.array(g.int(0, 9), unsigned.dtype))
        y = g.node("BitShift", unsigned, by, direction=g.pick("LEFT", "RIGHT"))
        return g.node("Cast", y, to=7)
    return g.node(f"Bitwise{kind}", x, other(g, x))


def modulo(g):
    """Of a divisor that is not zero: there integers of onnxruntime crash."""
    x = g.choose(lambda v: v.dtype.kind in "fi")
    floats = x.dtype.kind == "f"
    numbers = [3.0, -2.5, 0.7] if floats else [1, -1, 3, -4, 7]
    by = g.const(np.array(g.pick(*numbers), x.dtype))
    return g.node("Mod", x, by, fmod=1 if floats else g.pick(None, 0, 1))


def not_numbers(g):
    x = g.choose(lambda v: v.dtype.kind == "f")
    if g.chance(0.5):
        y = g.node(g.pick("Log", "Sqrt", "Reciprocal"), g.node("Abs", x))
        x = y
    if g.chance(0.5):
        return g.node("IsNaN", x)
    return g.node(
        "IsInf", x, detect_negative=g.pick(None, 0, 1), detect_positive=g.pick(None, 0, 1)
    )


def cast_like(g):
    x, like = g.choose(), g.choose()
    if x.dtype.kind == "f" and like.dtype.kind == "u":
        raise Rejected  # what a negative number becomes, nobody says
    return g.node("CastLike", x, like)


def functions(g):
    """What elementwise operators are left."""
    x = g.choose(lambda v: v.dtype.kind == "f")
    op = g.pick(
        "Acos", "Acosh", "Asin", "Asinh", "Atanh", "Cosh", "Sinh", "Tan", "Shrink", "SwiGLU"
    )
    if op in ("Acos", "Asin", "Atanh", "Tan"):
        x = g.node("Mul", g.node("Tanh", x), g.scalar(0.9, x.dtype))
    elif op == "Acosh":
        x = g.node("Add", g.node("Abs", x), g.scalar(1.1, x.dtype))
    if op == "Shrink":
        return g.node(op, x, bias=g.pick(None, 0.3), lambd=g.pick(None, 0.2))
    return g.node(op, x)


#: What makes a node, and how often it is chosen.
ELEMENTWISE = [(unary, 8), (binary, 10), (compare, 2), (logic, 1), (cast, 2), (clip, 2),
               (reduce, 5), (arg, 1), (cumulated, 1), (topk, 1), (softmax, 3),
               (functions, 1), (bits, 1), (modulo, 1), (not_numbers, 0.5),
               (cast_like, 1)]  # fmt: skip
