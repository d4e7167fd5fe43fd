"""The softmax family: what TVM lacks, and what it computes by one libm call per element."""

from tvm import te, tirx

from .approximations import exp_nonpositive, log

__all__ = ["hardmax", "log_softmax", "softmax"]


def softmax(x, axis):
    """``exp(x - max) / sum(exp(x - max))`` along ``axis``; shape and type of ``x``."""
    rows, _, power, total = _powers(x, axis)

    def share(*i):
        # Lanes of one row share a division: the sum is 1 or more, its inverse is a normal number.
        if rows.axis == len(x.shape) - 1:
            return power(*i) * (1 / total(*rows.of(i)))
        return power(*i) / total(*rows.of(i))

    return te.compute(x.shape, share, "softmax")


def log_softmax(x, axis):
    """``x - max - log(sum(exp(x - max)))`` along ``axis``; shape and type of ``x``."""
    rows, shifted, _, total = _powers(x, axis)
    level = te.compute(rows.shape, lambda *row: log(total(*row)), "row_log_sum")
    return te.compute(x.shape, lambda *i: shifted(*i) - level(*rows.of(i)), "log_softmax")


def _powers(x, axis):
    """The rows of ``x``, and of each: elements less the largest, their powers of e, the sum."""
    rows = _Rows(x, axis)
    peak = rows.fold(te.max, x, "row_max")

    def shifted(*i):
        return x(*i) - peak(*rows.of(i))

    power = te.compute(x.shape, lambda *i: exp_nonpositive(shifted(*i)), "row_exp")
    return rows, shifted, power, rows.fold(te.sum, power, "row_sum")


class _Rows:
    """The rows of ``x`` along ``axis``."""

    def __init__(self, x, axis):
        self.axis, self.extent = axis, x.shape[axis]
        self.shape = [dim for k, dim in enumerate(x.shape) if k != axis]

    def of(self, i):
        return (*i[: self.axis], *i[self.axis + 1 :])

    def fold(self, reducer, value, name):
        r = te.reduce_axis((0, self.extent), "r")
        return te.compute(
            self.shape,
            lambda *row: reducer(value(*row[: self.axis], r, *row[self.axis :]), axis=r),
            name,
        )


def hardmax(x, axis):
    """1 at the first maximum of ``x`` along ``axis``, 0 elsewhere; shape and type of ``x``."""
    extent = x.shape[axis]
    rows = [dim for k, dim in enumerate(x.shape) if k != axis]

    def at(row, k):
        return x(*row[:axis], k, *row[axis:])

    r = te.reduce_axis((0, extent), "r")
    peak = te.compute(rows, lambda *row: te.max(at(row, r), axis=r), "row_max")
    s = te.reduce_axis((0, extent), "s")

    # te.max starts at the least finite number: -inf counts as that.
    def is_peak(row, k):
        return tirx.max(at(row, k), te.min_value(x.dtype)) == peak(*row)

    first = te.compute(
        rows,
        lambda *row: te.min(
            tirx.Select(is_peak(row, s), tirx.Cast("int64", s), tirx.Cast("int64", extent)),
            axis=s,
        ),
        "row_argmax",
    )

    def one_hot(*i):
        return (first(*i[:axis], *i[axis + 1 :]) == i[axis]).astype(x.dtype)

    return te.compute(x.shape, one_hot, "hardmax")
