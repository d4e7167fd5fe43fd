"""Running sums and products along an axis, which may be known at run time only."""

from tvm import relax, tirx

from ..builder import Dim
from ..table import converter


def _register(op_type, relax_op, *since):
    @converter(op_type, *since)
    def cumulative(bb, x, axis, *, exclusive=0, reverse=0):
        """Along the middle axis of [before, extent, after], which any axis can be made."""
        shape = bb.shape(x)
        (chosen,) = bb.dims(bb.emit(relax.op.reshape(axis, [1])))
        rows = bb.emit(relax.op.reshape(x, _around(shape, chosen)))
        if not bb.static_shape(rows):
            rows = bb.match(rows, [bb.fresh_dim(name) for name in ("before", "extent", "after")])
        if reverse:
            rows = bb.emit(relax.op.flip(rows, 1))
        dtype = "float32" if bb.dtype(x) in ("float16", "bfloat16") else bb.dtype(x)
        rows = bb.emit(relax_op(rows, 1, dtype, bool(exclusive)))
        if dtype != bb.dtype(x):
            rows = bb.emit(relax.op.astype(rows, bb.dtype(x)))
        if reverse:
            rows = bb.emit(relax.op.flip(rows, 1))
        return bb.emit(relax.op.reshape(rows, shape))


_register("CumSum", relax.op.cumsum, 11, 14)
_register("CumProd", relax.op.cumprod, 26)


def _around(shape: list[Dim], axis: Dim) -> list[Dim]:
    """The number of elements before ``axis``, along it and after it."""
    if isinstance(axis, int):
        if not -len(shape) <= axis < len(shape):
            raise ValueError(f"axis {axis} of a tensor of rank {len(shape)}")
        axis %= len(shape)
    else:
        axis = tirx.Select(axis < 0, axis + len(shape), axis)
    sizes = [tirx.const(1, "int64")] * 3
    for k, dim in enumerate(shape):
        for place, is_here in enumerate((axis > k, axis == k, axis < k)):
            if isinstance(is_here, bool):
                sizes[place] = sizes[place] * dim if is_here else sizes[place]
            else:
                sizes[place] *= tirx.Select(
                    is_here, tirx.const(1, "int64") * dim, tirx.const(1, "int64")
                )
    return sizes
