"""What a trip of Scan reads."""

from tvm import te, tirx


def scan_step(x, iteration, axis, count=None):
    """The slice of ``x`` along ``axis`` that trip ``iteration`` (``int64[]``) sees.

    With ``count`` (``int64[]``), how many trips there are, the first trip sees the last slice.
    """

    def element(*index):
        at = iteration[()] if count is None else count[()] - 1 - iteration[()]
        return x(*index[:axis], at, *index[axis:])

    return te.compute((*x.shape[:axis], *x.shape[axis + 1 :]), element, "scan_step")


def scan_trips(dim, length=None):
    """A dim as ``int64[]``; the ``length`` (``int64[]``) of what is valid of it, if it is given."""

    def trips():
        if length is None:
            return dim
        return tirx.max(tirx.const(0, "int64"), tirx.min(length[()], dim))

    return te.compute((), trips, "scan_trips")


def padded_rows(x, rows):
    """``x`` with zeros behind it, so that it has ``rows`` along axis 0."""

    def element(i, *rest):
        zero = tirx.const(0, str(x.dtype.dtype))
        return tirx.if_then_else(i < x.shape[0], x(i, *rest), zero)

    return te.compute((rows, *x.shape[1:]), element, "padded_rows")
