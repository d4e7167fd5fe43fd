"""Slices whose bounds are ints, symbolic dims or read from tensors."""

from tvm import te, tirx


def strided_slice(x, begins, steps, shape):
    """``y[i, ...] = x[begins[0] + i * steps[0], ...]`` of the given ``shape``.

    ``begins`` and ``steps`` are per axis of ``x``: lists of ints and dims, or ``int64[rank]``.
    """

    def element(*index):
        return x(*(begins[k] + i * steps[k] for k, i in enumerate(index)))

    return te.compute(shape, element, "strided_slice")


def windows(x, axis, size, step):
    """``y[..., i, ..., j] = x[..., i * step + j, ...]`` along ``axis``; ``size`` elements j."""
    count = tirx.floordiv(x.shape[axis] - size, step) + 1
    shape = [*x.shape[:axis], count, *x.shape[axis + 1 :], size]

    def element(*index):
        *place, j = index
        place[axis] = place[axis] * step + j
        return x(*place)

    return te.compute(shape, element, "windows")


def slice_bounds(starts, ends, axes, steps, *dims, entries):
    """The ``entries`` slices of ONNX, clamped to a tensor ``[*dims]`` and spread over its axes.

    Returns ``begins``, ``steps`` and ``lengths``, ``int64[len(dims)]`` each; an axis that no
    entry names is taken whole. ``axes`` is a list of ints or a tensor, or None: the first ones.
    ``steps`` may be None: 1. ``entries`` may be known only at run time, if ``axes`` is no list.
    """
    rank = len(dims)
    zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")
    entry = _entries(axes, entries, rank)

    def spread(entry_value, default, name):
        def element(axis):
            k = entry[axis]
            value = entry_value(tirx.max(k, 0), _pick(dims, axis))
            return tirx.if_then_else(k >= 0, value, default(axis))

        return te.compute((rank,), element, name)

    def bound(k):
        step = one if steps is None else steps[k].astype("int64")
        return starts[k].astype("int64"), ends[k].astype("int64"), step

    def begin(k, dim):
        start, _, step = bound(k)
        return clamped_begin(start, step > 0, dim)

    def length(k, dim):
        start, end, step = bound(k)
        return slice_length(start, end, step, dim)

    return [
        spread(begin, lambda axis: zero, "slice_begins"),
        spread(lambda k, dim: bound(k)[2], lambda axis: one, "slice_steps"),
        spread(length, lambda axis: _pick(dims, axis), "slice_lengths"),
    ]


def _entries(axes, entries, rank):
    """Which entry names an axis, the last one that does, or -1: ``int64[rank]``."""
    none = tirx.const(-1, "int64")
    if isinstance(axes, list):
        given = {axis % rank: tirx.const(k, "int64") for k, axis in enumerate(axes)}
        return te.compute(
            (rank,), lambda axis: _pick([given.get(a, none) for a in range(rank)], axis), "entry"
        )
    if axes is None:
        first = lambda axis: tirx.Select(axis < entries, axis.astype("int64"), none)  # noqa: E731
        return te.compute((rank,), first, "entry")
    k = te.reduce_axis((0, entries), "k")

    def named(axis):
        at = axes[k].astype("int64")
        here = tirx.any(at == axis, at == axis - rank)
        return te.max(tirx.Select(here, k.astype("int64"), none), axis=k)

    return te.compute((rank,), named, "entry")


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
