"""Converters for Slice, Split and Concat."""

from itertools import accumulate, pairwise

import numpy as np
from tvm import relax, tirx

from tvm_ext.ops import slicing as ops
from tvm_ext.ops import verdicts

from ..axes import placed, placed_all
from ..known import Known, as_expr, slice_range
from ..run_time import demand_axes, demand_holds, raw
from ..table import converter
from .shape import te_dims


@converter("Slice", 1)
def slice_attributes(bb, x, *, starts, ends, axes=None):
    return _slice(bb, x, starts, ends, axes, None)


@converter("Slice", 10, 11, 13)
def slice_inputs(bb, x, starts, ends, axes=None, steps=None):
    given = [operand for operand in (starts, ends, axes, steps) if operand is not None]
    if any(bb.static(operand) is None for operand in given):
        return _slice_at_run_time(bb, x, starts, ends, axes, steps)
    return _slice(
        bb,
        x,
        bb.dims(starts),
        bb.dims(ends),
        None if axes is None else bb.ints(axes, "axes"),
        None if steps is None else bb.ints(steps, "steps"),
    )


def _slice(bb, x, starts, ends, axes, steps):
    """Bounds are ints or symbolic dims."""
    dims = bb.shape(x)
    rank = len(dims)
    begins, strides, lengths = [0] * rank, [1] * rank, list(dims)
    entries = zip(axes or range(len(starts)), starts, ends, steps or [1] * len(starts), strict=True)
    for axis, start, end, step in entries:
        if step == 0:
            raise ValueError("a step is 0")
        axis = placed(axis, rank)
        strides[axis] = step
        begins[axis], length = _bounds(bb, start, end, step, dims[axis])
        # Where it hangs on a sum of sizes whether a bound counts from the end.
        (lengths[axis],) = bb.measured([length])
    return take_slice(bb, x, begins, strides, lengths)


def _bounds(bb, start, end, step, dim):
    """Begin and length of one slice."""
    if all(isinstance(v, int) for v in (start, end, dim)):
        taken = slice_range(start, end, step, dim)
        return (taken.start, len(taken)) if taken else (0, 0)
    dim, step = (tirx.const(v, "int64") if isinstance(v, int) else v for v in (dim, step))
    start, end = (_position(v, dim) if isinstance(v, int) else v for v in (start, end))
    begin = ops.clamped_begin(start, step > 0, dim)
    return bb.simplify(begin), bb.simplify(ops.slice_length(start, end, step, dim))


def _position(bound, dim):
    """A constant bound; one that no dim reaches, from the largest int32 on, as the end it means.

    As it is, memory would be planned for a slice that goes so far.
    """
    if abs(bound) >= (1 << 31) - 1:
        return dim if bound > 0 else -dim - 1
    return tirx.const(bound, "int64")


def take_slice(bb, x, begins, steps, lengths):
    """``x[begin : begin + step * length : step]`` on every axis: ints and symbolic dims."""
    if all(bb.equal(a, b) for a, b in zip(lengths, bb.shape(x), strict=True)):
        if all(step == 1 for step in steps):
            return x
    if (
        all(isinstance(v, int) for v in (*begins, *lengths, *bb.shape(x)))
        and all(step > 0 for step in steps)
        and 0 not in lengths
    ):
        ends = [b + s * (n - 1) + 1 for b, s, n in zip(begins, steps, lengths, strict=True)]
        axes = list(range(len(begins)))
        return bb.emit(relax.op.strided_slice(x, axes, begins, ends, steps))
    return bb.emit_te(ops.strided_slice, x, begins, steps, lengths)


def _slice_at_run_time(bb, x, starts, ends, axes, steps):
    dims = bb.shape(x)
    given = [operand for operand in (starts, ends, axes, steps) if operand is not None]
    numbers = [bb.shape(operand)[0] for operand in given]
    entries = next((n for n in numbers if isinstance(n, int)), numbers[0])
    starts, ends = (bb.of_shape(operand, [entries]) for operand in (starts, ends))
    steps = None if steps is None else bb.of_shape(steps, [entries])
    if axes is None:
        axes = list(range(entries)) if isinstance(entries, int) else None
    elif bb.static(axes) is not None:
        axes = placed_all(bb.ints(axes, "axes"), len(dims))
    else:
        axes = bb.of_shape(axes, [entries])
    if isinstance(axes, relax.Expr):
        demand_axes(bb, axes, len(dims))
    if steps is not None:
        _demand_steps(bb, steps)
    bounds = bb.emit_te(
        ops.slice_bounds, starts, ends, axes, steps, *te_dims(bb, x), entries=entries
    )
    begins, strides, lengths = (bb.emit(relax.TupleGetItem(bounds, k)) for k in range(3))
    shape = bb.dims(lengths, least=None)
    if isinstance(axes, list):
        shape = [d if axis in axes else dims[axis] for axis, d in enumerate(shape)]
        known = _known_steps(bb, steps, axes, len(dims))
        if known is not None:
            # As dims, of which loops make rows that lie together.
            begins, strides = bb.dims(begins, least=None), known
            begins = [d if axis in axes else 0 for axis, d in enumerate(begins)]
    return bb.emit_te(ops.strided_slice, x, begins, strides, shape)


def _known_steps(bb, steps, axes, rank):
    """The step along each axis, where all are constant and go forward: no begin is below 0 then."""
    given = [1] * len(axes) if steps is None else bb.static(steps)
    if given is None or not all(isinstance(step, int | np.integer) and step > 0 for step in given):
        return None
    known = [1] * rank
    for axis, step in zip(axes, given, strict=True):
        known[axis] = int(step)
    return known


def _demand_steps(bb, steps):
    """Assert that no step is 0."""
    if bb.static_shape(steps) is None:
        steps = bb.emit_te(verdicts.least_size, steps)
    zero = tirx.const(0, "int64")
    demand_holds(bb, *((as_expr(step) != zero, "a step is 0") for step in raw(bb, steps)))


@converter("Split", 1)
def split_1(bb, x, split=None, *, axis=None):
    raise NotImplementedError("Split-1 was withdrawn by ONNX; convert the model to opset 2")


@converter("Split", 2, 11)
def split_attribute(bb, x, sizes=None, *, axis=0, split=None):
    """Exporters have written the input of opset 13 in older opsets too."""
    return (
        split_along(bb, x, axis, split) if sizes is None else split_input(bb, x, sizes, axis=axis)
    )


@converter("Split", 13)
def split_input(bb, x, split=None, *, axis=0):
    return split_along(bb, x, axis, _sizes(bb, split))


@converter("Split", 18)
def split_outputs(bb, x, split=None, *, axis=0, num_outputs=None):
    count = len(bb.node.outputs)
    if num_outputs not in (None, count):  # of a node in a function
        raise ValueError(f"num_outputs is {num_outputs}, and it has {count} outputs")
    return split_along(bb, x, axis, _sizes(bb, split), num_outputs)


def _sizes(bb, split):
    return None if split is None else bb.dims(split, len(bb.node.outputs), "a part")


def split_along(bb, x, axis, sizes, parts=None):
    dims = bb.shape(x)
    axis = placed(axis, len(dims))
    parts = parts or len(bb.node.outputs)
    if sizes is None:
        sizes = equal_parts(bb, dims[axis], parts)
    elif not bb.equal(whole := bb.simplify(sum(sizes)), dims[axis]):
        if isinstance(whole, int) and isinstance(dims[axis], int):
            raise ValueError(f"the parts {sizes} do not make up axis {axis} of {dims}")
        dims[axis] = whole
        x = bb.match(x, dims, reason="is {given}, of which the parts make up {wanted}")
    offsets = [0, *accumulate(sizes)]
    known = bb.static(x)
    if known is not None and known.dtype == object:  # a shape is taken apart
        return tuple(bb.materialise(Known(known[a:b], bb.dtype(x))) for a, b in pairwise(offsets))
    if len(sizes) > 1 and 0 not in sizes and all(isinstance(o, int) for o in (*offsets, *dims)):
        pieces = bb.emit(relax.op.split(x, offsets[1:-1], axis))
        return tuple(bb.emit(relax.TupleGetItem(pieces, k)) for k in range(len(sizes)))
    return tuple(
        _piece(bb, x, axis, begin, length) for begin, length in zip(offsets, sizes, strict=False)
    )


def equal_parts(bb, dim, parts):
    """Sizes of ``parts`` equal parts; the last is smaller where they do not divide ``dim``."""
    if isinstance(dim, int):
        size = -(-dim // parts)
        return [max(0, min(size, dim - k * size)) for k in range(parts)]
    size = tirx.floordiv(dim + (parts - 1), parts)
    return [*[bb.simplify(size)] * (parts - 1), bb.simplify(dim - size * (parts - 1))]


def _piece(bb, x, axis, begin, length):
    lengths = bb.shape(x)
    lengths[axis] = length
    begins = [bb.simplify(begin) if k == axis else 0 for k in range(len(lengths))]
    return take_slice(bb, x, begins, [1] * len(lengths), lengths)


@converter("Concat", 1)
def concat_1(bb, *xs, axis=None):
    return concat(bb, *xs, axis=1 if axis is None else axis)


@converter("Concat", 4, 11, 13)
def concat(bb, *xs, axis):
    if len(xs) == 1:
        return xs[0]
    axis = placed(axis, bb.rank(xs[0]))
    return bb.emit(relax.op.concat(same_dims(bb, xs, but=axis), axis))


def same_dims(bb, xs, but=None):
    """``xs`` with equal dims, asserted at run time where not provable; axis ``but`` may differ."""
    shapes = [bb.shape(x) for x in xs]
    common = [
        next((d for d in dims if isinstance(d, int)), dims[0]) for dims in zip(*shapes, strict=True)
    ]
    result = []
    for x, dims in zip(xs, shapes, strict=True):
        wanted = [dim if k == but else common[k] for k, dim in enumerate(dims)]
        agrees = all(bb.equal(a, b) for a, b in zip(dims, wanted, strict=True))
        result.append(x if agrees else bb.match(x, wanted))
    return result
