"""Slices whose bounds are ints, symbolic dims or read from tensors."""

from tvm import te, tirx
from tvm.te import Tensor


def strided_slice(x, begins, steps, shape):
    """``y[i, ...] = x[begins[0] + i * steps[0], ...]`` of the given ``shape``.

    ``begins`` and ``steps`` are per axis of ``x``: lists of ints and dims, or ``int64[rank]``.
    """

    def element(*index):
        return x(*(begins[k] + i * steps[k] for k, i in enumerate(index)))

    return te.compute(shape, element, "strided_slice")


def slice_bounds(starts, ends, axes, steps, *dims, entries):
    """The ``entries`` slices of ONNX, clamped to a tensor ``[*dims]`` and spread over its axes.

    Returns ``begins``, ``steps`` and ``lengths``, ``int64[len(dims)]`` each; an axis that no
    entry names is taken whole. ``axes`` is a list of ints or a tensor.
    """
    rank = len(dims)

    def spread(entry_value, default, name):
        def element(axis):
            value = default(axis)
            for k in range(entries):
                named = axes[k].astype("int64") if isinstance(axes, Tensor) else axes[k]
                here = tirx.any(axis == named, axis == named + rank)
                value = tirx.Select(here, entry_value(k, _pick(dims, axis)), value)
            return value

        return te.compute((rank,), element, name)

    def bound(k):
        return (tensor[k].astype("int64") for tensor in (starts, ends, steps))

    def begin(k, dim):
        start, _, step = bound(k)
        return clamped_begin(start, step > 0, dim)

    def length(k, dim):
        start, end, step = bound(k)
        return slice_length(start, end, step, dim)

    zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")
    return [
        spread(begin, lambda axis: zero, "slice_begins"),
        spread(lambda k, dim: steps[k].astype("int64"), lambda axis: one, "slice_steps"),
        spread(length, lambda axis: _pick(dims, axis), "slice_lengths"),
    ]


def clamped_begin(start, forward, dim):
    """Where a slice begins in an axis of ``dim`` elements; negative starts count from the end.

    Backwards from nothing it begins at -1.
    """
    last = tirx.Select(forward, dim, dim - 1)
    return tirx.min(tirx.max(_wrapped(start, dim), 0), last)


def slice_length(start, end, step, dim):
    """How many elements ``start:end:step`` takes of ``dim``; the step is not 0."""
    forward = step > 0
    begin = clamped_begin(start, forward, dim)
    stop = _wrapped(end, dim)
    ahead = tirx.floordiv(tirx.max(tirx.min(stop, dim), 0) - begin + step - 1, tirx.max(step, 1))
    back = tirx.floordiv(begin - tirx.max(tirx.min(stop, dim), -1) - step - 1, tirx.max(-step, 1))
    return tirx.max(tirx.Select(forward, ahead, back), 0)


def _wrapped(position, dim):
    return tirx.Select(position < 0, position + dim, position)


def _pick(values, position):
    result = values[-1]
    for k in range(len(values) - 2, -1, -1):
        result = tirx.Select(position == k, values[k], result)
    return result
