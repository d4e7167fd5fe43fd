"""Where the extreme elements of a tensor are.

Two passes of a plain integer maximum or minimum, which vectorise and treat NaN as numpy does (the
most extreme of all): the extreme value, then the first or last place that holds it.
"""

from tvm import te, tirx

from .elementwise import dtype_of
from .ordering import to_key

__all__ = ["arg_extremum", "sign_flipped"]


def arg_extremum(x: te.Tensor, axis: int, keepdims: bool, largest: bool, last: bool) -> te.Tensor:
    """The int64 index along ``axis`` of the largest (or smallest) element of ``x``.

    Among equals it is the first, or the ``last``.
    """
    extent = x.shape[axis]
    reducer = te.max if largest else te.min
    kept = [d for k, d in enumerate(x.shape) if k != axis]

    def key(outer, position):
        return to_key(x(*outer[:axis], position, *outer[axis:]), nan_is_largest=largest)

    r = te.reduce_axis((0, extent), "r")
    extreme = te.compute(kept, lambda *i: reducer(key(i, r.var), axis=r), "extreme")

    s = te.reduce_axis((0, extent), "s")
    chosen, nowhere = (te.max, -1) if last else (te.min, extent)

    # As wide as most keys are, so that as many of either fill a vector.
    narrow = isinstance(extent, tirx.IntImm) and int(extent) < 1 << 31
    counter = "int32" if narrow else "int64"

    def place(*outer):
        # No comparison: schedules would have to take what it reads for the bound of a loop.
        differs = (key(outer, s.var) ^ extreme(*outer)).astype("bool")
        here, none = s.var.astype(counter), tirx.convert(nowhere).astype(counter)
        return chosen(tirx.Select(differs, none, here), axis=s)

    index = te.compute(kept, place, "place")
    shape = [1 if k == axis else d for k, d in enumerate(x.shape)] if keepdims else kept

    def element(*i):
        return index(*(i[:axis] + i[axis + 1 :] if keepdims else i)).astype("int64")

    return te.compute(shape, element, "arg_extremum")


def sign_flipped(x: te.Tensor) -> te.Tensor:
    """Unsigned integers as signed ones in the same order, and back."""
    name = dtype_of(x)
    signed = name.removeprefix("u")

    def element(*index):
        # The sign bit alone is the least signed number.
        value = tirx.reinterpret(signed, x(*index)) ^ tirx.min_value(signed)
        return value if name.startswith("u") else tirx.reinterpret(f"u{signed}", value)

    return te.compute(x.shape, element, "sign_flipped")
