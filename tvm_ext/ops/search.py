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

    def place(*outer):
        is_extreme = key(outer, s.var).equal(extreme(*outer))
        found = tirx.Select(
            is_extreme, s.var.astype("int64"), tirx.convert(nowhere).astype("int64")
        )
        return chosen(found, axis=s)

    index = te.compute(kept, place, "place")
    if not keepdims:
        return index
    shape = [1 if k == axis else d for k, d in enumerate(x.shape)]
    return te.compute(shape, lambda *i: index(*i[:axis], *i[axis + 1 :]), "arg_extremum")


def sign_flipped(x: te.Tensor) -> te.Tensor:
    """Unsigned integers as signed ones in the same order, and back."""
    name = dtype_of(x)
    signed = name.removeprefix("u")

    def element(*index):
        # The sign bit alone is the least signed number.
        value = tirx.reinterpret(signed, x(*index)) ^ tirx.min_value(signed)
        return value if name.startswith("u") else tirx.reinterpret(f"u{signed}", value)

    return te.compute(x.shape, element, "sign_flipped")
