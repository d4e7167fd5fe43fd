"""Losses, and what only training or chance changes."""

import numpy as np
from onnx import helper

from .choice import is_f32, operand


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


#: What makes a node, and how often it is chosen.
TRAINING = [(random_like, 0.5), (dropout, 1), (loss, 1.5)]
