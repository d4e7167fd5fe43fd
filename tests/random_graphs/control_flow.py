"""If and Loop."""

import numpy as np
from onnx import TensorProto, helper

from .choice import is_f32, of_shape
from .graph import Rejected


def subgraph(g, result, body, name="branch"):
    """A graph without inputs that gives ``result``; ``body`` are its nodes."""
    return helper.make_graph(body, name, [], [info(result)])


def info(name, dtype=TensorProto.FLOAT, shape=None):
    return helper.make_tensor_value_info(name, dtype, shape)


def branch(g):
    """If on a computed condition; both branches read values from outside."""
    x = g.choose(lambda v: is_f32(v) and v.array.size)
    y = g.choose(lambda v: of_shape(v, x))
    if g.opset < 11:
        raise Rejected
    total = g.node("ReduceMax", x, keepdims=0)
    condition = g.node(
        g.pick("Less", "Greater"), total, g.const(np.array(g.pick(0.0, 1.0, 2.0), "float32"))
    )
    names = [g.name("b") for _ in range(4)]
    then = [
        helper.make_node("Relu", [x.name], [names[0]]),
        helper.make_node("Add", [names[0], y.name], [names[1]]),
    ]
    other_ = [helper.make_node(g.pick("Neg", "Identity", "Tanh"), [y.name], [names[2]])]
    result = names[2]
    if g.chance(0.3):  # a value from outside as it is
        other_, result = [helper.make_node("Identity", [x.name], [names[2]])], names[2]
    node = helper.make_node(
        "If",
        [condition.name],
        [g.name()],
        g.name("If_"),
        then_branch=subgraph(g, names[1], then),
        else_branch=subgraph(g, result, other_),
    )
    return g.add(node, [condition, x, y])[0]


def loop(g):
    """A counted loop that carries a value, captures another and collects a third."""
    x = g.choose(lambda v: is_f32(v) and v.array.size and v.array.size < 3000)
    y = g.choose(lambda v: of_shape(v, x))
    if g.opset < 11:
        raise Rejected
    if g.chance(0.5):
        trips = g.const(np.array(g.int(0, 4)))
    else:
        trips = g.node("Gather", g.node("Shape", x), g.const(np.array(0)))
    i, c, s, c2, s2, t, e = (g.name("l") for _ in range(7))
    body = [
        helper.make_node("Identity", [c], [c2]),
        helper.make_node("Mul", [s, y.name], [t]),
        helper.make_node("Tanh", [t], [s2]),
        helper.make_node("Cast", [i], [e], to=1),
    ]
    graph = helper.make_graph(
        body,
        "body",
        [info(i, TensorProto.INT64, []), info(c, TensorProto.BOOL, []), info(s)],
        [info(c2, TensorProto.BOOL, []), info(s2), info(e)],
    )
    node = helper.make_node(
        "Loop", [trips.name, "", x.name], [g.name(), g.name()], g.name("Loop_"), body=graph
    )
    return g.add(node, [trips, x, y])[0]
