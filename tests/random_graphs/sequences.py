"""Sequences and optionals, from tensors to tensors."""

from onnx import TensorProto, helper

from .choice import is_f32
from .control_flow import info
from .graph import Rejected


def _chain(g, read, build):
    """Nodes that ``build`` makes by ``add(op, *names)``, evaluated together, of one result."""
    nodes = []

    def add(op, *inputs, **attributes):
        nodes.append(helper.make_node(op, inputs, [g.name()], g.name(f"{op}_"), **attributes))
        return nodes[-1].output[0]

    build(add)
    return g.add_all(nodes, read)


def pieces(g):
    """A tensor in pieces, changed, and one of them or all of them together."""
    x = g.choose(lambda v: v.ndim and v.array.size and v.dtype.kind in "fi")
    if g.opset < 11:
        raise Rejected
    axis = g.int(0, x.ndim - 1)
    one = g.ints(0)
    n = min(a.shape[axis] for a in x.arrays)
    size = g.const(g.pick(1, 2), "int64") if g.chance(0.4) else None
    keep = g.pick(None, 1, 0) if size is None else None  # else ONNX does not look at it
    attributes = {} if keep is None else {"keepdims": keep}
    end = g.pick("at", "stack", "concat", "length", "erase", "insert", "map")

    def build(add):
        names = [x.name] + ([size.name] if size is not None else [])
        s = add("SplitToSequence", *names, axis=axis, **attributes)
        if end == "erase":
            s = add("SequenceErase", s, *([] if g.chance(0.4) else [one.name]))
        elif end == "insert":
            first = add("SequenceAt", s, last.name)
            s = add("SequenceInsert", s, first, *([] if g.chance(0.4) else [one.name]))
        elif end == "map":
            s = _mapped(g, add, s, x)
        if end == "at":
            return add("SequenceAt", s, last.name)
        if end == "length":
            return add("SequenceLength", s)
        if size is None and keep == 0:
            return add("ConcatFromSequence", s, axis=g.pick(0, -1), new_axis=1)
        return add("ConcatFromSequence", s, axis=axis)

    last = g.const(g.pick(0, -1, n - 1 if size is None else 0), "int64")
    return _chain(g, [x, one, last] + ([size] if size is not None else []), build)


def _mapped(g, add, s, x):
    if x.dtype != "float32":
        raise Rejected
    e, r = g.name("m"), g.name("m")
    body = helper.make_graph(
        [helper.make_node(g.pick("Tanh", "Neg"), [e], [r])], "body", [info(e)], [info(r)]
    )
    return add("SequenceMap", s, body=body)


def together(g):
    """Values of one type and rank in a sequence, and one of them."""
    x = g.choose(lambda v: is_f32(v) and v.array.size)
    y = g.choose(lambda v: is_f32(v) and v.ndim == x.ndim)
    at = g.const(g.int(-3, 2), "int64")

    def build(add):
        s = add("SequenceConstruct", x.name, y.name, x.name)
        if g.chance(0.3):
            empty = add("SequenceEmpty", dtype=TensorProto.FLOAT)
            s = add("SequenceInsert", empty, add("SequenceAt", s, at.name))
            return add("ConcatFromSequence", s, axis=0, new_axis=1)
        return add("SequenceAt", s, at.name)

    return _chain(g, [x, y, at], build)


def optional(g):
    x = g.choose(is_f32)

    def build(add):
        o = add("Optional", x.name)
        return add(g.pick("OptionalGetElement", "OptionalHasElement"), o)

    return _chain(g, [x], build)


#: What makes a node, and how often it is chosen.
SEQUENCES = [(pieces, 2), (together, 1), (optional, 0.3)]
