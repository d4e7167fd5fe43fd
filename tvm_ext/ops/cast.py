"""Conversions that a plain machine conversion does not give: bool, narrow types, bits."""

from tvm import te, tirx

from . import narrow
from .elementwise import dtype_of, float_compute
from .float8 import FORMATS, from_float8, to_float8

__all__ = ["bit_cast", "cast", "is_true"]


def cast(
    x: te.Tensor, source: str, dtype: str, saturate: bool = True, round_mode: str = "up"
) -> te.Tensor:
    """``x[...]`` of element type ``source`` as ``dtype``, as ONNX Cast does.

    float8 rounds half to even; out of range it gives the largest finite value, or, unless
    ``saturate``, infinity (NaN where the type has none). The types of ``narrow`` are stored.
    """

    def element(value: tirx.Expr) -> tirx.Expr:
        if source in narrow.STORAGE:
            value = narrow.decode(value, source)
        if source in FORMATS:
            value = from_float8(value, source)
        if dtype == "bool":
            return is_true(value)
        if dtype in narrow.STORAGE:
            return narrow.encode(value, dtype, saturate, round_mode)
        if dtype in FORMATS:
            return to_float8(value.astype("float32"), dtype, saturate)
        return value.astype(dtype)

    return te.compute(x.shape, lambda *i: element(x(*i)), "cast")


def is_true(value: tirx.Expr) -> tirx.Expr:
    """Whether ``value`` is not 0; NaN is not."""
    differs = tirx.NE(value, tirx.const(0, dtype_of(value)))
    if "float" not in dtype_of(value):
        return differs
    # TVM compares floats as if there were no NaN.
    return tirx.any(differs, tirx.isnan(value.astype(float_compute(dtype_of(value)))))


def bit_cast(x: te.Tensor, dtype: str) -> te.Tensor:
    """The bits of ``x[...]`` read as ``dtype``, which has the same size."""

    def element(value: tirx.Expr) -> tirx.Expr:
        if "bool" in (dtype, dtype_of(x)):  # TVM has no bits of a bool
            value = value.astype("uint8") if dtype_of(x) == "bool" else value
            return value.astype("bool") if dtype == "bool" else tirx.reinterpret(dtype, value)
        return tirx.reinterpret(dtype, value)

    return te.compute(x.shape, lambda *i: element(x(*i)), "bit_cast")
