"""What a model declares of its values, and whether the conversion agrees."""

import numpy as np
import onnx_ir as ir
from tvm import relax

from tvm_ext.errors import ModelError
from tvm_ext.ops.narrow import STORAGE

from .builder import Builder
from .limits import check_value

__all__ = ["checked", "dtype_of"]


def dtype_of(dtype: ir.DataType | None, name: str | None) -> str:
    """The numpy name of an ONNX element type.

    Raises:
        ModelError: the type is missing or not supported.
    """
    if dtype in (None, ir.DataType.UNDEFINED):
        raise ModelError(f"value {name!r} has no element type")
    if dtype == ir.DataType.STRING:
        raise ModelError(f"value {name!r} holds strings, which are not supported")
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
        raise ModelError(
            f"value {value.name!r} is declared {value.dtype}, "
            f"but {value.producer().op_type} gives {given}"
        )


def _check_shape(value: ir.Value, declared: list | None, inferred: list) -> None:
    if declared is None:
        return
    contradiction = len(declared) != len(inferred) or any(
        isinstance(d, int) and isinstance(i, int) and d != i
        for d, i in zip(declared, inferred, strict=True)
    )
    if contradiction:
        raise ModelError(
            f"value {value.name!r} is declared {value.shape}, "
            f"but {value.producer().op_type} gives {inferred}"
        )
