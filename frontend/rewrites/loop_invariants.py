"""What a Loop carries and no trip changes is read from around it.

Before::

    y, v = Loop(n, c, x, w) <body = (i, c, s, u) => (c, t, u) { t = MatMul(s, u) }>

After, where ``w`` may be a constant::

    y, v = Loop(n, c, x, w) <body = (i, c, s, u) => (c, t, u) { t = MatMul(s, w) }>
    all else that reads v reads w
"""

import onnx_ir as ir

__all__ = ["read_loop_invariants_outside"]

_BEFORE_STATE = 2  # inputs of a Loop, and of its body


def read_loop_invariants_outside(model: ir.Model) -> ir.Model:
    """Exporters of while loops of TensorFlow and PaddlePaddle carry all weights."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):  # outer loops first
        if node.op_type == "Loop" and node.domain == "":
            _read_outside(node)
    return model


def _read_outside(node: ir.Node) -> None:
    body = node.attributes["body"].as_graph()
    carried = zip(
        node.inputs[_BEFORE_STATE:], body.inputs[_BEFORE_STATE:], body.outputs[1:], node.outputs,
        strict=False,
    )  # fmt: skip
    for given, before, after, result in carried:
        if given is not None and _origin(after) is before:
            for value in (before, result):
                for use, place in tuple(value.uses()):
                    use.replace_input_with(place, given)


def _origin(value: ir.Value) -> ir.Value:
    """What ``value`` is but for its name."""
    while (node := value.producer()) is not None and node.op_type == "Identity":
        (source,) = node.inputs
        if source is None:
            break
        value = source
    return value
