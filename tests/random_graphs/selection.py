"""Operators that choose, order and scatter."""

import numpy as np

from .choice import is_f32, operand, sizes
from .graph import Rejected


def unique(g):
    # Of no elements along an axis onnxruntime ends the process.
    x = g.choose(lambda v: v.dtype.kind in "fi" and v.ndim and 0 < v.array.size < 500)
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


#: What makes a node, and how often it is chosen.
SELECTION = [(unique, 1), (non_max_suppression, 1), (reverse_sequence, 1), (scatter, 0.5),
             (tensor_scatter, 1), (top_k_of_size, 1)]  # fmt: skip
