"""Shapes that depend on values known only at run time, as small integer tensors."""

from functools import reduce

from tvm import te, tirx


def resolved_shape(shape, *dims, allowzero):
    """``shape[k]`` of a Reshape of a tensor ``[*dims]``, its 0 and -1 replaced: ``int64[k]``."""
    count = int(shape.shape[0])
    total = _product(dims)

    def explicit(k):
        copied = shape[k].astype("int64")
        if not allowzero:
            for axis, dim in enumerate(dims):
                copied = tirx.Select(tirx.all(k == axis, shape[k] == 0), dim, copied)
        return copied

    def element(k):
        others = _product(
            tirx.Select(shape[j] == -1, tirx.const(1, "int64"), explicit(tirx.const(j, "int64")))
            for j in range(count)
        )
        inferred = tirx.floordiv(total, tirx.max(others, 1))
        return tirx.Select(shape[k] == -1, inferred, explicit(k))

    return te.compute((count,), element, "resolved_shape")


def squeezed_shape(axes, *dims, removed):
    """The dims of ``[*dims]`` without ``axes[removed]``: ``int64[len(dims) - removed]``."""
    rank = len(dims)

    def element(j):
        result = tirx.const(0, "int64")
        for axis, dim in enumerate(dims):
            kept_before = axis - sum(
                _named(axes, removed, a, rank).astype("int64") for a in range(axis)
            )
            here = tirx.all(tirx.Not(_named(axes, removed, axis, rank)), kept_before == j)
            result = tirx.Select(here, dim, result)
        return result

    return te.compute((rank - removed,), element, "squeezed_shape")


def dims_but_ones(*dims, rank):
    """How many of ``dims`` are not 1, then the first ``rank`` of these: ``int64[1 + rank]``."""

    def place(axis):
        return sum((dim != 1).astype("int64") for dim in dims[:axis]) + tirx.const(1, "int64")

    def element(j):
        result = tirx.const(0, "int64")
        for axis, dim in enumerate(dims):
            result = tirx.Select(tirx.all(dim != 1, place(axis) == j), dim, result)
        return tirx.Select(j == 0, place(len(dims)) - 1, result)

    return te.compute((1 + rank,), element, "dims_but_ones")


def unsqueezed_shape(axes, *dims, added):
    """``[*dims]`` with ones at ``axes[added]`` of the result: ``int64[len(dims) + added]``."""
    rank = len(dims) + added

    def element(j):
        result = tirx.const(1, "int64")
        for axis, dim in enumerate(dims):
            inserted = sum(
                tirx.all(_named(axes, added, a, rank), a < j).astype("int64") for a in range(rank)
            )
            result = tirx.Select(j - inserted == axis, dim, result)
        return tirx.Select(_named(axes, added, j, rank), tirx.const(1, "int64"), result)

    return te.compute((rank,), element, "unsqueezed_shape")


def around_axis(axis, *dims, rank):
    """What is before, along and after a run-time ``axis`` of ``[*dims]``: ``int64[3]``.

    A negative axis counts from the end of ``rank`` axes.
    """
    at = _normalised(axis, rank)
    one = tirx.const(1, "int64")

    def product(chosen):
        return _product(tirx.Select(chosen(k), dim, one) for k, dim in enumerate(dims))

    parts = (product(lambda k: at > k), product(lambda k: at == k), product(lambda k: at < k))
    return te.compute(
        (3,), lambda i: tirx.Select(i == 0, parts[0], tirx.Select(i == 1, *parts[1:])), "around"
    )


def with_dim(axis, size, *dims, rank):
    """``[*dims]`` with ``size`` at a run-time ``axis``: ``int64[len(dims)]``."""
    at = _normalised(axis, rank)

    def element(i):
        result = dims[-1]
        for k, dim in enumerate(dims):
            result = tirx.Select(i == k, dim, result)
        return tirx.Select(i == at, size, result)

    return te.compute((len(dims),), element, "with_dim")


def _normalised(axis, rank):
    at = axis(*[0] * len(axis.shape)).astype("int64")
    return tirx.Select(at < 0, at + rank, at)


def _named(axes, count, axis, rank):
    """Whether ``axes[count]`` names ``axis``, perhaps counted from the end."""
    return reduce(
        tirx.Or,
        (tirx.any(axes[k] == axis, axes[k] == axis - rank) for k in range(count)),
        tirx.const(False, "bool"),
    )


def _product(factors):
    return reduce(lambda a, b: a * b, factors, tirx.const(1, "int64"))
