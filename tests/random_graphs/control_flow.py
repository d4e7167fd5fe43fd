"""If, Loop and Scan."""

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
