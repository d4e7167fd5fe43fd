"""Pooling over N-D windows: dilations, partial windows, indices, integers.

Every function takes ``x[N, C, I...]`` and the window as lists with one entry per spatial axis:
``kernel``, ``strides``, ``dilations``, begin pads ``before``, and the result's spatial dims
``outputs``. What lies outside of ``x`` is never read.
"""

from contextlib import ExitStack
from functools import reduce
from math import inf
from operator import mul

from tvm import te, tirx
from tvm.ir import Range
from tvm.script.ir_builder import IRBuilder
from tvm.sym import Analyzer
from tvm.tirx.script.builder import ir as T

from .elementwise import dtype_of, float_compute
from .formula import opaque
from .ordering import constant_key, from_key, to_key

__all__ = [
    "avg_pool", "lp_pool", "max_pool", "max_pool_with_indices", "max_pool_with_mask", "max_unpool",
]  # fmt: skip


def max_pool(x, kernel, strides, dilations, before, outputs):
    """The largest element of each window, NaN if it has one; type of ``x``."""
    dtype = dtype_of(x)
    is_float = "float" in dtype
    lowest = constant_key(-inf, float_compute(dtype)) if is_float else te.min_value(dtype)
    keys = _covered(x, kernel, strides, dilations, before, outputs, lowest)
    axes = [te.reduce_axis((0, k), f"k{axis}") for axis, k in enumerate(kernel)]

    def largest(n, c, *position):
        steps = zip(position, strides, axes, dilations, strict=True)
        return te.max(keys(n, c, *(p * stride + k * d for p, stride, k, d in steps)), axis=axes)

    sizes, attrs = x.shape[2:], {}
    # Schedules leave out taps that see pads alone.
    if all(isinstance(d, int | tirx.IntImm) for d in (*sizes, *outputs, *before)):
        attrs["padded"] = [*zip(map(int, sizes), map(int, before), strides, dilations, strict=True)]
    key = te.compute((*x.shape[:2], *outputs), largest, "largest_key", attrs=attrs)
    return te.compute(key.shape, lambda *i: from_key(key(*i), dtype), "max_pool")


def _covered(x, kernel, strides, dilations, before, outputs, lowest):
    """The keys of ``x`` as windows see it: from the begin pads to the end of the last window."""
    shape = [
        (out - 1) * stride + (k - 1) * d + 1
        for out, stride, k, d in zip(outputs, strides, kernel, dilations, strict=True)
    ]
    limits = zip(shape, x.shape[2:], before, strict=True)
    beyond = [axis for axis, limit in enumerate(limits) if not _is_within(*limit)]
    if not beyond:
        return te.compute(x.shape, lambda *i: to_key(x(*i)), "keys")

    def element(n, c, *position):
        at = [i - pad for i, pad in zip(position, before, strict=True)]
        bounds = [tirx.all(at[k] >= 0, at[k] < x.shape[2 + k]) for k in beyond]
        return tirx.if_then_else(tirx.all(*bounds), to_key(x(n, c, *at)), lowest)

    return te.compute((*x.shape[:2], *shape), element, "padded")


def _is_within(extent, dim, pad):
    unpadded = isinstance(pad, int | tirx.IntImm) and int(pad) == 0
    return unpadded and Analyzer().can_prove(extent <= dim)


def max_pool_with_indices(x, kernel, strides, dilations, before, outputs, column_major):
    """The largest element of each window, and its place in ``x`` flattened (int64).

    The first of equal elements wins. ``column_major`` numbers the spatial axes from the left.
    """
    window = _Window(x, kernel, strides, dilations, before)
    dtype = x.dtype
    shape = (*x.shape[:2], *outputs)

    def larger(left, right):
        earlier = tirx.all(left[1] == right[1], left[0] < right[0])
        better = tirx.any(left[1] > right[1], earlier)
        return tirx.Select(better, left[0], right[0]), tirx.Select(better, left[1], right[1])

    def nothing(*_):
        return te.max_value("int64"), te.min_value(dtype)

    reducer = te.comm_reducer(larger, nothing, name="first_max")

    def candidate(n, c, *position):
        value, inside = window.element(n, c, position)
        place = _flat([n, c, *window.where(position)], x.shape)
        return reducer(
            (
                tirx.if_then_else(inside, place, te.max_value("int64")),
                tirx.if_then_else(inside, value, te.min_value(dtype)),
            ),
            axis=window.axes,
        )

    place, value = te.compute(shape, candidate, "max_pool_with_indices")
    if not column_major:
        return value, place

    def renumbered(*i):
        rest, where = place(*i), []
        for extent in reversed(x.shape[2:]):
            where.append(tirx.floormod(rest, extent))
            rest = tirx.floordiv(rest, extent)
        # ``where`` runs from the last axis to the first: the first varies fastest.
        return _flat([rest, *where], [1, *reversed(x.shape[2:])])

    return value, te.compute(shape, renumbered, "column_major_indices")


def max_pool_with_mask(x, mask, kernel, strides, before, outputs):
    """The largest element of each window that a mask cuts; the least finite number if none is left.

    Along the last axis a window ends before the first element whose ``mask[1, 1, I...]`` is 0; with
    several axes the very first element of ``x`` counts in any case, as in onnxruntime.
    """
    axes = [te.reduce_axis((0, k), f"k{axis}") for axis, k in enumerate(kernel)]
    lowest = te.min_value(x.dtype)

    def is_open(at):
        inside = [tirx.all(i >= 0, i < dim) for i, dim in zip(at, x.shape[2:], strict=True)]
        first = tirx.all(len(at) > 1, *(i == 0 for i in at))
        return tirx.if_then_else(tirx.all(*inside), tirx.any(mask(0, 0, *at) != 0, first), True)

    def largest(n, c, *position):
        starts = [p * s - pad for p, s, pad in zip(position, strides, before, strict=True)]
        *outer, last = (p + k for p, k in zip(starts, axes, strict=True))
        at = [*outer, last]
        seen = [tirx.all(i >= 0, i < dim) for i, dim in zip(at, x.shape[2:], strict=True)]
        seen += [
            tirx.any(axes[-1] < k, is_open([*outer, starts[-1] + k])) for k in range(kernel[-1])
        ]
        return te.max(tirx.if_then_else(tirx.all(*seen), x(n, c, *at), lowest), axis=axes)

    return te.compute((*x.shape[:2], *outputs), largest, "max_pool_with_mask")


def avg_pool(x, kernel, strides, dilations, before, outputs, after=None):
    """The mean of each window; shape ``[N, C, *outputs]``, type of ``x``.

    With end pads ``after``, pads count as zeros; otherwise they do not count. What a partial
    window has beyond the end pad never counts; of a window in which nothing counts it is NaN.
    """
    window = _Window(x, kernel, strides, dilations, before)
    shape = (*x.shape[:2], *outputs)

    def term(n, c, *position):
        value, inside = window.element(n, c, position)
        value = value.astype(window.dtype)
        return te.sum(
            tirx.if_then_else(inside, value, tirx.const(0, window.dtype)), axis=window.axes
        )

    total = te.compute(shape, term, "window_sum")

    def mean(*i):
        count = window.count(i[2:], after)
        # TVM refuses to divide by a constant 0.
        return (total(*i) / opaque(count.astype(window.dtype))).astype(x.dtype)

    return te.compute(shape, mean, "avg_pool")


def lp_pool(x, kernel, strides, dilations, before, outputs, p):
    """The p-norm of each window; shape ``[N, C, *outputs]``, type of ``x``."""
    window = _Window(x, kernel, strides, dilations, before)
    shape = (*x.shape[:2], *outputs)

    def term(n, c, *position):
        value, inside = window.element(n, c, position)
        power = _power(te.abs(value.astype(window.dtype)), p, window.dtype)
        return te.sum(
            tirx.if_then_else(inside, power, tirx.const(0, window.dtype)), axis=window.axes
        )

    total = te.compute(shape, term, "window_power_sum")
    return te.compute(
        shape, lambda *i: _power(total(*i), 1 / p, window.dtype).astype(x.dtype), "lp_pool"
    )


def channel_places(indices, area):
    """Places in a tensor ``[N, C, ...]``, as places in channels of ``area``: those of others are
    beyond it."""
    channels = indices.shape[1]

    def place(n, c, *window):
        return indices(n, c, *window).astype("int64") - (n * channels + c) * area

    return te.compute(indices.shape, place, "channel_places")


def max_unpool(x, indices, shape, inferred):
    """Zeros of ``shape`` with each ``x`` at its place in a tensor of shape ``inferred``.

    A place is one in the channel of ``x``, others are left out; the last of equal ones counts.
    """
    batch, channels, *windows = x.shape
    area = tirx.const(1, "int64")
    for dim in inferred[2:]:
        area = area * dim

    def fill(result, n, c):
        with ExitStack() as loops:
            position = [loops.enter_context(T.serial(0, dim)) for dim in shape[2:]]
            T.buffer_store(result, tirx.const(0, dtype_of(x)), [n, c, *position])

    def scatter(source, index, result, n, c):
        with ExitStack() as loops:
            window = [loops.enter_context(T.serial(0, dim)) for dim in windows]
            place = index[(n, c, *window)].astype("int64") - (n * channels + c) * area
            position, rest = [], place
            for dim in reversed(inferred[2:]):
                position.insert(0, tirx.floormod(rest, dim))
                rest = tirx.floordiv(rest, dim)
            inside = [p < dim for p, dim in zip(position, shape[2:], strict=True)]
            with T.If(tirx.all(place >= 0, place < area, *inside)), T.Then():
                T.buffer_store(result, source[(n, c, *window)], [n, c, *position])

    def body(inputs, outputs):
        (source, index), (result,) = inputs, outputs
        with IRBuilder() as builder:
            with T.serial(0, batch * channels) as loop, T.sblock("channels"):
                row = T.axis.spatial(Range(0, batch * channels), loop)
                n, c = tirx.floordiv(row, channels), tirx.floormod(row, channels)
                T.reads(*(b[(n, c, *(slice(0, d) for d in windows))] for b in inputs))
                T.writes(result[(n, c, *(slice(0, d) for d in shape[2:]))])
                with T.sblock("channel"):
                    fill(result, n, c)
                    scatter(source, index, result, n, c)
        return builder.get()

    # The block around an extern is the function's root; schedules look it up by that name.
    return te.extern([shape], [x, indices], body, name="root", dtype=dtype_of(x))


class _Window:
    """The reduction domain of a window over ``x``, and what it meets there."""

    def __init__(self, x, kernel, strides, dilations, before):
        self.x, self.spatial = x, x.shape[2:]
        self.strides, self.dilations, self.before = strides, dilations, before
        self.axes = [te.reduce_axis((0, k), f"k{axis}") for axis, k in enumerate(kernel)]
        self.kernel = kernel
        self.dtype = "float32" if str(x.dtype) in ("float16", "bfloat16") else x.dtype

    def where(self, position):
        """The element of ``x`` under each tap."""
        geometry = zip(position, self.strides, self.axes, self.dilations, self.before, strict=True)
        return [p * stride + k * d - pad for p, stride, k, d, pad in geometry]

    def element(self, n, c, position):
        """The element of ``x`` under the tap, and whether there is one."""
        where = self.where(position)
        bounds = zip(where, self.spatial, strict=True)
        inside = tirx.all(*[tirx.all(i >= 0, i < size) for i, size in bounds])
        return self.x(n, c, *where), inside

    def count(self, position, after):
        """How many taps count: those on ``x``, or on ``x`` and its pads."""
        taps = tirx.const(1, "int64")
        for axis, p in enumerate(position):
            start = p * self.strides[axis] - self.before[axis]
            low = 0 if after is None else -self.before[axis]
            high = self.spatial[axis] + (0 if after is None else after[axis])
            step, size = self.dilations[axis], self.kernel[axis]
            first = tirx.max(0, tirx.floordiv(low - start + step - 1, step))
            last = tirx.min(size, tirx.floordiv(high - start + step - 1, step))
            taps = taps * tirx.max(last - first, 0)
        return taps


def _power(value, p, dtype):
    if p in (1, 2, 3, 4):
        return reduce(mul, [value] * int(p))
    if p == 0.5:
        return te.sqrt(value)
    return te.power(value, tirx.const(p, dtype))


def _flat(index, shape):
    flat = tirx.const(0, "int64")
    for i, extent in zip(index, shape, strict=True):
        flat = flat * extent + i
    return flat
