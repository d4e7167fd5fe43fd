"""Conversion between element types."""

import numpy as np
import onnx_ir as ir
from tvm import relax

from tvm_ext.interface import TensorType
from tvm_ext.ops.cast import bit_cast as reinterpret
from tvm_ext.ops.cast import cast as convert
from tvm_ext.ops.float8 import FORMATS
from tvm_ext.ops.narrow import FLOAT4, FLOAT6, SCALE, STORAGE, STRING

from .. import host
from ..table import converter

# What a kernel can hold and compute with.
_SERVED = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", *FORMATS, *STORAGE,
}  # fmt: skip


@converter("Cast", 6, 9, 13)
def cast(bb, x, *, to):
    return _cast(bb, x, _dtype(to))


@converter("Cast", 1)
def cast_1(bb, x, *, to):
    """The first version names the type: ``to="FLOAT"``."""
    return _cast(bb, x, _dtype(ir.DataType[to]))


@converter("Cast", 19, 21, 23)
def cast_19(bb, x, *, to, saturate=1):
    return _cast(bb, x, _dtype(to), saturate)


@converter("Cast", 24, 25, 28)
def cast_24(bb, x, *, to, round_mode="up", saturate=1):
    return _cast(bb, x, _dtype(to), saturate, round_mode)


@converter("CastLike", 15)
def cast_like(bb, x, target):
    return _cast(bb, x, bb.element(target))


@converter("CastLike", 19, 21, 23)
def cast_like_19(bb, x, target, *, saturate=1):
    return _cast(bb, x, bb.element(target), saturate)


@converter("CastLike", 24, 25)
def cast_like_24(bb, x, target, *, round_mode="up", saturate=1):
    return _cast(bb, x, bb.element(target), saturate, round_mode)


@converter("BitCast", 26)
def bit_cast(bb, x, *, to):
    dtype = _dtype(to)
    if np.dtype(dtype).itemsize != np.dtype(bb.dtype(x)).itemsize:
        raise ValueError(f"{bb.dtype(x)} and {dtype} differ in size")
    return bb.emit_te(reinterpret, x, dtype)


def _dtype(to: int) -> str:
    """The name of an ONNX element type."""
    data_type = ir.DataType(to)
    if data_type == ir.DataType.STRING:
        return STRING
    return np.dtype(data_type.numpy()).name


def _cast(bb, x: relax.Expr, dtype: str, saturate: int = 1, round_mode: str = "up") -> relax.Expr:
    source = bb.element(x)
    refused = sorted({source, dtype} - _SERVED)
    if refused:
        raise NotImplementedError(f"element type {', '.join(refused)}")
    if source == dtype:
        return x
    if STRING in (source, dtype):
        return _of_texts(bb, x, dtype)
    if dtype in STORAGE:
        result = bb.emit_te(convert, x, source, dtype, bool(saturate), round_mode)
        return bb.of_element(result, dtype)
    if dtype == "bool" or source in STORAGE or "float8" in source + dtype:
        return bb.emit_te(convert, x, source, dtype, bool(saturate))
    return bb.emit(relax.op.astype(x, dtype))


def widened(bb, x: relax.Expr) -> relax.Expr:
    """Floats of 8 bits or fewer as float32, exactly; others as they are."""
    element = bb.element(x)
    return _cast(bb, x, "float32") if element in (*FORMATS, FLOAT4, *FLOAT6, SCALE) else x


def _of_texts(bb, x: relax.Expr, dtype: str) -> relax.Expr:
    """Strings as numbers, or numbers as strings."""
    other = bb.element(x) if dtype == STRING else dtype
    if other in STORAGE or "float8" in other:
        raise NotImplementedError(f"a cast between string and {other}")
    shape = host.kind_of(bb, x).shape
    if dtype == STRING:
        kind = TensorType(STRING, shape)
        result = host.call_for_tensor(bb, "number_to_string", x, kind=kind)
    else:
        kind = TensorType(dtype, shape)
        result = host.call_for_tensor(bb, "string_to_number", x, dtype, kind=kind)
    return bb.match(result, bb.shape(x))
