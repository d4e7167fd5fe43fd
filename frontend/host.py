"""Values that no kernel holds (sequences, optionals, maps), and calls of functions on the host.

A sequence whose structure is known at compile time is a relax tuple, an optional with an element
is that element. Everything else has Relax's type Any, and ``Builder.kinds`` knows what it is: at
run time a sequence is an array of tensors, an absent optional is null. The functions that work on
these values are those of ``tvm_ext.executors.host``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from tvm import relax, tirx
from tvm.ir.expr import StringImm

from tvm_ext.interface import MapType, OptionalType, SequenceType, TensorType, ValueType
from tvm_ext.ops.narrow import STORAGE, STRING

from .builder import Builder
from .maps import map_type
from .refusal import UnknownRank

__all__ = [
    "absent",
    "call",
    "call_for_tensor",
    "call_for_tensors",
    "declared_kind",
    "fields",
    "hosted",
    "kind_of",
    "like",
    "merged",
    "of_any_rank",
    "tensor_type",
    "text",
]

_PREFIX = "tvm_ext.host."


def call(bb: Builder, function: str, *operands: object, kind: ValueType) -> relax.Var:
    """Emit a call of a host function, which gives a value of ``kind``.

    Operands are Relax expressions, or what JSON holds, which the function gets as text.
    """
    result = bb.emit(_call(bb, function, operands, relax.AnyType()))
    bb.kinds[result] = kind
    return result


def call_for_tensor(
    bb: Builder, function: str, *operands: object, kind: TensorType | None
) -> relax.Var:
    """The same for a function that gives a tensor; dims that are no ints are read at run time.

    Raises:
        NotImplementedError: the element type or the rank is not known.
    """
    ty = tensor_type(bb, kind)
    given = ty
    if any(isinstance(dim, tirx.Var) for dim in ty.shape.values):
        given = relax.TensorType(dtype=ty.dtype, ndim=ty.ndim)
    result = like(bb, bb.emit(_call(bb, function, operands, given)), kind)
    return result if given is ty else bb.match(result, ty.shape.values)


def of_any_rank(bb: Builder, value: relax.Expr) -> relax.Expr:
    """``value`` with the type Any where it is a tensor of unknown rank, to be passed on only."""
    if not isinstance(value.ty, relax.TensorType) or value.ty.ndim >= 0:
        return value
    return call(bb, "same", value, kind=TensorType(bb.element(value), None))


def tensor_type(bb: Builder, kind: TensorType | None) -> relax.TensorType:
    """The Relax type of a tensor of ``kind``, with fresh dims for those that are no ints.

    Raises:
        NotImplementedError: the element type or the rank is not known.
    """
    if not isinstance(kind, TensorType):
        raise NotImplementedError("the element type is known only at run time")
    if kind.shape is None:
        raise UnknownRank
    dims = [dim if isinstance(dim, int) else bb.fresh_dim(dim) for dim in kind.shape]
    return relax.TensorType(dims, STORAGE.get(kind.dtype, kind.dtype))


def call_for_tensors(
    bb: Builder, function: str, *operands: object, kinds: Sequence[TensorType]
) -> tuple[relax.Var, ...]:
    """The same for a function that gives several tensors, of known ranks."""
    types = [tensor_type(bb, kind) for kind in kinds]
    given = [relax.TensorType(dtype=ty.dtype, ndim=ty.ndim) for ty in types]
    whole = bb.emit(_call(bb, function, operands, relax.TupleType(given)))
    items = [like(bb, bb.emit(relax.TupleGetItem(whole, k)), kind) for k, kind in enumerate(kinds)]
    return tuple(bb.match(x, ty.shape.values) for x, ty in zip(items, types, strict=True))


def _call(bb: Builder, function: str, operands: tuple[object, ...], ty: relax.Type) -> relax.Call:
    """The first argument names the node, for errors."""
    operands = bb.told(""), *operands
    arguments = [x if isinstance(x, relax.Expr) else text(x) for x in operands]
    return relax.op.call_pure_packed(_PREFIX + function, *arguments, ty_args=ty)


def text(value: object) -> StringImm:
    """``value`` as JSON, which a host function reads."""
    return StringImm(json.dumps(value))


def kind_of(bb: Builder, value: relax.Expr) -> ValueType:
    """What ``value`` is to ONNX."""
    if isinstance(value.ty, relax.TensorType):
        dims = bb.shape(value) if value.ty.shape is not None else None
        shape = None if dims is None else tuple(_dim(dim, k) for k, dim in enumerate(dims))
        return TensorType(bb.element(value), shape)
    if isinstance(value.ty, relax.TupleType):
        element: ValueType | None = None
        for item in fields(bb, value):
            element = merged(element, kind_of(bb, item))
        return SequenceType(element)
    return bb.kinds[value]


def absent(bb: Builder, kind: OptionalType) -> relax.Var:
    """Emit an optional without an element."""
    result = bb.emit(relax.op.null_value())
    bb.kinds[result] = kind
    return result


def fields(bb: Builder, value: relax.Expr) -> list[relax.Expr]:
    """The elements of a sequence that is a tuple."""
    if isinstance(value, relax.Tuple):
        return list(value.fields)
    return [bb.emit(relax.TupleGetItem(value, k)) for k in range(len(value.ty.fields))]


def hosted(bb: Builder, value: relax.Expr) -> relax.Expr:
    """``value`` with the type Any where it is a sequence that is a tuple."""
    if not isinstance(value.ty, relax.TupleType):
        return value
    kind = kind_of(bb, value)
    whole = value if isinstance(value, relax.Var) else bb.emit(value)
    return call(bb, "same", whole, kind=kind)


def like(bb: Builder, value: relax.Expr, kind: ValueType) -> relax.Expr:
    """``value``, which is now known to be of ``kind``."""
    if isinstance(value.ty, relax.AnyType):
        bb.kinds[value] = kind
        bb.holds_strings |= _of_strings(kind)
    elif isinstance(kind, TensorType):
        bb.of_element(value, kind.dtype)
    return value


def _of_strings(kind: ValueType | None) -> bool:
    if isinstance(kind, SequenceType | OptionalType):
        return _of_strings(kind.element)
    if isinstance(kind, MapType):
        return STRING in (kind.key, kind.value)
    return isinstance(kind, TensorType) and kind.dtype == STRING


def declared_kind(value: ir.Value | ir.TypeAndShape) -> ValueType | None:
    """What the model, or inference, says of a value; None where it says nothing."""
    if isinstance(value, ir.Value) and (kind := map_type(value)) is not None:
        return kind
    name = value.name if isinstance(value, ir.Value) else "d"
    return None if value.type is None else _of_onnx(value.type, value.shape, name or "d")


def _of_onnx(kind: ir.TypeProtocol, shape: ir.Shape | None, name: str) -> ValueType | None:
    if isinstance(kind, ir.SequenceType):
        return SequenceType(_of_onnx(kind.elem_type, shape, name))
    if isinstance(kind, ir.OptionalType):
        return OptionalType(_of_onnx(kind.elem_type, shape, name))
    if kind.dtype in (None, ir.DataType.UNDEFINED):
        return None
    string = kind.dtype == ir.DataType.STRING
    dtype = STRING if string else np.dtype(kind.dtype.numpy()).name
    if shape is None:
        return TensorType(dtype, None)
    dims = (d if isinstance(d, int) else d.value for d in shape)
    return TensorType(dtype, tuple(f"{name}_{k}" if d is None else d for k, d in enumerate(dims)))


def merged(a: ValueType | None, b: ValueType | None) -> ValueType | None:
    """What is known of a value that is one of these.

    Raises:
        NotImplementedError: they have nothing in common.
    """
    if a is None or b is None or a == b:
        return a if b is None else b
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):
        a, b = (kind.element if isinstance(kind, OptionalType) else kind for kind in (a, b))
        return OptionalType(merged(a, b))
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return SequenceType(merged(a.element, b.element))
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype == b.dtype:
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return TensorType(a.dtype, None)
        pairs = enumerate(zip(a.shape, b.shape, strict=True))
        return TensorType(a.dtype, tuple(x if x == y else f"d{k}" for k, (x, y) in pairs))
    raise NotImplementedError(f"one value is either {a} or {b}")


def _dim(dim: object, axis: int) -> int | str:
    return dim if isinstance(dim, int) else str(dim) if isinstance(dim, tirx.Var) else f"d{axis}"
