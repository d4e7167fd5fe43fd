"""Normalisation over any axes, exact where the mean is large.

Each kernel is a chain of row sums followed by one element-wise write over the same domain. The
variance is summed from deviations, in a second pass: E[x*x] - E[x]*E[x] cancels. Sums run in
float32, or float64 where the input has it.
"""

from math import nan

from tvm import te, tirx
from tvm.topi.utils import prod

__all__ = [
    "divisor",
    "lp_normalization",
    "lrn",
    "mean_variance_normalization",
    "moments",
    "normalize",
]


def normalize(x, scale, bias, axes, epsilon, *, centred=True, statistics=None):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias``, mean and variance over ``axes``.

    ``scale`` and ``bias`` (or None) have the rank of ``x``, with dims equal to its own or 1.
    Not ``centred``: the mean counts as 0 (root mean square). ``statistics`` names the type in
    which mean and 1/sqrt(variance + epsilon) are returned too, with dims 1 on ``axes``.
    """
    rows = _Rows(x, axes)
    value = rows.wide
    total = rows.sum(value, "row_sum") if centred else None

    def deviation(*i):
        return value(*i) - total(*rows.of(i)) / rows.count if centred else value(*i)

    def inverse(*row):
        return te.rsqrt(square(*row) / rows.count + tirx.const(epsilon, rows.dtype))

    square = rows.sum(lambda *i: deviation(*i) * deviation(*i), "row_square_sum")

    def affine(*i):
        y = deviation(*i) * inverse(*rows.of(i))
        for operation, operand in (("__mul__", scale), ("__add__", bias)):
            if operand is not None:
                y = getattr(y, operation)(_broadcast(operand, i).astype(rows.dtype))
        return y.astype(x.dtype)

    y = te.compute(x.shape, affine, "normalize")
    if statistics is None:
        return y
    kept = [1 if axis in rows.axes else dim for axis, dim in enumerate(x.shape)]
    mean = te.compute(kept, lambda *i: (total(*rows.of(i)) / rows.count).astype(statistics), "mean")
    spread = te.compute(
        kept, lambda *i: inverse(*rows.of(i)).astype(statistics), "inverse_deviation"
    )
    return y, mean, spread


def moments(x, axes):
    """The mean and the population variance of ``x`` over ``axes``, which the results lack."""
    rows = _Rows(x, axes)
    total = rows.sum(rows.wide, "row_sum")

    def square_deviation(*i):
        deviation = rows.wide(*i) - total(*rows.of(i)) / rows.count
        return deviation * deviation

    square = rows.sum(square_deviation, "row_square_sum")
    mean = te.compute(rows.shape, lambda *row: total(*row) / rows.count, "mean")
    variance = te.compute(rows.shape, lambda *row: square(*row) / rows.count, "variance")
    return mean, variance


def mean_variance_normalization(x, axes, epsilon=1e-9):
    """``(x - mean) / (sqrt(variance) + epsilon)`` over ``axes``; shape and type of ``x``."""
    rows = _Rows(x, axes)
    total = rows.sum(rows.wide, "row_sum")

    def deviation(*i):
        return rows.wide(*i) - total(*rows.of(i)) / rows.count

    square = rows.sum(lambda *i: deviation(*i) * deviation(*i), "row_square_sum")

    def write(*i):
        spread = te.sqrt(square(*rows.of(i)) / rows.count)
        return (deviation(*i) / (spread + tirx.const(epsilon, rows.dtype))).astype(x.dtype)

    return te.compute(x.shape, write, "mean_variance_normalization")


def lp_normalization(x, p, axis):
    """``x / norm_p(x)`` along ``axis`` for p 1 or 2; 0 where the norm is 0."""
    rows = _Rows(x, [axis])
    value = rows.wide
    power = (lambda *i: te.abs(value(*i))) if p == 1 else (lambda *i: value(*i) * value(*i))
    total = rows.sum(power, "row_power_sum")

    def write(*i):
        norm = total(*rows.of(i)) if p == 1 else te.sqrt(total(*rows.of(i)))
        zero = tirx.const(0, rows.dtype)
        return tirx.if_then_else(norm == zero, zero, value(*i) / norm).astype(x.dtype)

    return te.compute(x.shape, write, "lp_normalization")


def lrn(x, size, alpha, beta, bias):
    """Divide ``x[N, C, ...]`` by ``(bias + alpha/size * square sum)^beta``.

    The sum runs over ``size`` channels around each one, as many of them as exist.
    """
    dtype = _accumulator(x.dtype)
    before, channels = (size - 1) // 2, x.shape[1]
    r = te.reduce_axis((0, size), "r")

    def square(n, c, *i):
        k = c - before + r
        inside = tirx.all(k >= 0, k < channels)
        value = tirx.if_then_else(inside, x(n, k, *i).astype(dtype), tirx.const(0, dtype))
        return te.sum(value * value, axis=r)

    total = te.compute(x.shape, square, "channel_square_sum")

    def write(*i):
        base = tirx.const(bias, dtype) + total(*i) * tirx.const(alpha / size, dtype)
        return (x(*i).astype(dtype) / te.power(base, tirx.const(beta, dtype))).astype(x.dtype)

    return te.compute(x.shape, write, "lrn")


class _Rows:
    """A tensor seen as rows: what ``axes`` span is one row, the other axes count the rows."""

    def __init__(self, x, axes):
        self.x = x
        self.axes = sorted(axis % len(x.shape) for axis in axes)
        self.dtype = _accumulator(x.dtype)
        self.count = divisor([x.shape[axis] for axis in self.axes], self.dtype)
        self.kept = [axis for axis in range(len(x.shape)) if axis not in self.axes]
        # TE has no kernel over zero axes: one row of everything still has an axis.
        self.shape = [x.shape[axis] for axis in self.kept] or [1]

    def wide(self, *i):
        return self.x(*i).astype(self.dtype)

    def of(self, index):
        """The row that holds an element."""
        return [index[axis] for axis in self.kept] or [0]

    def sum(self, term, name):
        """``term(*index)`` summed over each row."""
        reduced = [te.reduce_axis((0, self.x.shape[axis]), f"r{axis}") for axis in self.axes]

        def total(*row):
            at = dict(zip([*self.axes, *self.kept], [*reduced, *row], strict=False))
            return te.sum(term(*[at[axis] for axis in range(len(at))]), axis=reduced)

        return te.compute(self.shape, total, name)


def divisor(dims, dtype):
    """How many elements ``dims`` span, to divide a sum by.

    NaN where there are none, of which the mean is NaN: TVM refuses to divide by 0, also for a
    result without elements.
    """
    count = prod(dims)
    none = isinstance(count, tirx.IntImm) and int(count) == 0
    return tirx.const(nan, dtype) if none else count.astype(dtype)


def _accumulator(dtype):
    return "float64" if str(dtype) == "float64" else "float32"


def _broadcast(operand, index):
    return operand(
        *[
            0 if isinstance(dim, tirx.IntImm) and int(dim) == 1 else i
            for dim, i in zip(operand.shape, index, strict=True)
        ]
    )
