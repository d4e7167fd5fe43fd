"""Values known at compile time: shape arithmetic on ints and symbolic dims.

ONNX models compute shapes with ordinary operators (Shape, Gather, Concat, Mul, ...). The graph
walk evaluates those chains here, so that Reshape, Expand, Slice and the like see dims, not
tensors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import tirx
from tvm.sym import Analyzer

__all__ = ["Known", "evaluate", "simplified"]

# Shapes are short; beyond this a value is data, not a shape.
MAX_ELEMENTS = 1024


@dataclass(frozen=True)
class Known:
    """An array known at compile time; its elements may be symbolic dims (then dtype is object)."""

    array: np.ndarray
    dtype: str

    @property
    def symbolic(self) -> bool:
        return self.array.dtype == object and any(isinstance(e, tirx.Expr) for e in self.array.flat)


def simplified(dim: object, analyzer: Analyzer) -> object:
    """``dim`` as an int where its value is known, else in simplified form."""
    if not isinstance(dim, tirx.Expr):
        return int(dim)
    dim = analyzer.simplify(dim)
    return int(dim) if isinstance(dim, tirx.IntImm) else dim


Evaluator = Callable[..., np.ndarray]
_EVALUATORS: dict[str, Evaluator] = {}


def _evaluator(*op_types: str) -> Callable[[Evaluator], Evaluator]:
    def register(function: Evaluator) -> Evaluator:
        _EVALUATORS.update(dict.fromkeys(op_types, function))
        return function

    return register


def evaluate(
    op_type: str, inputs: list[Known | None], attributes: dict[str, object], analyzer: Analyzer
) -> Known | None:
    """The node's result if its inputs are known integers and the operator is shape arithmetic."""
    function = _EVALUATORS.get(op_type)
    if function is None or not inputs or any(not _is_shape_like(known) for known in inputs):
        return None
    try:
        array = function(*[known.array.astype(object) for known in inputs], **attributes)
    except (_NotShapeArithmetic, TypeError):
        return None
    if not isinstance(array, np.ndarray):  # numpy unwraps rank 0
        scalar, array = array, np.empty((), object)
        array[()] = scalar
    if array.size > MAX_ELEMENTS:
        return None
    result = np.empty(array.shape, object)
    for index in np.ndindex(array.shape):
        result[index] = simplified(array[index], analyzer)
    dtype = inputs[0].dtype
    if op_type == "Cast":
        dtype = "int64" if attributes["to"] == 7 else "int32"
    return Known(result, dtype)


def _is_shape_like(known: Known | None) -> bool:
    return known is not None and known.dtype in ("int32", "int64") and known.array.size <= MAX_ELEMENTS


class _NotShapeArithmetic(Exception):
    """This use of the operator is not evaluated here."""


def _concrete(array: np.ndarray) -> np.ndarray:
    if any(isinstance(e, tirx.Expr) for e in array.flat):
        raise _NotShapeArithmetic
    return array.astype(np.int64)


@_evaluator("Identity")
def _identity(x):
    return x


@_evaluator("Cast")
def _cast(x, *, to, saturate=1, round_mode="up"):
    if to not in (6, 7):  # INT32, INT64
        raise _NotShapeArithmetic
    return x


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
        if step < 0 and end < -x.shape[axis]:
            end = None
        index[axis] = slice(start, end, step)
    return x[tuple(index)]


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

    return np.frompyfunc(divide, 2, 1)(a, b)


@_evaluator("Mod")
def _mod(a, b, *, fmod=0):
    if fmod:
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


def _extremum(symbolic, concrete):
    def choose(x, y):
        if isinstance(x, tirx.Expr) or isinstance(y, tirx.Expr):
            return symbolic(x, y)
        return concrete(x, y)

    def fold(first, *rest):
        for other in rest:
            first = np.frompyfunc(choose, 2, 1)(first, other)
        return first

    return fold


_EVALUATORS["Min"] = _extremum(tirx.min, min)
_EVALUATORS["Max"] = _extremum(tirx.max, max)


@_evaluator("ReduceProd")
def _reduce_prod(x, axes_input=None, *, axes=None, keepdims=1, noop_with_empty_axes=0):
    if axes_input is not None:
        axes = _concrete(axes_input).tolist()
    if not axes:
        if noop_with_empty_axes:
            return x
        axes = list(range(x.ndim))
    return np.asarray(np.prod(x, axis=tuple(axes), keepdims=bool(keepdims)), object)


@_evaluator("Range")
def _range(start, limit, delta):
    start, limit, delta = (_concrete(v).item() for v in (start, limit, delta))
    if delta == 0 or abs(limit - start) > abs(delta) * MAX_ELEMENTS:
        raise _NotShapeArithmetic
    return np.arange(start, limit, delta).astype(object)


@_evaluator("Expand")
def _expand(x, shape):
    return x * np.ones(_concrete(shape), object)


@_evaluator("Tile")
def _tile(x, repeats):
    return np.tile(x, _concrete(repeats))
