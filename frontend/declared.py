"""What a model declares of its values, and whether the conversion agrees.

An element type that contradicts what a node gives is an error. A shape that does is left out with a
warning, as onnxruntime does it: the nodes say what shape there is, and the graph is sound without.
"""

import logging
from collections.abc import Collection, Mapping
from itertools import chain

import numpy as np
import onnx_ir as ir
from tvm import relax

from tvm_ext.errors import ConversionError, ModelError
from tvm_ext.ops.narrow import STORAGE, STRING

from .builder import Builder
from .limits import check_value
from .node_validity import invalid_nodes
from .refusal import UnknownRank
from .rewrites.infer import infer_by_onnx, mark_misjudged
from .traverse import nodes

__all__ = ["Contradiction", "check_declared", "checked", "dtype_of"]

_log = logging.getLogger(__name__)


class Contradiction(ModelError):
    """Declared shapes contradict what converters give; ``names`` are those of the values."""

    def __init__(self, given: Mapping[ir.Value, list]):
        self.names = {value.name for value in given}
        super().__init__("; ".join(_text(value, value.shape, given[value]) for value in given))


def check_declared(model: ir.Model, doubtful: Collection[str | None] = ()) -> None:
    """Compare what ``model`` declares of its values with what onnx infers without that, and its
    nodes with what onnx says of their operators.

    Rewrites trust the declared types and take values away, so this comes before them, and leaves
    out dims that contradict; what only converters know is compared by :func:`checked`. The shapes
    of values with ``doubtful`` names are left out; of its own operators, onnx infers none there: it
    may be wrong.

    Raises:
        ModelError: another element type; names the value and the operator that gives it.
        ConversionError: nodes with attributes or operands that their operators do not define.
    """
    for graph in model.graphs():
        for value in graph.initializers.values():
            _check_initializer(value)
    for node, _ in nodes(model.graph):
        for value in node.outputs:
            if value.name in doubtful:
                value.shape = None
                if not node.domain:  # the schema of a plugin has to fit its converter
                    mark_misjudged(node)
    inferred = model.clone()
    for node, _ in nodes(inferred.graph):
        for value in node.outputs:
            if isinstance(value.type, ir.TensorType):
                value.type = value.shape = None
    infer_by_onnx(inferred, data_prop=False)
    invalid = invalid_nodes(inferred)
    if invalid:
        raise ConversionError(invalid)
    sizes = {dim for value in model.graph.inputs for dim in value.shape or () if _named(dim)}
    for graph, other in zip(model.graphs(), inferred.graphs(), strict=True):
        values = chain.from_iterable(node.outputs for node in graph)
        found = chain.from_iterable(node.outputs for node in other)
        for value, result in zip(values, found, strict=True):
            if isinstance(value.type, ir.TensorType) and isinstance(result.type, ir.TensorType):
                if value.dtype != result.dtype:
                    raise ModelError(_text(value, value.dtype, result.dtype))
                if result.shape is None or value.shape is None:
                    continue
                if _contradicts(value, list(result.shape)):
                    value.shape = _common(value.shape, result.shape)
                else:
                    value.shape = _of_sizes(value.shape, result.shape, sizes)


def dtype_of(dtype: ir.DataType | None, name: str | None) -> str:
    """The numpy name of an ONNX element type, "string" for strings, which have none.

    Raises:
        ModelError: the type is missing.
    """
    if dtype in (None, ir.DataType.UNDEFINED):
        raise ModelError(f"value {name!r} has no element type")
    if dtype == ir.DataType.STRING:
        return STRING
    return np.dtype(dtype.numpy()).name


def checked(builder: Builder, value: ir.Value, result: relax.Expr) -> relax.Expr:
    """``result`` with every dim bound, its element type the declared one, within the limits.

    A declared shape that contradicts is added to ``builder.contradictions``.
    """
    ty = result.ty
    if not isinstance(ty, relax.TensorType):
        return result
    _check_element(builder, value, result)
    if ty.shape is None:
        if ty.ndim < 0 and value.shape is None:
            raise UnknownRank
        declared = [None] * ty.ndim if value.shape is None else list(value.shape)
        if ty.ndim >= 0 and _contradicts(value, [None] * ty.ndim):
            builder.contradictions[value] = declared = [None] * ty.ndim
        dims = [
            d if isinstance(d, int) else builder.fresh_dim(f"{value.name}_{k}")
            for k, d in enumerate(declared)
        ]
        return builder.match(result, dims)
    inferred = builder.shape(result)
    if any(isinstance(dim, int) and dim < 0 for dim in inferred):
        raise ValueError(f"the result has the shape {inferred}")
    if _contradicts(value, inferred):
        builder.contradictions[value] = inferred
    check_value(value.name, inferred, np.dtype(builder.dtype(result)).itemsize, builder.limits)
    return result


def _check_element(builder: Builder, value: ir.Value, result: relax.Expr) -> None:
    if value.dtype is None:
        return
    declared, given = dtype_of(value.dtype, value.name), builder.element(result)
    if STORAGE.get(declared) == given:  # what only moves elements does not ask what they are
        builder.of_element(result, declared)
    elif declared != given:
        raise ModelError(_text(value, value.dtype, given))


def _check_initializer(value: ir.Value) -> None:
    tensor = value.const_value
    if tensor is None:
        return
    if value.dtype != tensor.dtype:
        raise ModelError(_text(value, value.dtype, tensor.dtype))
    if _contradicts(value, list(tensor.shape)):
        value.shape = tensor.shape


def _contradicts(value: ir.Value, given: list) -> bool:
    """Whether ``value`` is declared to have another shape than ``given``, with a warning."""
    # Exporters to ai.onnx.ml declare [1] of one label per row.
    producer = value.producer()
    if value.shape is None or (producer is not None and producer.domain == "ai.onnx.ml"):
        return False
    declared = list(value.shape)
    contradicts = len(declared) != len(given) or any(
        isinstance(d, int) and isinstance(g, int) and d != g
        for d, g in zip(declared, given, strict=True)
    )
    if contradicts:
        _log.warning("%s: the declared shape is left out", _text(value, value.shape, given))
    return contradicts


def _common(declared: ir.Shape, given: ir.Shape) -> ir.Shape | None:
    """The dims of both, None where the ranks differ: inference may be wrong, too."""
    if len(declared) != len(given):
        return None
    return ir.Shape(
        None if isinstance(d, int) and isinstance(g, int) and d != g else d
        for d, g in zip(declared, given, strict=True)
    )


def _of_sizes(declared: ir.Shape, given: ir.Shape, sizes: Collection[object]) -> ir.Shape:
    """``declared`` without names of sizes of inputs that what is given has other sizes for."""
    if len(declared) != len(given):
        return declared
    return ir.Shape(
        g if d in sizes and d != g and (isinstance(g, int) or g in sizes) else d
        for d, g in zip(declared, given, strict=True)
    )


def _named(dim: object) -> bool:
    return isinstance(dim, ir.SymbolicDim) and dim.value is not None


def _text(value: ir.Value, declared: object, given: object) -> str:
    if isinstance(declared, ir.Shape):
        declared = [d if isinstance(d, int) else d.value for d in declared]
    declared, given = (str(x).replace("'", "") for x in (declared, given))
    producer = value.producer()
    giver = "the initializer" if producer is None else producer.op_type
    return f"value {value.name!r} is declared {declared}, but {giver} gives {given}"
