"""Shape arithmetic on ints and symbolic dims.

ONNX models compute shapes with ordinary operators (Shape, Gather, Concat, Mul, ...). The graph
walk evaluates those chains here, so that Reshape, Expand, Slice and the like see dims, not
tensors.
"""

import operator
from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from tvm import tirx
from tvm.sym import Analyzer

from .known import MAX_ELEMENTS, MAX_SYMBOLIC, Known, simplified, slice_range

__all__ = ["evaluate", "is_shape_arithmetic"]

Evaluator = Callable[..., np.ndarray]
_EVALUATORS: dict[str, Evaluator] = {}
_INTEGERS = {"int32", "int64", "bool"}
_FLOATS = {"float32", "float64"}  # sizes are scaled by floats; such values are never symbolic
_CASTS = {1: "float32", 6: "int32", 7: "int64", 9: "bool", 11: "float64"}
_COMPARISONS = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not"}


def _evaluator(*op_types: str) -> Callable[[Evaluator], Evaluator]:
    def register(function: Evaluator) -> Evaluator:
        _EVALUATORS.update(dict.fromkeys(op_types, function))
        return function

    return register


def is_shape_arithmetic(op_type: str) -> bool:
    """Whether :func:`evaluate` knows the operator: ask before reading large constants."""
    return op_type in _EVALUATORS


def evaluate(
    op_type: str, inputs: list[Known | None], attributes: dict[str, object], analyzer: Analyzer
) -> Known | None:
    """The node's result if its inputs are known and the operator is shape arithmetic."""
    function = _EVALUATORS.get(op_type)
    if function is None or not inputs or any(not _is_shape_like(known) for known in inputs):
        return None
    operands = [
        known.array.astype(object) if known.dtype in _INTEGERS else known.array for known in inputs
    ]
    try:
        with np.errstate(all="ignore"):
            array = function(*operands, **attributes)
    except (_NotShapeArithmetic, TypeError):
        return None
    if not isinstance(array, np.ndarray):  # numpy unwraps rank 0
        scalar, array = array, np.empty((), object)
        array[()] = scalar
    return _result(array, _result_dtype(op_type, inputs, attributes), analyzer)


def _result(array: np.ndarray, dtype: str, analyzer: Analyzer) -> Known | None:
    if array.size > MAX_ELEMENTS:
        return None
    if dtype in _FLOATS:
        return Known(array.astype(dtype), dtype)
    result = np.empty(array.shape, object)
    for index in np.ndindex(array.shape):
        result[index] = simplified(array[index], analyzer)
    known = Known(result, dtype)
    if known.symbolic and (dtype == "bool" or array.size > MAX_SYMBOLIC):
        return None
    return known


def _result_dtype(op_type: str, inputs: list[Known], attributes: dict[str, object]) -> str:
    if op_type == "Cast":
        return _CASTS[attributes["to"]]
    if op_type == "ConstantOfShape":
        value = attributes.get("value")
        return "float32" if value is None else value.numpy().dtype.name
    if op_type in _COMPARISONS:
        return "bool"
    return inputs[1 if op_type == "Where" else 0].dtype


def _is_shape_like(known: Known | None) -> bool:
    return (
        known is not None
        and known.array.size <= MAX_ELEMENTS
        and known.dtype in _INTEGERS | _FLOATS
    )


class _NotShapeArithmetic(Exception):
    """This use of the operator is not evaluated here."""


def _concrete(numbers: np.ndarray | Sequence[int]) -> np.ndarray:
    """Of an input, or of an attribute, which they were in early opsets."""
    array = np.asarray(numbers)
    if any(isinstance(e, tirx.Expr) for e in array.flat):
        raise _NotShapeArithmetic
    return array.astype(np.int64)


@_evaluator("Identity")
def _identity(x):
    return x


@_evaluator("Cast")
def _cast(x, *, to, saturate=1, round_mode="up"):
    if to not in _CASTS:
        raise _NotShapeArithmetic
    if x.dtype == object and _CASTS[to] in ("int32", "int64"):
        return x
    return (x if x.dtype != object else _concrete(x)).astype(_CASTS[to])


@_evaluator("ConstantOfShape")
def _constant_of_shape(shape, *, value=None):
    fill = np.zeros(1, "float32") if value is None else value.numpy()
    dims = _concrete(shape)
    if fill.dtype.name not in _INTEGERS | _FLOATS or dims.prod() > MAX_ELEMENTS:
        raise _NotShapeArithmetic
    return np.full(dims, fill.item(), object if fill.dtype.name in _INTEGERS else fill.dtype)


@_evaluator("Concat")
def _concat(*parts, axis):
    return np.concatenate(parts, axis)


@_evaluator("Gather")
def _gather(x, indices, *, axis=0):
    return np.take(x, _concrete(indices), axis)


@_evaluator("Slice")
def _slice(x, starts, ends, axes=None, steps=None):
    starts, ends = _concrete(starts), _concrete(ends)
    axes = np.arange(len(starts)) if axes is None else _concrete(axes)
    steps = np.ones_like(starts) if steps is None else _concrete(steps)
    index = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = list(slice_range(int(start), int(end), int(step), x.shape[axis]))
        x = x[tuple(index)]
        index[axis] = slice(None)
    return x


@_evaluator("Unsqueeze")
def _unsqueeze(x, axes_input=None, *, axes=None):
    axes = _concrete(axes_input).tolist() if axes_input is not None else list(axes)
    return np.expand_dims(x, tuple(axes))


@_evaluator("Squeeze")
def _squeeze(x, axes_input=None, *, axes=None):
    if axes_input is not None:
        axes = _concrete(axes_input).tolist()
    return np.squeeze(x, None if axes is None else tuple(axes))


@_evaluator("Reshape")
def _reshape(x, shape, *, allowzero=0):
    target = _concrete(shape).tolist()
    if not allowzero:
        target = [x.shape[i] if d == 0 else d for i, d in enumerate(target)]
    return x.reshape(target)


@_evaluator("Transpose")
def _transpose(x, *, perm=None):
    return x.transpose(perm)


@_evaluator("Flatten")
def _flatten(x, *, axis=1):
    return x.reshape(prod(x.shape[:axis]), -1)


@_evaluator("Add")
def _add(a, b):
    return a + b


@_evaluator("Sub")
def _sub(a, b):
    return a - b


@_evaluator("Mul")
def _mul(a, b):
    return a * b


@_evaluator("Div")
def _div(a, b):
    def divide(x, y):
        if isinstance(x, tirx.Expr) or isinstance(y, tirx.Expr):
            return tirx.truncdiv(x, y)
        if y == 0:
            raise _NotShapeArithmetic
        return int(abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)

    return np.frompyfunc(divide, 2, 1)(a, b) if a.dtype == object else a / b


@_evaluator("Mod")
def _mod(a, b, *, fmod=0):
    if fmod or a.dtype != object:
        raise _NotShapeArithmetic

    def modulo(x, y):
        if isinstance(x, tirx.Expr) or isinstance(y, tirx.Expr):
            return tirx.floormod(x, y)
        if y == 0:
            raise _NotShapeArithmetic
        return x % y

    return np.frompyfunc(modulo, 2, 1)(a, b)


@_evaluator("Neg")
def _neg(a):
    return -a


@_evaluator("Floor")
def _floor(a):
    return np.floor(a)


@_evaluator("Ceil")
def _ceil(a):
    return np.ceil(a)


@_evaluator("Not")
def _not(a):
    return ~_concrete(a).astype(bool)


def _either(symbolic: Callable, concrete: Callable) -> Evaluator:
    """An element-wise function of ints and symbolic dims; of floats, where ``concrete`` is."""

    def choose(x, y):
        if isinstance(x, tirx.Expr) or isinstance(y, tirx.Expr):
            return symbolic(
                *(v if isinstance(v, tirx.Expr) else tirx.const(v, "int64") for v in (x, y))
            )
        return concrete(x, y)

    def fold(first, *rest):
        for other in rest:
            first = np.frompyfunc(choose, 2, 1)(first, other)
        return first

    return fold


_EVALUATORS |= {
    "Min": _either(tirx.min, min),
    "Max": _either(tirx.max, max),
    # A comparison that the analyzer cannot decide stays an expression and is then not known.
    "Equal": _either(tirx.EQ, operator.eq),
    "Less": _either(tirx.LT, operator.lt),
    "LessOrEqual": _either(tirx.LE, operator.le),
    "Greater": _either(tirx.GT, operator.gt),
    "GreaterOrEqual": _either(tirx.GE, operator.ge),
}


@_evaluator("Where")
def _where(condition, x, y):
    return np.where(_concrete(condition).astype(bool), x, y)


def _reduction(reduce: Callable) -> Evaluator:
    def evaluate_reduction(x, axes_input=None, *, axes=None, keepdims=1, noop_with_empty_axes=0):
        if axes_input is not None:
            axes = _concrete(axes_input).tolist()
        if not axes:
            if noop_with_empty_axes:
                return x
            axes = list(range(x.ndim))
        if x.size == 0:
            raise _NotShapeArithmetic
        return np.asarray(reduce(x, axis=tuple(axes), keepdims=bool(keepdims)), x.dtype)

    return evaluate_reduction


def _extremum(symbolic: Callable, concrete: Callable) -> Callable:
    pairwise = np.frompyfunc(_either(symbolic, concrete), 2, 1)

    def reduce(x, axis, keepdims):
        for a in sorted((a % x.ndim for a in axis), reverse=True):
            x = pairwise.reduce(x, axis=a, keepdims=keepdims)
        return x

    return reduce


_EVALUATORS |= {
    "ReduceProd": _reduction(np.prod),
    "ReduceSum": _reduction(np.sum),
    "ReduceMin": _reduction(_extremum(tirx.min, min)),
    "ReduceMax": _reduction(_extremum(tirx.max, max)),
}


@_evaluator("Range")
def _range(start, limit, delta, *, stash_type=1):
    if start.dtype != object:
        raise _NotShapeArithmetic
    start, limit, delta = (_concrete(v).item() for v in (start, limit, delta))
    if delta == 0 or abs(limit - start) > abs(delta) * MAX_ELEMENTS:
        raise _NotShapeArithmetic
    return np.arange(start, limit, delta).astype(object)


@_evaluator("Expand")
def _expand(x, shape):
    wanted = tuple(_concrete(shape))
    _demand_few(wanted)
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, wanted))


@_evaluator("Tile")
def _tile(x, repeats):
    times = _concrete(repeats)
    _demand_few([x.size, *times])
    return np.tile(x, times)


def _demand_few(factors: Sequence[int]) -> None:
    """Whoever makes more numbers than a shape has makes no shape: numpy must not try."""
    if prod(map(int, factors)) > MAX_ELEMENTS:
        raise _NotShapeArithmetic
