"""Converters for operators that read or change a shape and leave the elements as they are."""

from itertools import groupby
from math import prod
from operator import itemgetter

import numpy as np
from tvm import relax, tirx

from tvm_ext.ops import shape as ops

from ..axes import placed, placed_all
from ..known import Known, as_expr
from ..run_time import demand_axes, demand_range
from ..table import converter

_SINCE_13 = (13, 21, 23, 24, 25)


@converter("Identity", 1, 14, 16, 19, *_SINCE_13)
def identity(bb, x):
    return x


@converter("Shape", 1, 13)
def shape_whole(bb, x):
    return _dims_tensor(bb, bb.shape(x))


@converter("Shape", 15, 19, 21, 23, 24, 25)
def shape_slice(bb, x, *, start=0, end=None):
    return _dims_tensor(bb, bb.shape(x)[start:end])


@converter("Size", 1, 19, *_SINCE_13)
def size(bb, x):
    total = np.empty((), object)
    total[()] = bb.simplify(prod(bb.shape(x)))
    return bb.materialise(Known(total, "int64"))


def _dims_tensor(bb, dims):
    array = np.empty(len(dims), object)
    array[:] = dims
    return bb.materialise(Known(array, "int64"))


_RESHAPED = "the shape is one of {given} elements, there are {wanted}"
_SQUEEZED = "axes that are not 1 are taken away: {given} elements would be left of {wanted}"


@converter("Reshape", 1)
def reshape_attribute(bb, x, *, shape=None, consumed_inputs=None):
    return _reshape(bb, x, list(shape or []), allowzero=False)


@converter("Reshape", 5, 13)
def reshape(bb, x, shape):
    return _reshape_input(bb, x, shape, allowzero=False)


@converter("Reshape", 14, 19, 21, 23, 24, 25)
def reshape_zero(bb, x, shape, *, allowzero=0):
    return _reshape_input(bb, x, shape, allowzero=bool(allowzero))


def _reshape_input(bb, x, shape, allowzero):
    if bb.static(shape) is not None:
        return _reshape(bb, x, bb.dims(shape), allowzero)
    shape = bb.counted(shape, bb.declared_rank)
    resolved = bb.emit_te(ops.resolved_shape, shape, *te_dims(bb, x), allowzero=allowzero)
    return reshaped(bb, x, bb.dims(resolved, what="a size of the shape"))


def _reshape(bb, x, target, allowzero):
    dims = bb.shape(x)
    if [d for d in target if isinstance(d, int) and d < 0] not in ([], [-1]):
        raise ValueError(f"the shape {target}: one dim may be -1, none less")
    if not allowzero:
        if any(isinstance(d, int) and d == 0 for d in target[len(dims) :]):
            raise ValueError(f"a 0 of the shape {target} has no dim in {dims}")
        target = [dims[k] if d == 0 else d for k, d in enumerate(target)]
    if any(isinstance(d, int) and d == -1 for d in target):
        inferred = target.index(-1)
        target[inferred] = _quotient(bb, dims, target[:inferred] + target[inferred + 1 :])
    if all(isinstance(d, int) for d in (*dims, *target)) and prod(dims) != prod(target):
        raise ValueError(f"{prod(dims)} elements {dims} do not fit the shape {target}")
    return reshaped(bb, x, target)


def _quotient(bb, dims, others):
    """prod(dims) / prod(others), after striking out the dims that both have."""
    dims, rest = list(dims), []
    for other in others:
        same = next((k for k, dim in enumerate(dims) if bb.equal(dim, other)), None)
        if same is None:
            rest.append(other)
        else:
            del dims[same]
    total, divisor = prod(dims), prod(rest)
    if isinstance(divisor, int) and divisor <= 1:
        return bb.simplify(total) if divisor else 0
    if isinstance(total, int) and isinstance(divisor, int):
        return total // divisor
    return bb.simplify(tirx.floordiv(total, divisor))


@converter("Flatten", 1, 9, 11, *_SINCE_13)
def flatten(bb, x, *, axis=1):
    dims = bb.shape(x)
    if axis != len(dims):
        axis = placed(axis, len(dims))
    rows, columns = dims[:axis], dims[axis:]
    target = [bb.simplify(prod(rows)), bb.simplify(prod(columns))]
    return reshaped(bb, x, target)


@converter("Squeeze", 1, 11)
def squeeze_attribute(bb, x, *, axes=None):
    return _squeeze(bb, x, axes)


@converter("Squeeze", *_SINCE_13)
def squeeze(bb, x, axes=None):
    if axes is None or bb.static(axes) is not None:
        return _squeeze(bb, x, None if axes is None else bb.ints(axes, "axes"))
    rank, declared = bb.rank(x), bb.declared_rank
    axes = bb.counted(axes, None if declared is None else rank - declared)
    demand_axes(bb, axes, rank)
    removed = bb.shape(axes)[0]
    target = bb.emit_te(ops.squeezed_shape, axes, *te_dims(bb, x), removed=removed)
    return reshaped(bb, x, bb.dims(target, least=None), _SQUEEZED)


def _squeeze(bb, x, axes):
    dims = bb.shape(x)
    if axes is None:
        if not all(isinstance(dim, int) for dim in dims):
            return _squeeze_ones(bb, x)
        axes = [k for k, dim in enumerate(dims) if dim == 1]
    axes = placed_all(axes, len(dims))
    if any(isinstance(dims[axis], int) and dims[axis] != 1 for axis in axes):
        raise ValueError(f"axes {sorted(axes)} of {dims} are not all 1")
    if any(not isinstance(dims[axis], int) for axis in axes):
        x = bb.match(x, [1 if k in axes else dim for k, dim in enumerate(dims)])
    kept = [dim for k, dim in enumerate(dims) if k not in axes]
    return reshaped(bb, x, kept)


def _squeeze_ones(bb, x):
    """Where sizes are known only at run time: the result has the rank that the model declares.

    Declares it none, no dim is taken away but those known to be 1. Asserted at run time.
    """
    kept = [dim for dim in bb.shape(x) if not isinstance(dim, int) or dim != 1]
    rank = len(kept) if bb.declared_rank is None else bb.declared_rank
    if rank == len(kept):
        bb.not_one += [dim for dim in kept if isinstance(dim, tirx.Var)]
    number, *left = bb.dims(bb.emit_te(ops.dims_but_ones, *te_dims(bb, x), rank=rank), least=None)
    bb.check((number, as_expr(rank), "{given} dims are not 1, and the result has {wanted}"))
    return reshaped(bb, x, kept if rank == len(kept) else left)


@converter("Unsqueeze", 1, 11)
def unsqueeze_attribute(bb, x, axes_input=None, *, axes=None):
    """Exporters have written the input of opset 13 in older opsets too."""
    return _unsqueeze(bb, x, axes) if axes_input is None else unsqueeze(bb, x, axes_input)


@converter("Unsqueeze", *_SINCE_13)
def unsqueeze(bb, x, axes):
    if bb.static(axes) is not None:
        return _unsqueeze(bb, x, bb.ints(axes, "axes"))
    declared = bb.declared_rank
    axes = bb.counted(axes, None if declared is None else declared - bb.rank(x))
    added = bb.shape(axes)[0]
    demand_axes(bb, axes, bb.rank(x) + added)
    target = bb.emit_te(ops.unsqueezed_shape, axes, *te_dims(bb, x), added=added)
    return reshaped(bb, x, bb.dims(target, least=None))


def _unsqueeze(bb, x, axes):
    rank = bb.rank(x) + len(axes)
    axes = placed_all(axes, rank)
    dims = iter(bb.shape(x))
    target = [1 if k in axes else next(dims) for k in range(rank)]
    return reshaped(bb, x, target)


@converter("Transpose", 1, *_SINCE_13)
def transpose(bb, x, *, perm=None):
    if perm is not None and sorted(perm) != list(range(bb.rank(x))):
        raise ValueError(f"perm {list(perm)} of a tensor of rank {bb.rank(x)}")
    if bb.rank(x) < 2:
        return x
    return bb.emit(relax.op.permute_dims(x, None if perm is None else list(perm)))


def reshaped(bb, x, dims, reason=_RESHAPED):
    """``x`` in the shape ``dims``: ints, none negative, and symbolic dims.

    Asserted at run time to have as many elements, or else ``reason`` is told.

    Raises:
        ValueError: a dim is negative.
    """
    dims = [bb.simplify(dim) for dim in dims]
    if any(isinstance(dim, int) and dim < 0 for dim in dims):
        raise ValueError(f"the shape {dims}")
    own, wanted = prod(bb.shape(x)), prod(dims)
    if not bb.equal(own, wanted):
        bb.demand_dims([wanted], [own], reason)
    return bb.reshape(x, dims)


def merged(bb, x, labels):
    """``x`` with each run of axes of the same label as one axis, and the labels of its axes.

    Of symbolic sizes, what lies in a row is then one loop: kernels over ``[N, C, H * W]`` have one
    remainder of a vector per image, those over ``[N, C, H, W]`` one per row. Runs of static sizes
    stay as they are: there the schedules see it.
    """
    dims, kept = [], []
    for label, run in groupby(zip(labels, bb.shape(x), strict=True), key=itemgetter(0)):
        sizes = [size for _, size in run]
        if any(not isinstance(size, int) for size in sizes):
            sizes = [prod(sizes)]
        dims += sizes
        kept += [label] * len(sizes)
    return (x if len(dims) == len(labels) else reshaped(bb, x, dims)), kept


def te_dims(bb, x):
    """The dims of ``x`` as arguments of a kernel."""
    return te_sizes(bb.shape(x))


def te_sizes(dims):
    """``dims`` as arguments of a kernel."""
    return list(map(as_expr, dims))


def around_axis(bb, axis, dims, rank):
    """``[before, along, after]``: the products of ``dims`` around a scalar tensor ``axis``.

    Raises:
        ValueError: a constant axis is none of ``rank`` axes.
    """
    if bb.static(axis) is None:
        (at,) = demand_axes(bb, axis, rank, "the axis")
        demand_range(bb, at, "the axis", most=len(dims) - 1)
        around = bb.emit_te(ops.around_axis, axis, *te_sizes(dims), rank=rank)
        return bb.dims(around, least=None)
    (at,) = bb.ints(axis, "axis")
    at = placed(at, rank)
    return [bb.simplify(prod(dims[:at])), dims[at], bb.simplify(prod(dims[at + 1 :]))]


def scalar(bb, value, what, least=0):
    """An integer tensor of one element as a dim: an int, symbolic, or read at run time.

    In errors ``what`` names it; it is asserted to be no less than ``least``.
    """
    known = bb.static(value)
    if known is not None:
        return bb.simplify(known.item())
    return bb.dims(bb.emit(relax.op.reshape(value, [1])), what=what, least=least)[0]
