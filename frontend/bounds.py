"""What the compiler can tell of integers that are known only at run time: how small, how large.

Indices that cannot lie beyond their axis need no check. Bounds are followed from an ONNX value to
the nodes that it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod

import numpy as np
import onnx_ir as ir
from tvm import relax, tirx

from .builder import Builder, Dim
from .known import as_expr

__all__ = ["KEEP_VALUES", "Bounds", "bounds", "column_bounds"]

#: The least and the greatest that a value may have.
Bounds = tuple[Dim, Dim]

_DEEPEST = 16  # nodes that are followed
_MOST_SYMBOLIC = 8  # elements of a value known at compile time, of which some are dims
_LARGEST = 1 << 31  # sums and products of bounds beyond are not followed: they may overflow
_BOUNDED = {"BOOL": (0, 1), "UINT8": (0, 255), "INT8": (-128, 127), "UINT16": (0, 65535),
            "INT16": (-32768, 32767)}  # fmt: skip

#: Operators all of whose elements are those of their first input, each at least once.
KEEP_VALUES = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
# Those that may leave some away, or repeat some.
_PARTS = KEEP_VALUES | {"Compress", "Expand", "Gather", "GatherElements", "GatherND", "ReduceMax",
                        "ReduceMin", "ReverseSequence", "Slice", "Split", "Tile"}  # fmt: skip


def bounds(bb: Builder, value: ir.Value | None) -> Bounds | None:
    """The least and the greatest of the integers ``value``; None: who knows."""
    return _Search(bb).of(value, _DEEPEST)


def column_bounds(bb: Builder, value: ir.Value, count: int) -> list[Bounds | None]:
    """The same for each place along the last axis, which has ``count``."""
    return _Search(bb).columns(value, count, _DEEPEST)


class _Search:
    """Looks for the bounds of values; each is looked at once."""

    def __init__(self, bb: Builder):
        self.bb = bb
        self._found: dict[ir.Value, Bounds | None] = {}

    def of(self, value: ir.Value | None, depth: int) -> Bounds | None:
        if value is None or depth == 0:
            return None
        if value not in self._found:
            self._found[value] = None
            self._found[value] = self._known(value) or self._made(value, depth)
        return self._found[value]

    def columns(self, value: ir.Value, count: int, depth: int) -> list[Bounds | None]:
        array, node = self._static(value), value.producer()
        if array is not None and array.ndim and array.shape[-1] == count:
            return [_extremes(array[..., k]) for k in range(count)]
        if node is not None and node.op_type == "Transpose" and depth:
            made = node.inputs[0].producer()
            dims = self.dims(made.inputs[0]) if made is not None else None
            if dims and made.op_type == "NonZero":
                return [(0, _less(dim)) for dim in dims]
        if node is not None and node.op_type == "Concat" and depth and self._joins_last(node):
            widths = [(self.dims(part) or [None])[-1] for part in node.inputs]
            if all(isinstance(width, int) for width in widths):
                pairs = zip(node.inputs, widths, strict=True)
                return [b for part, n in pairs for b in self.columns(part, n, depth - 1)]
        return [self.of(value, depth)] * count

    def dims(self, value: ir.Value | None) -> Sequence[Dim] | None:
        """The shape of a value that is converted already."""
        made = self.bb.walk.values.get(value)
        if isinstance(getattr(made, "ty", None), relax.TensorType) and made.ty.shape is not None:
            return self.bb.shape(made)
        return None

    def _joins_last(self, node: ir.Node) -> bool:
        dims = self.dims(node.outputs[0])
        axis = _attribute(node, "axis", 0)
        return dims is not None and axis in (-1, len(dims) - 1)

    def _static(self, value: ir.Value) -> np.ndarray | None:
        made = self.bb.walk.tensor(value)
        if not isinstance(getattr(made, "ty", None), relax.TensorType):
            return None
        return self.bb.static(made)

    def _known(self, value: ir.Value) -> Bounds | None:
        """Those of what is known at compile time."""
        array = self._static(value)
        return None if array is None else _extremes(array)

    def _made(self, value: ir.Value, depth: int) -> Bounds | None:
        node, kind = value.producer(), value.dtype.name if value.dtype is not None else ""
        found = None
        if node is None:
            found = self._counted(value, depth)
        elif node.domain == "":
            rule = _RULES.get(node.op_type)
            place = list(node.outputs).index(value)
            found = None if rule is None else rule(self, node, place, depth - 1)
        return found or _BOUNDED.get(kind)

    def _counted(self, value: ir.Value, depth: int) -> Bounds | None:
        """Those of the number of a trip, which a Loop gives its body first."""
        loop = self.bb.walk.owners.get(value.graph)
        if loop is None or loop.op_type != "Loop" or value is not value.graph.inputs[0]:
            return None
        trips = self.of(loop.inputs[0], depth - 1)
        return None if trips is None else (0, _less(trips[1]))


def _extremes(array: np.ndarray) -> Bounds | None:
    if array.dtype.kind not in "biuO" or (array.dtype == object and array.size > _MOST_SYMBOLIC):
        return None
    if array.size == 0:
        return 0, 0
    if array.dtype != object:
        return int(array.min()), int(array.max())
    items = [as_expr(item) for item in array.flat]
    return reduce(tirx.min, items), reduce(tirx.max, items)


def _attribute(node: ir.Node, name: str, default: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default


def _less(bound: Dim) -> Dim:
    return bound - 1 if isinstance(bound, int) else bound - as_expr(1)


def _least(*bounds: Dim) -> Dim:
    return min(bounds) if _numbers(bounds) else reduce(tirx.min, map(as_expr, bounds))


def _greatest(*bounds: Dim) -> Dim:
    return max(bounds) if _numbers(bounds) else reduce(tirx.max, map(as_expr, bounds))


def _numbers(bounds: Sequence[Dim]) -> bool:
    return all(isinstance(bound, int) for bound in bounds)


# --- what operators make of bounds -------------------------------------------------------------

Rule = Callable[[_Search, ir.Node, int, int], Bounds | None]


def _of_first(search: _Search, node: ir.Node, place: int, depth: int) -> Bounds | None:
    return search.of(node.inputs[0], depth)


def _of_any(search: _Search, node: ir.Node, _place: int, depth: int) -> Bounds | None:
    chosen = node.inputs[1:] if node.op_type == "Where" else node.inputs
    found = [search.of(value, depth) for value in chosen]
    if None in found:
        return None
    lows, highs = zip(*found, strict=True)
    return _least(*lows), _greatest(*highs)


def _cast(search: _Search, node: ir.Node, _place: int, depth: int) -> Bounds | None:
    """Of integers that the type has room for."""
    source, kind = node.inputs[0], node.outputs[0].dtype
    found = search.of(source, depth) if source.dtype is not None else None
    if found is None or (not source.dtype.is_integer() and source.dtype != ir.DataType.BOOL):
        return None
    wide = kind in (ir.DataType.INT32, ir.DataType.INT64)
    if wide and (source.dtype.itemsize <= kind.itemsize or _fits(found)):
        return found
    return None


def _fits(found: Bounds) -> bool:
    return not _numbers(found) or max(map(abs, found)) < _LARGEST


def _place_on_axis(search: _Search, node: ir.Node, place: int, depth: int) -> Bounds | None:
    """Of places on an axis: of an extremum, or as TopK gives them behind what is there."""
    if node.op_type == "TopK" and place == 0:
        return search.of(node.inputs[0], depth)
    dims = search.dims(node.inputs[0])
    axis = _attribute(node, "axis", -1 if node.op_type == "TopK" else 0)
    return (0, _less(dims[axis])) if dims else None


def _filled(_search: _Search, node: ir.Node, _place: int, _depth: int) -> Bounds | None:
    value = node.attributes.get("value")
    return (0, 0) if value is None else _extremes(value.as_tensor().numpy())


def _non_zero(search: _Search, node: ir.Node, _place: int, _depth: int) -> Bounds | None:
    dims = search.dims(node.inputs[0])
    return (0, _less(_greatest(*dims))) if dims else None


def _max_pool(search: _Search, node: ir.Node, place: int, depth: int) -> Bounds | None:
    dims = search.dims(node.inputs[0])
    if place == 0:
        return search.of(node.inputs[0], depth)
    return (0, prod(dims) - 1) if dims and _numbers(dims) else None


def _suppressed(search: _Search, node: ir.Node, _place: int, _depth: int) -> Bounds | None:
    """Of numbers of a batch, of a class, and of a box."""
    boxes, scores = (search.dims(value) for value in node.inputs[:2])
    return (0, _less(_greatest(*boxes[:2], *scores[:2]))) if boxes and scores else None


def _range(search: _Search, node: ir.Node, _place: int, depth: int) -> Bounds | None:
    start, limit, step = (search.of(value, depth) for value in node.inputs)
    if start is None or limit is None or step is None:
        return None
    if isinstance(step[0], int) and step[0] > 0:
        return start[0], _less(limit[1])
    return None


def _clip(search: _Search, node: ir.Node, _place: int, depth: int) -> Bounds | None:
    """Of what is first made no less than one bound, then no more than the other."""
    found, low, high = (search.of(value, depth) for value in [*node.inputs, None, None][:3])
    lowest, highest = low or found, high or found
    if lowest is None or highest is None:
        return None
    ends = [each for each in (low, high) if each is not None]
    return (
        _least(lowest[0], *(each[0] for each in ends)),
        highest[1] if high else _greatest(highest[1], *(each[1] for each in ends)),
    )


def _least_of(search: _Search, node: ir.Node, _place: int, depth: int) -> Bounds | None:
    found = [search.of(value, depth) for value in node.inputs]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    choose = _least if node.op_type == "Min" else _greatest
    return choose(*(low for low, _ in known)), choose(*(high for _, high in known))


def _remainder(search: _Search, node: ir.Node, _place: int, depth: int) -> Bounds | None:
    """Of remainders that have the sign of a positive divisor."""
    by = search.of(node.inputs[1], depth)
    if by is None or _attribute(node, "fmod", 0) or not search.bb.proves(as_expr(by[0]) > 0):
        return None
    return 0, _less(by[1])


def _arithmetic(search: _Search, node: ir.Node, _place: int, depth: int) -> Bounds | None:
    first, second = (search.of(value, depth) for value in node.inputs)
    if first is None or second is None or not _numbers((*first, *second)):
        return None
    operate = _OPERATIONS[node.op_type]
    ends = [operate(a, b) for a in first for b in second]
    found = min(ends), max(ends)
    return found if _fits(found) else None


def _quotient(search: _Search, node: ir.Node, _place: int, depth: int) -> Bounds | None:
    of, by = (search.of(value, depth) for value in node.inputs)
    if of is None or by is None or not _numbers((*of, *by)) or of[0] < 0 or by[0] <= 0:
        return None
    return of[0] // by[1], of[1] // by[0]


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
}

_RULES: dict[str, Rule] = {
    **dict.fromkeys(_PARTS, _of_first),
    **dict.fromkeys(_OPERATIONS, _arithmetic),
    **dict.fromkeys(("ArgMax", "ArgMin", "TopK"), _place_on_axis),
    **dict.fromkeys(("Concat", "Where"), _of_any),
    **dict.fromkeys(("Max", "Min"), _least_of),
    "Cast": _cast,
    "Clip": _clip,
    "ConstantOfShape": _filled,
    "Div": _quotient,
    "MaxPool": _max_pool,
    "Mod": _remainder,
    "NonMaxSuppression": _suppressed,
    "NonZero": _non_zero,
    "Range": _range,
}
