"""Operators that choose, order and scatter by computed indices, and losses."""

import numpy as np
from onnx import TensorProto, helper

from .choice import is_f32, operand, sizes
from .control_flow import info
from .graph import Rejected


def unique(g):
    x = g.choose(lambda v: v.dtype.kind in "fi" and v.ndim and v.array.size < 500)
    if g.chance(0.5):
        x = g.node("Cast", x, to=7)
    axis = g.pick(None, g.int(-x.ndim, x.ndim - 1))
    return g.node("Unique", x, outputs=g.pick(1, 4), axis=axis, sorted=g.pick(None, 0, 1))


def non_max_suppression(g):
    n, batch, classes = g.pick(1, 7, (6, 11)), g.pick(1, 2), g.pick(1, 3)
    center = g.chance(0.4)
    boxes = operand(g, (batch, n, 4))
    if center:  # sizes must not be negative
        boxes = g.node("Abs", boxes)
    scores = g.node("Sigmoid", operand(g, (batch, classes, n)))
    most = [g.const(g.pick([1], [3], [20]), "int64")]
    limits = [g.const([g.pick(0.0, 0.3, 0.6)], "float32"), g.const([g.pick(0.1, 0.5)], "float32")]
    return g.node(
        "NonMaxSuppression", boxes, scores, *most, *limits[: g.int(0, 2)],
        center_point_box=g.pick(1, 1) if center else g.pick(None, 0),
    )  # fmt: skip


def reverse_sequence(g):
    x = g.choose(lambda v: v.ndim >= 2 and v.array.size)
    time = g.pick(0, 1)
    batch = 1 - time
    if not x.is_static(batch):
        raise Rejected
    least = min(sizes(x, time))
    lens = g.const(g.rng.integers(1, least + 1, x.shape[batch]), "int64")
    return g.node("ReverseSequence", x, lens, time_axis=time, batch_axis=batch)


def scatter(g):
    """The older name of ScatterElements, each element written once."""
    x = g.choose(lambda v: is_f32(v) and v.ndim and v.array.size and v.static)
    axis = g.int(0, x.ndim - 1)
    order = np.argsort(g.rng.random(x.shape), axis)
    return g.node("Scatter", x, g.const(order), operand(g, x.shape), axis=axis)


def tensor_scatter(g):
    batch, length = g.pick(1, 2), g.pick(5, 8)
    mode = g.pick(None, "linear", "circular")
    count = g.pick(1, 3)
    past = operand(g, (batch, g.pick(1, 2), length, g.pick(3, 4)))
    update = operand(g, (batch, past.shape[1], count, past.shape[3]))
    at = length if mode == "circular" else length - count + 1
    start = g.const(g.rng.integers(0, at, batch), "int64") if g.chance(0.7) else None
    return g.node("TensorScatter", past, update, start, mode=mode, axis=g.pick(None, -2))


def top_k_of_size(g):
    """As many of the largest as half of another's dim."""
    x = g.choose(lambda v: is_f32(v) and v.ndim and v.array.size)
    n = g.node("Gather", g.node("Shape", x), g.ints(x.ndim - 1))
    k = g.node("Div", g.node("Add", n, g.ints(1)), g.ints(2))
    return g.node("TopK", x, k, outputs=2, axis=-1, largest=g.pick(None, 0, 1))


def random_like(g):
    """Of random numbers only what does not depend on them."""
    x = g.choose(lambda v: is_f32(v) and v.ndim)
    zero, (drawn, nothing, same) = g.scalar(0.0), (g.name() for _ in range(3))
    op = g.pick("RandomNormalLike", "RandomUniformLike")
    nodes = [
        helper.make_node(op, [x.name], [drawn], g.name(f"{op}_"), seed=1.0),
        helper.make_node("Mul", [drawn, zero.name], [nothing], g.name("Mul_")),
        helper.make_node("Add", [nothing, x.name], [same], g.name("Add_")),
    ]
    return g.add_all(nodes, [x, zero])[0]


def dropout(g):
    x = g.choose(is_f32)
    if g.opset < 12:
        return g.node("Dropout", x, ratio=0.5)
    training = [g.scalar(0.5), g.const(False, "bool")] if g.chance(0.5) else []
    return g.node("Dropout", x, *training, outputs=g.pick(1, 2))


def loss(g):
    c, n = g.pick(1, 3, 7), g.pick(1, 4, (3, 5))
    tail = g.pick((), (), (2,), (3, 2))
    scores = operand(g, (n, c, *tail))
    weight = [g.const(np.abs(g.numbers((c,))) + np.float32(0.1))] if g.chance(0.5) else []
    if isinstance(n, tuple):  # labels of the size of the scores
        best = g.node("ArgMax", scores, axis=1, keepdims=0)
        labels = best
    else:
        labels = g.const(g.rng.integers(0, c, (n, *tail)), g.pick("int64", "int32"))
    attributes = {
        "reduction": g.pick(None, "mean", "sum", "none"),
        "ignore_index": g.pick(None, 0, -1),
    }
    if g.chance(0.5):
        scores = g.node("LogSoftmax", scores, axis=1)
        return g.node("NegativeLogLikelihoodLoss", scores, labels, *weight, **attributes)
    return g.node(
        "SoftmaxCrossEntropyLoss", scores, labels, *weight, outputs=g.pick(1, 2), **attributes
    )


def scan(g):
    """A running product of the slices along an axis, and what it is at each."""
    # Of slices without elements onnxruntime divides by zero.
    x = g.choose(lambda v: is_f32(v) and v.ndim >= 2 and 0 < v.array.size < 3000)
    axis = g.int(0, x.ndim - 1)
    if g.opset < 9:
        raise Rejected
    rest = [k for k in range(x.ndim) if k != axis]
    start = g.node("ReduceMean", x, axes=[axis], keepdims=0) if g.opset < 18 else None
    if start is None:
        start = g.node("ReduceMean", x, g.ints(axis), keepdims=0)
    s, e, s2, e2, t = (g.name("s") for _ in range(5))
    shape = [None] * len(rest)
    body = helper.make_graph(
        [
            helper.make_node("Mul", [s, e], [t]),
            helper.make_node("Tanh", [t], [s2]),
            helper.make_node("Add", [t, e], [e2]),
        ],
        "body",
        [info(s, shape=shape), info(e, shape=shape)],
        [info(s2, TensorProto.FLOAT, shape), info(e2, TensorProto.FLOAT, shape)],
    )
    node = helper.make_node(
        "Scan", [start.name, x.name], [g.name(), g.name()], g.name("Scan_"), body=body,
        num_scan_inputs=1, scan_input_axes=[axis], scan_input_directions=[g.pick(0, 1)],
        scan_output_axes=[g.pick(0, axis)], scan_output_directions=[g.pick(0, 1)],
    )  # fmt: skip
    return g.add(node, [start, x])[0]


#: What makes a node, and how often it is chosen.
SELECTION = [(unique, 1), (non_max_suppression, 1), (reverse_sequence, 1), (scatter, 0.5),
             (tensor_scatter, 1), (top_k_of_size, 1), (random_like, 0.5), (dropout, 1), (loss, 1.5),
             (scan, 1)]  # fmt: skip
