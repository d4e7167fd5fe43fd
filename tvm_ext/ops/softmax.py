"""Members of the softmax family that TVM lacks."""

from tvm import te, tirx

__all__ = ["hardmax"]


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
