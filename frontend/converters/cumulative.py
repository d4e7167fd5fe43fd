"""Running sums and products along an axis."""

from tvm import relax

from ..table import converter
from .shape import around_axis, reshaped


def _register(op_type, relax_op, *since):
    @converter(op_type, *since)
    def cumulative(bb, x, axis, *, exclusive=0, reverse=0):
        shape = bb.shape(x)
        # As [before, extent, after] every axis is the same case.
        rows = reshaped(bb, x, around_axis(bb, axis, shape, len(shape)))
        if any(isinstance(dim, int) and dim == 0 for dim in shape):
            return x  # no element; TVM's scan, which level 0 takes, divides by the size of a row
        if reverse:
            rows = bb.emit(relax.op.flip(rows, 1))
        dtype = "float32" if bb.dtype(x) in ("float16", "bfloat16") else bb.dtype(x)
        if dtype != bb.dtype(x):
            rows = bb.emit(relax.op.astype(rows, dtype))
        rows = bb.emit(relax_op(rows, 1, dtype, bool(exclusive)))
        if dtype != bb.dtype(x):
            rows = bb.emit(relax.op.astype(rows, bb.dtype(x)))
        if reverse:
            rows = bb.emit(relax.op.flip(rows, 1))
        return reshaped(bb, rows, shape)


_register("CumSum", relax.op.cumsum, 11, 14)
_register("CumProd", relax.op.cumprod, 26)
