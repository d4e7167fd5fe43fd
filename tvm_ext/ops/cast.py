"""Conversions that a plain machine conversion does not give: to bool, to float8, of bits."""

from tvm import te, tirx

from .elementwise import dtype_of
from .float8 import FORMATS, decode, encode

__all__ = ["bit_cast", "cast"]


def cast(x: te.Tensor, dtype: str, saturate: bool = True) -> te.Tensor:
    """``x[...]`` as ``dtype``, as ONNX Cast does where float8 or bool takes part.

    float8 rounds half to even; out of range it gives the largest finite value, or, unless
    ``saturate``, infinity (NaN where the type has none).
    """
    source = dtype_of(x)

    def element(value: tirx.Expr) -> tirx.Expr:
        if source in FORMATS:
            value = decode(value, source)
        if dtype == "bool":
            return tirx.NE(value, tirx.const(0, dtype_of(value)))
        if dtype in FORMATS:
            return encode(value.astype("float32"), dtype, saturate)
        return value.astype(dtype)

    return te.compute(x.shape, lambda *i: element(x(*i)), "cast")


def bit_cast(x: te.Tensor, dtype: str) -> te.Tensor:
    """The bits of ``x[...]`` read as ``dtype``, which has the same size."""
    return te.compute(x.shape, lambda *i: tirx.reinterpret(dtype, x(*i)), "bit_cast")
