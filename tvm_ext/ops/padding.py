"""Padding and cropping, by amounts known at compile time or read from a tensor."""

from tvm import te, tirx


def pad(x, value, before, shape, mode, padded):
    """``x`` moved by ``before`` inside ``shape``, the rest filled as ``mode`` says.

    ``before`` is per axis: ints and dims, or ``int64[rank]``; negative amounts crop. ``padded``
    are the axes to treat. ``value`` is rank 0, and read in mode "constant" only.
    """

    def element(*index):
        at = [i - before[k] if k in padded else i for k, i in enumerate(index)]
        if mode == "constant":
            inside = [tirx.all(at[k] >= 0, at[k] < x.shape[k]) for k in padded]
            return tirx.if_then_else(tirx.all(*inside), x(*at), value[()]) if inside else x(*at)
        last = len(index) - 1
        near = {k for k in padded if _is_near(mode, before[k], x.shape[k], shape[k])}
        for k in set(padded) - {last}:
            if k in near:
                dim = int(x.shape[k])
                at[k] = _piecewise(tirx.Select, at[k], dim, *_BEYOND[mode](at[k], dim), at[k])
            else:
                at[k] = _source(mode, at[k], before[k], x.shape[k], shape[k])
        if last not in padded:
            return x(*at)
        # Three pieces, which a schedule can part: that in the middle is a plain copy.
        (*outer, i), dim = at, x.shape[last]
        if last in near:
            beyond = _BEYOND[mode](i, int(dim))
        else:
            beyond = (_source(mode, i, before[last], dim, shape[last]),) * 2
        pieces = (x(*outer, position) for position in (*beyond, i))
        return _piecewise(tirx.if_then_else, i, dim, *pieces)

    return te.compute(shape, element, "pad")


def _piecewise(choose, i, dim, below, above, inside):
    return choose(i < 0, below, choose(i >= dim, above, inside))


def _is_near(mode, before, dim, extent):
    """Whether no position is further beyond an end than the elements reach once."""
    if not all(isinstance(v, int | tirx.IntImm) for v in (before, dim, extent)):
        return False
    before, dim, extent = int(before), int(dim), int(extent)
    if mode == "wrap" and (before < 0 or extent < before + dim):
        return False
    reach = {"reflect": dim - 1, "wrap": dim, "edge": before + extent}[mode]
    return max(before, extent - before - dim) <= reach


# The element that stands for position ``i`` before the first, and behind the last.
_BEYOND = {
    "reflect": lambda i, dim: (-i, 2 * (dim - 1) - i),
    "edge": lambda i, dim: (i * 0, i * 0 + (dim - 1)),
    "wrap": lambda i, dim: (i + dim, i - dim),
}


def _reflected(i, dim):
    # Mirrored at both ends, the elements repeat every 2 * (dim - 1).
    period = tirx.max(2 * (dim - 1), 1)
    phase = tirx.floormod(i, period)
    return tirx.max(tirx.min(phase, period - phase), 0) if not _is_one(dim) else 0


def _is_one(dim):
    return isinstance(dim, tirx.IntImm) and int(dim) == 1


# The same for any distance.
_SOURCES = {
    "reflect": _reflected,
    "edge": lambda i, dim: tirx.max(tirx.min(i, dim - 1), 0),
}


def _source(mode, i, before, dim, extent):
    """The position in the input that stands for position ``i``, any distance from it."""
    if mode != "wrap":
        return _SOURCES[mode](i, dim)
    # What is cropped does not come back at the other end.
    first = tirx.max(tirx.const(0, "int64") - before, 0)
    last = dim + tirx.min(extent - before - dim, 0)
    return first + tirx.floormod(i - first, tirx.max(last - first, 1))


def padded_shape(pads, axes, *dims, entries):
    """``pads`` of ``entries`` axes, begins then ends, spread over a tensor ``[*dims]``.

    Returns how many elements are added before those of an axis, how many of these are taken away,
    and the resulting shape, ``int64[len(dims)]`` each. ``axes`` is a list of ints or a tensor,
    whose number of elements may be known only at run time.
    """
    rank = len(dims)

    def amounts(offset, name):
        zero = tirx.const(0, "int64")
        if isinstance(axes, list):
            given = {axis % rank: k for k, axis in enumerate(axes)}
            return te.compute(
                (rank,),
                lambda axis: _pick(
                    [
                        pads[given[a] + offset].astype("int64") if a in given else zero
                        for a in range(rank)
                    ],
                    axis,
                ),
                name,
            )
        k = te.reduce_axis((0, entries), "k")

        def amount(axis):
            named = tirx.any(axes[k] == axis, axes[k] == axis - rank)
            return te.sum(tirx.if_then_else(named, pads[k + offset].astype("int64"), zero), axis=k)

        return te.compute((rank,), amount, name)

    begins, ends = amounts(0, "pad_begins"), amounts(entries, "pad_ends")

    def extent(axis):
        return _pick(dims, axis) + begins(axis) + ends(axis)

    def part(sign, name):
        zero = tirx.const(0, "int64")
        return te.compute((rank,), lambda axis: tirx.max(begins(axis) * sign, zero), name)

    added, taken = part(1, "pad_added"), part(-1, "pad_taken")
    return [added, taken, te.compute((rank,), extent, "padded_shape")]


def _pick(values, position):
    result = values[-1]
    for k in range(len(values) - 2, -1, -1):
        result = tirx.Select(position == k, values[k], result)
    return result
