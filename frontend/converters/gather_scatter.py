"""Converters for the ONNX operators that read or write elements at given indices."""

from math import prod

from tvm import tirx

from tvm_ext.ops import gather_scatter as ops

from ..axes import placed
from ..indices import demand_columns, demand_indices
from ..known import as_expr
from ..precision import constant
from ..refusal import UnknownRank
from ..run_time import demand_holds, demand_range
from ..table import converter


@converter("Gather", 1, 11, 13)
def gather(bb, x, indices, *, axis=0):
    axis = placed(axis, bb.rank(x))
    _readable(bb, x, [axis], bb.shape(indices))
    demand_indices(bb, indices, bb.shape(x)[axis], f"an index on axis {axis}")
    known = constant(bb, indices)
    if known is not None and known.size == 1:  # a slice, which other kernels may read through
        return bb.emit_te(ops.gather_one, x, int(known.item()), axis, known.ndim)
    return bb.emit_te(ops.gather, x, indices, axis)


@converter("GatherElements", 11, 13)
def gather_elements(bb, x, indices, *, axis=0):
    axis = placed(axis, bb.rank(x))
    _demand_within(bb, indices, bb.shape(x), axis)
    _readable(bb, x, [axis], bb.shape(indices))
    demand_indices(bb, indices, bb.shape(x)[axis], f"an index on axis {axis}")
    return bb.emit_te(ops.gather_elements, x, indices, axis)


@converter("GatherND", 11)
def gather_nd(bb, x, indices):
    return gather_nd_batched(bb, x, indices)


@converter("GatherND", 12, 13)
def gather_nd_batched(bb, x, indices, *, batch_dims=0):
    lead = bb.rank(indices) - 1
    rank = bb.declared_rank
    depth = None if rank is None else bb.rank(x) - batch_dims - (rank - lead)
    indices = _of_depth(bb, indices, depth)
    same = bb.shape(x)[:batch_dims]
    indices = bb.of_shape(indices, [*same, *bb.shape(indices)[batch_dims:]])
    taken = range(batch_dims, batch_dims + bb.shape(indices)[-1])
    _readable(bb, x, taken, bb.shape(indices))
    demand_columns(bb, indices, taken, bb.shape(x))
    return bb.emit_te(ops.gather_nd, x, indices, batch_dims)


@converter("Scatter", 9, 11)
@converter("ScatterElements", 11, 13)
def scatter(bb, data, indices, updates, *, axis=0):
    return scatter_elements(bb, data, indices, updates, axis=axis)


@converter("ScatterElements", 16, 18)
def scatter_elements(bb, data, indices, updates, *, axis=0, reduction="none"):
    axis = placed(axis, bb.rank(data))
    _demand_within(bb, indices, bb.shape(data), axis)
    updates = bb.of_shape(updates, bb.shape(indices))
    demand_indices(bb, indices, bb.shape(data)[axis], f"an index on axis {axis}")
    return bb.emit_te(ops.scatter_elements, data, indices, updates, axis, reduction)


@converter("ScatterND", 11, 13)
def scatter_nd_replace(bb, data, indices, updates):
    return scatter_nd(bb, data, indices, updates)


@converter("ScatterND", 16, 18)
def scatter_nd(bb, data, indices, updates, *, reduction="none"):
    lead = bb.rank(indices) - 1
    indices = _of_depth(bb, indices, bb.rank(data) - (bb.rank(updates) - lead))
    *places, depth = bb.shape(indices)
    updates = bb.of_shape(updates, [*places, *bb.shape(data)[depth:]])
    demand_columns(bb, indices, range(depth), bb.shape(data))
    return bb.emit_te(ops.scatter_nd, data, indices, updates, reduction)


def _demand_within(bb, indices, dims, axis):
    """Assert that ``indices`` have no more places than ``dims`` along the axes but ``axis``.

    Raises:
        ValueError: they have, or are of another rank.
    """
    given = bb.shape(indices)
    if len(given) != len(dims):
        raise ValueError(f"indices of rank {len(given)} for a tensor of rank {len(dims)}")
    for k, (number, most) in enumerate(zip(given, dims, strict=True)):
        if k != axis:
            demand_range(bb, number, f"axis {k} of the indices", most=most)


def _of_depth(bb, indices, depth):
    """``indices``, whose last dim is static; where it is not, asserted to be ``depth``.

    Raises:
        UnknownRank: it is known only at run time, and ``depth`` is None.
    """
    *lead, last = bb.shape(indices)
    if isinstance(last, int):
        return indices
    if depth is None:
        raise UnknownRank
    return bb.match(indices, [*lead, depth])


def _readable(bb, x, axes, index_shape):
    """Refuse to gather from an axis without elements, unless nothing is gathered."""
    dims, number = bb.shape(x), prod(map(as_expr, index_shape))
    for axis in axes:
        there = tirx.any(as_expr(dims[axis]) > 0, number <= 0)
        if not bb.proves(there):
            demand_holds(bb, (there, f"there is nothing to gather on axis {axis}"))
