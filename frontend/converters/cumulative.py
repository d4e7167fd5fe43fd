"""Running sums and products along an axis."""

from math import prod

from tvm import relax

from ..table import converter


def _register(op_type, relax_op, *since):
    @converter(op_type, *since)
    def cumulative(bb, x, axis, *, exclusive=0, reverse=0):
        shape, axis = bb.shape(x), _axis(bb, x, axis)
        # As [before, extent, after] every axis is the same case.
        around = [prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])]
        rows = bb.emit(relax.op.reshape(x, around))
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
        return bb.emit(relax.op.reshape(rows, shape))


_register("CumSum", relax.op.cumsum, 11, 14)
_register("CumProd", relax.op.cumprod, 26)


def _axis(bb, x, axis) -> int:
    rank = bb.rank(x)
    if rank == 1:  # there is only one, whatever is said at run time
        return 0
    (chosen,) = bb.ints(axis, "axis")
    if not -rank <= chosen < rank:
        raise ValueError(f"axis {chosen} of a tensor of rank {rank}")
    return chosen % rank
