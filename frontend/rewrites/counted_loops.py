"""While loops that count, as loops of so many trips.

Before::

    y, k = Loop (, c0, x, i0) <body = (t, c, s, i) => (d, f, j) { j = Add (i, 1)  d = Less (j, n) }>

After::

    m = Sub (n, i0)
    y, k = Loop (m, true, x, i0) <body = (t, c, s, i) => (c, f, j) { j = Add (i, 1) }>

where ``c0`` is ``Less (i0, n)``. If it is another condition, it stays, and does not hold ``n``
against the first trip: there ``m`` is ``Max (m, 1)``. What such a loop gives for all trips has a
length that is known from the begin. TensorFlow's loops over sequences are such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .fold import fold_constants
from .infer import infer_by_onnx
from .rule import constant, known

__all__ = ["count_trips"]

_BEFORE_STATE = 2  # inputs of a Loop, and of its body
_MIN_OF_INTEGERS = 12  # the opset
_INTEGERS = frozenset({ir.DataType.INT32, ir.DataType.INT64})
_EXACT = 2**24  # up to which float32 has every integer
_WIDE = frozenset({ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE})
# Which operand is the lesser one, and whether they may be equal.
_COMPARISONS = {
    "Less": (0, False), "LessOrEqual": (0, True),
    "Greater": (1, False), "GreaterOrEqual": (1, True),
}  # fmt: skip


@dataclass(frozen=True)
class _Comparison:
    """``counter < bound``, or, with ``equal``, ``counter <= bound``."""

    counter: ir.Value
    bound: ir.Value
    equal: bool


def count_trips(model: ir.Model) -> ir.Model:
    """Compute the number of trips in front of every Loop that goes on while counters are small.

    What one stacks has a length then, which the next may count to.
    """
    opset = model.opset_imports.get("", 0)
    while sum(_count(node, opset) for node in _loops(model)):  # all of them, not up to one
        infer_by_onnx(model)
        fold_constants(model)
    return model


def _loops(model: ir.Model) -> list[ir.Node]:
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    return [node for node in nodes if node.op_type == "Loop" and node.domain == ""]


def _count(node: ir.Node, opset: int) -> bool:
    """Whether ``node`` is counted now, and was not before."""
    body = node.attributes["body"].as_graph()
    going = body.inputs[1]
    ends = _comparisons(body.outputs[0], going)
    begins = [_begin(end, node, body) for end in ends or ()]
    if not begins or None in begins:
        return False
    asked = node.inputs[1]
    from_begin = asked is not None and _same(_comparisons(asked), begins)
    many = len(begins) > 1 or node.inputs[0] is not None or not from_begin
    if many and opset < _MIN_OF_INTEGERS:
        return False
    trips = _trips(node, begins, 0 if from_begin else 1)
    node.replace_input_with(0, trips)
    if from_begin:
        true = _constant(node, np.array(True))
        node.replace_input_with(1, true)
    stays = ir.node("Identity", [going])
    stays.outputs[0].type, stays.outputs[0].shape = going.type, going.shape
    body.append(stays)
    body.outputs[0] = stays.outputs[0]
    return True


def _comparisons(value: ir.Value, going: ir.Value | None = None) -> list[_Comparison] | None:
    """The comparisons that all have to hold where ``value`` does; ``going`` does. None: it is of
    another kind."""
    value = _origin(value)
    node = value.producer()
    if value is going:
        return []
    if node is None or node.domain:
        return None
    if node.op_type == "And":
        sides = [_comparisons(side, going) for side in node.inputs]
        return None if None in sides else [one for side in sides for one in side or ()]
    if node.op_type not in _COMPARISONS:
        return None
    lesser, equal = _COMPARISONS[node.op_type]
    counter, bound = _origin(node.inputs[lesser]), _origin(node.inputs[1 - lesser])
    return [_Comparison(counter, bound, equal)]


def _begin(end: _Comparison, loop: ir.Node, body: ir.Graph) -> _Comparison | None:
    """Of a counter that each trip increases by 1 and that is compared with what stays as it is,
    the same comparison before the first trip."""
    node = end.counter.producer()
    if node is None or node.op_type != "Add" or not _is_whole(end.bound):
        return None
    if not _is_outside(end.bound, body):
        return None
    for before, step in (node.inputs, node.inputs[::-1]):
        one = constant(step)
        for k, carried in enumerate(body.inputs[_BEFORE_STATE:]):
            begun = loop.inputs[_BEFORE_STATE + k]
            if (
                one is not None
                and one.size == 1
                and one.item() == 1
                and _origin(before) is carried
                and _origin(body.outputs[1 + k]) is end.counter
                and begun is not None
                and begun.dtype in _INTEGERS
            ):
                return _Comparison(_origin(begun), end.bound, end.equal)
    return None


def _is_whole(value: ir.Value) -> bool:
    """Whether ``value`` is of integers, or an integer that is known as a number of another type."""
    array = constant(value)
    if array is not None and array.dtype.kind == "f":
        return array.size == 1 and bool(abs(array.item()) < _EXACT and array == np.rint(array))
    return value.dtype in _INTEGERS


def _is_outside(value: ir.Value, body: ir.Graph) -> bool:
    """Whether ``value`` is there before the loop, and is a number."""
    node = value.producer()
    if constant(value) is not None:
        return constant(value).size == 1
    inside = node.graph is body if node is not None else value in body.inputs
    return not inside and value.shape is not None and all(dim == 1 for dim in value.shape)


def _same(asked: Sequence[_Comparison] | None, begins: Sequence[_Comparison]) -> bool:
    """Whether a loop begins by the conditions by which it goes on."""
    return (
        asked is not None
        and len(asked) == len(begins)
        and all(
            _equal(a.counter, b.counter) and _equal(a.bound, b.bound) and a.equal == b.equal
            for a, b in zip(asked, begins, strict=True)
        )
    )


def _equal(a: ir.Value, b: ir.Value) -> bool:
    numbers = [constant(_origin(value)) for value in (a, b)]
    if numbers[0] is None or numbers[1] is None:
        return _origin(a) is _origin(b)
    return bool(np.array_equal(numbers[0].ravel(), numbers[1].ravel()))


def _trips(loop: ir.Node, begins: Sequence[_Comparison], least: int) -> ir.Value:
    """The number of trips, ``least`` where there is no condition before the first."""
    counts = []
    for begin in begins:
        count = _emit(loop, "Sub", [_number(loop, v) for v in (begin.bound, begin.counter)])
        if begin.equal:
            count = _emit(loop, "Add", [count, _constant(loop, np.array([1]))])
        counts.append(count)
    if least:
        counts = [_emit(loop, "Max", [c, _constant(loop, np.array([least]))]) for c in counts]
    if loop.inputs[0] is not None:
        counts.append(_number(loop, loop.inputs[0]))
    return _emit(loop, "Min", counts) if len(counts) > 1 else counts[0]


def _number(loop: ir.Node, value: ir.Value) -> ir.Value:
    """``value``, which may be a constant of the body, as an int64[1] in front of ``loop``."""
    array = constant(value)
    if array is not None:
        return _constant(loop, array.astype("int64").reshape(1))
    wide = _emit(loop, "Cast", [value], to=ir.DataType.INT64)
    return _emit(loop, "Reshape", [wide, _constant(loop, np.array([1]))])


def _emit(loop: ir.Node, op_type: str, inputs: Sequence[ir.Value], **attributes: int) -> ir.Value:
    """The result of a new node in front of ``loop``: an int64 of one element."""
    node = ir.node(op_type, inputs, attributes)
    loop.graph.insert_before(loop, node)
    (result,) = node.outputs
    result.type = ir.TensorType(ir.DataType.INT64)
    result.shape = inputs[0].shape if op_type == "Cast" else ir.Shape([1])
    return result


def _constant(loop: ir.Node, array: np.ndarray) -> ir.Value:
    node = known(array)
    loop.graph.insert_before(loop, node)
    return node.outputs[0]


def _origin(value: ir.Value) -> ir.Value:
    """What ``value`` is but for its name, and for its type where that is made wider."""
    while (node := value.producer()) is not None and node.op_type in ("Identity", "Cast"):
        (source,) = node.inputs
        if source is None or (node.op_type == "Cast" and not _is_wider(source.dtype, node)):
            break
        value = source
    return value


def _is_wider(given: ir.DataType | None, cast: ir.Node) -> bool:
    """Whether a conversion keeps numbers as they are, counts of 2^24 and more aside."""
    to = ir.DataType(cast.attributes.get_int("to", 0))
    return given == to or (given in _INTEGERS and to in _WIDE)
