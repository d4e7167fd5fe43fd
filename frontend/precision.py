"""Types that arithmetic runs in: narrow floats are stored narrow and summed in float32."""

from tvm import relax

__all__ = ["accumulator", "cast", "constant"]


def accumulator(dtype: str) -> str:
    """The type that sums of ``dtype`` run in."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def cast(bb, x: relax.Expr, dtype: str) -> relax.Expr:
    """``x`` as ``dtype``; a constant is converted now."""
    if bb.dtype(x) == dtype:
        return x
    array = constant(bb, x)
    return bb.emit(relax.op.astype(x, dtype)) if array is None else bb.const(array.astype(dtype))


def constant(bb, x: relax.Expr):
    """The array of ``x`` if its elements are known now; None otherwise, and for symbolic dims."""
    array = bb.static(x)
    return None if array is None or array.dtype == object else array
