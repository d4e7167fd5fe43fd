"""Converters for operators that repeat elements: Expand, Tile."""

from tvm import relax

from tvm_ext.ops import expansion as ops
from tvm_ext.ops.elementwise import broadcast_dim

from ..axes import placed
from ..broadcasting import MISFIT, demanded_dims
from ..known import as_expr
from ..table import converter


@converter("Expand", 8, 13)
def expand(bb, x, shape):
    target, dims = _target(bb, x, shape), bb.shape(x)
    rank = max(len(target), len(dims))
    target = [1] * (rank - len(target)) + target
    dims = [1] * (rank - len(dims)) + dims
    result = bb.measured(list(map(broadcast_dim, dims, target)))
    for given, what in (dims, "the input"), (target, "the shape"):
        wanted = demanded_dims(bb, given, result)
        if wanted is not None:
            reasons = [f"axis {axis} of {what} {MISFIT}" for axis in range(rank)]
            bb.demand_dims(given, wanted, *reasons)
    if all(dim == 1 or bb.equal(dim, out) for dim, out in zip(dims, result, strict=True)):
        return bb.emit(relax.op.broadcast_to(x, relax.ShapeExpr(result)))
    return bb.emit_te(ops.expand, x, result)


def _target(bb, x, shape):
    """``shape`` as dims; of one whose length is not known, as many as the result declares."""
    rank = bb.declared_rank
    if bb.static_shape(shape) is not None or rank != bb.rank(x):
        return bb.dims(shape, rank, "a size of the shape")
    # It may be shorter than the shape of x.
    *dims, number = bb.dims(bb.emit_te(ops.aligned_shape, shape, rank), what="a size of the shape")
    bb.check((number, as_expr(rank), "the shape has {given} sizes, and the result {wanted}"))
    return dims


@converter("Tile", 1)
def tile_axis(bb, x, tiles, axis):
    (count,), (at,) = bb.ints(tiles, "tiles"), bb.ints(axis, "axis")
    at = placed(at, bb.rank(x))
    return _tile(bb, x, [count if k == at else 1 for k in range(bb.rank(x))])


@converter("Tile", 6, 13)
def tile(bb, x, repeats):
    return _tile(bb, x, bb.dims(repeats, bb.rank(x), "a number of repeats"))


def _tile(bb, x, repeats):
    dims = bb.shape(x)
    apart = _innermost(dims, repeats)
    y = bb.emit_te(ops.tile, x, repeats, apart)
    if apart is None:
        return y
    shape = [bb.simplify(dim * count) for dim, count in zip(dims, repeats, strict=True)]
    return bb.reshape(y, shape)


def _innermost(dims, repeats):
    """The axis along which memory is contiguous, if rows of it repeat: no element then needs the
    remainder of its place."""
    for axis in reversed(range(len(dims))):
        pair = dims[axis], repeats[axis]
        if pair != (1, 1):
            return None if any(isinstance(n, int) and n < 2 for n in pair) else axis
    return None
