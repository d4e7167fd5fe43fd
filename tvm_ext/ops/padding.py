"""Padding and cropping, by amounts known at compile time or read from a tensor."""

from tvm import te, tirx


def pad(x, value, before, shape, mode, padded):
    """``x`` moved by ``before`` inside ``shape``, the rest filled as ``mode`` says.

    ``before`` is per axis: ints and dims, or ``int64[rank]``; negative amounts crop. ``padded``
    are the axes to treat. ``value`` is rank 0, and read in mode "constant" only.
    """
    source = _SOURCES[mode] if mode != "constant" else None

    def element(*index):
        at = [i - before[k] if k in padded else i for k, i in enumerate(index)]
        if source is not None:
            return x(*(source(i, x.shape[k]) if k in padded else i for k, i in enumerate(at)))
        inside = [tirx.all(at[k] >= 0, at[k] < x.shape[k]) for k in padded]
        return tirx.if_then_else(tirx.all(*inside), x(*at), value[()]) if inside else x(*at)

    return te.compute(shape, element, "pad")


def _reflected(i, dim):
    # Mirrored at both ends, the elements repeat every 2 * (dim - 1).
    period = tirx.max(2 * (dim - 1), 1)
    phase = tirx.floormod(i, period)
    return tirx.max(tirx.min(phase, period - phase), 0) if not _is_one(dim) else 0


def _is_one(dim):
    return isinstance(dim, tirx.IntImm) and int(dim) == 1


_SOURCES = {
    "reflect": _reflected,
    "edge": lambda i, dim: tirx.max(tirx.min(i, dim - 1), 0),
    "wrap": tirx.floormod,
}


def padded_shape(pads, axes, *dims, entries):
    """``pads`` of ``entries`` axes, begins then ends, spread over a tensor ``[*dims]``.

    Returns the begins per axis and the resulting shape, ``int64[len(dims)]`` each. ``axes`` is
    a list of ints or a tensor.
    """
    rank = len(dims)

    def amount(axis, offset):
        total = tirx.const(0, "int64")
        for k in range(entries):
            named = axes[k]
            here = tirx.any(axis == named, axis == named + rank)
            total = tirx.Select(here, pads[k + offset].astype("int64"), total)
        return total

    def extent(axis):
        dim = dims[-1]
        for k in range(rank - 2, -1, -1):
            dim = tirx.Select(axis == k, dims[k], dim)
        return tirx.max(dim + amount(axis, 0) + amount(axis, entries), 0)

    return [
        te.compute((rank,), lambda axis: amount(axis, 0), "pad_begins"),
        te.compute((rank,), extent, "padded_shape"),
    ]
