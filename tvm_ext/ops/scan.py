"""What a trip of Scan reads."""

from tvm import te


def scan_step(x, iteration, axis, reverse):
    """The slice of ``x`` along ``axis`` that trip ``iteration`` (``int64[]``) sees."""

    def element(*index):
        at = x.shape[axis] - 1 - iteration[()] if reverse else iteration[()]
        return x(*index[:axis], at, *index[axis:])

    return te.compute((*x.shape[:axis], *x.shape[axis + 1 :]), element, "scan_step")


def scan_trips(dim):
    """A dim as ``int64[]``."""
    return te.compute((), lambda: dim, "scan_trips")
