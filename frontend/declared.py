"""What a model declares of its values, and whether the conversion agrees."""

from itertools import chain

import numpy as np
import onnx_ir as ir
from tvm import relax

from tvm_ext.errors import ConversionError, ModelError
from tvm_ext.ops.narrow import STORAGE, STRING

from .builder import Builder
from .limits import check_value
from .node_validity import invalid_nodes
from .rewrites.infer import infer_by_onnx
from .traverse import nodes

__all__ = ["check_declared", "checked", "dtype_of"]


def check_declared(model: ir.Model) -> None:
    """Compare what ``model`` declares of its values with what onnx infers without that, and its
    nodes with what onnx says of their operators.

    Rewrites trust the declared types and take values away, so this comes before them; what only
    converters know is compared by :func:`checked`.

    Raises:
        ModelError: a contradiction; names the value and the operator that gives it.
        ConversionError: nodes with attributes or operands that their operators do not define.
    """
    inferred = model.clone()
    for node, _ in nodes(inferred.graph):
        for value in node.outputs:
            if isinstance(value.type, ir.TensorType):
                value.type = value.shape = None
    infer_by_onnx(inferred, data_prop=False)
    invalid = invalid_nodes(inferred)
    if invalid:
        raise ConversionError(invalid)
    for graph, other in zip(model.graphs(), inferred.graphs(), strict=True):
        values = chain.from_iterable(node.outputs for node in graph)
        found = chain.from_iterable(node.outputs for node in other)
        for value, result in zip(values, found, strict=True):
            if isinstance(value.type, ir.TensorType) and isinstance(result.type, ir.TensorType):
                if value.dtype != result.dtype:
                    raise _contradiction(value, value.dtype, result.dtype)
                if value.shape is not None and result.shape is not None:
                    _check_shape(value, list(value.shape), list(result.shape))


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
    """``result`` with every dim bound, in agreement with what the model declares and the limits."""
    ty = result.ty
    if not isinstance(ty, relax.TensorType):
        return result
    _check_element(builder, value, result)
    declared = None if value.shape is None else list(value.shape)
    if ty.shape is None:
        if ty.ndim < 0 and declared is None:
            raise NotImplementedError("the rank of the result is known only at run time")
        declared = declared if declared is not None else [None] * ty.ndim
        dims = [
            d if isinstance(d, int) else builder.fresh_dim(f"{value.name}_{k}")
            for k, d in enumerate(declared)
        ]
        return builder.match(result, dims)
    inferred = builder.shape(result)
    if any(isinstance(dim, int) and dim < 0 for dim in inferred):
        raise ValueError(f"the result has the shape {inferred}")
    _check_shape(value, declared, inferred)
    check_value(value.name, inferred, np.dtype(builder.dtype(result)).itemsize, builder.limits)
    return result


def _check_element(builder: Builder, value: ir.Value, result: relax.Expr) -> None:
    if value.dtype is None:
        return
    declared, given = dtype_of(value.dtype, value.name), builder.element(result)
    if STORAGE.get(declared) == given:  # what only moves elements does not ask what they are
        builder.of_element(result, declared)
    elif declared != given:
        raise _contradiction(value, value.dtype, given)


def _check_shape(value: ir.Value, declared: list | None, inferred: list) -> None:
    # Exporters to ai.onnx.ml declare [1] of one label per row; onnxruntime takes that.
    if declared is None or value.producer().domain == "ai.onnx.ml":
        return
    contradiction = len(declared) != len(inferred) or any(
        isinstance(d, int) and isinstance(i, int) and d != i
        for d, i in zip(declared, inferred, strict=True)
    )
    if contradiction:
        raise _contradiction(value, declared, inferred)


def _contradiction(value: ir.Value, declared: object, given: object) -> ModelError:
    return ModelError(
        f"value {value.name!r} is declared {declared}, but {value.producer().op_type} gives {given}"
    )
