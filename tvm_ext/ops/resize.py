"""Resize as small tables and a gather.

Along each axis an output position reads a few neighbours ("taps") of a place between the input
elements. The tables of positions and weights are kernels of their own, as long as the axis, and
constant where shapes are static.
"""

from dataclasses import dataclass
from functools import reduce
from math import ceil

import numpy as np
from tvm import te, tirx
from tvm.te import Tensor


@dataclass(frozen=True)
class Sampling:
    """How one axis is sampled: the attributes of ONNX Resize.

    A scale is a float, or a tensor and ``k`` the entry that belongs to the axis; None means
    output length / input length. So are the two ends of a region of interest.
    """

    mode: str
    coordinates: str
    nearest_mode: str = "floor"
    cubic_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False

    def taps(self, scale: float | None) -> int:
        """How many input elements one output element reads; ``scale`` counts with antialias."""
        return 2 * ceil(self._support / self._shrink(scale, min))

    def tap_count(self, length, extent, scale, k, start, end):
        """The same where the scale is known only at run time: ``int64[1]``."""
        reach = te.ceil(self._support / self._shrink(_scale(length, extent, scale, k), tirx.min))
        return te.compute((1,), lambda _: 2 * reach.astype("int64"), "tap_count")

    def nearest_index(self, length, extent, scale, k, start, end):
        """The input position of each output position: ``int64[length]``.

        In float32, as by torch and onnxruntime: 3 / 0.6 is 5, in float64 a float32 of 0.6 makes it
        less, and that is rounded down.
        """

        def element(i):
            at = self._coordinate(i, length, extent, scale, k, start, end, "float32")
            rounded = _ROUNDING[self.nearest_mode](at).astype("int64")
            return tirx.max(tirx.min(rounded, extent - 1), 0)

        return te.compute((length,), element, "nearest_index")

    def tap_tables(self, length, extent, scale, k, start, end, taps, dtype):
        """Positions ``int64[taps, length]`` and weights ``dtype[taps, length]``."""
        shrink = self._shrink(_scale(length, extent, scale, k), tirx.min)
        kernel = self._triangle if self.mode == "linear" else self._cubic

        def position(i, t):
            return te.floor(centre[i]).astype("int64") + 1 - tirx.floordiv(taps, 2) + t

        def raw(i, t):
            weight = kernel(te.abs(position(i, t).astype("float64") - centre[i]) * shrink)
            inside = tirx.all(position(i, t) >= 0, position(i, t) < extent)
            return tirx.Select(inside, weight, _f64(0)) if self.exclude_outside else weight

        def index(t, i):
            return tirx.max(tirx.min(position(i, t), extent - 1), 0)

        def weight(t, i):
            return (weights[i, t] / tirx.Select(total[i] == 0, _f64(1), total[i])).astype(dtype)

        centre = te.compute(
            (length,),
            lambda i: self._coordinate(i, length, extent, scale, k, start, end),
            "resize_coordinate",
        )
        weights = te.compute((length, taps), raw, "tap_weight")
        tap = te.reduce_axis((0, taps), "tap")
        total = te.compute((length,), lambda i: te.sum(weights[i, tap], axis=tap), "tap_total")
        return [
            te.compute((taps, length), index, "tap_index"),
            te.compute((taps, length), weight, "normal_tap_weight"),
        ]

    def outside(self, length, extent, scale, k, start, end):
        """Which output positions read from outside the input: ``bool[length]``."""

        def element(i):
            at = self._coordinate(i, length, extent, scale, k, start, end)
            return tirx.any(at < 0, at > extent - 1)

        return te.compute((length,), element, "outside")

    @property
    def _support(self):
        return 1.0 if self.mode == "linear" else 2.0

    def _shrink(self, scale, smaller):
        """What stretches the filter where the output is smaller than the input."""
        return smaller(scale, 1.0) if self.antialias else 1.0

    def _coordinate(self, i, length, extent, scale, k, start, end, dtype="float64"):
        """The place of output position ``i`` on the input axis, in ``dtype``."""

        def number(value):
            return _number(value, dtype)

        scale = _scale(length, extent, scale, k, dtype)
        i, length, extent = (number(v) for v in (i, length, extent))
        # What the scale asks for; ``length`` is that, rounded down.
        wanted = scale * extent
        steps = tirx.Select(wanted == 1, number(1), wanted - 1)
        centred = (i + 0.5) / scale - 0.5
        if self.coordinates == "align_corners":
            return tirx.Select(wanted == 1, number(0), i * (extent - 1) / steps)
        if self.coordinates == "asymmetric":
            return i / scale
        if self.coordinates == "pytorch_half_pixel":
            return tirx.Select(length == 1, number(0), centred)
        if self.coordinates == "tf_half_pixel_for_nn":
            return (i + 0.5) / scale
        if self.coordinates == "half_pixel_symmetric":
            return extent / 2 * (1 - length / wanted) + centred
        if self.coordinates == "tf_crop_and_resize":
            span = (_entry(end, 0, dtype) - _entry(start, 0, dtype)) * (extent - 1)
            moved = tirx.Select(wanted == 1, span / 2, i * span / steps)
            return moved + _entry(start, 0, dtype) * (extent - 1)
        return centred

    @staticmethod
    def _triangle(distance):
        return tirx.max(1 - distance, _f64(0))

    def _cubic(self, d):
        a = self.cubic_a
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return tirx.Select(d <= 1, near, tirx.Select(d < 2, far, _f64(0)))


def repeat(x, shape, factors):
    """``y[i, ...] = x[i // factors[0], ...]``: nearest, by whole factors."""

    def element(*index):
        return x(*(i if f == 1 else i // f for i, f in zip(index, factors, strict=True)))

    return te.compute(shape, element, "resize_repeat")


def nearest(x, shape, axes, *tables):
    """``y[..., i, ...] = x[..., table[i], ...]`` on each of ``axes``."""

    def element(*index):
        at = list(index)
        for axis, table in zip(axes, tables, strict=True):
            at[axis] = table[at[axis]]
        return x(*at)

    return te.compute(shape, element, "resize_nearest")


def weighted(x, shape, axes, dtype, *tables):
    """``y[i] = sum over taps of weight[t, i] * x[index[t, i]]`` on each of ``axes``, in ``dtype``.

    ``tables`` are an index and a weight table per axis. A few taps are written out.
    """

    def product(at, remaining):
        if not remaining:
            return x(*at).astype(dtype)
        (axis, index, weight), *rest = remaining
        i = at[axis]

        def term(t):
            return weight[t, i] * product([*at[:axis], index[t, i], *at[axis + 1 :]], rest)

        taps = weight.shape[0]
        if isinstance(taps, tirx.IntImm) and int(taps) <= 4:
            return sum((term(t) for t in range(1, int(taps))), term(0))
        t = te.reduce_axis((0, taps), "t")
        return te.sum(term(t), axis=t)

    steps = list(zip(axes, tables[::2], tables[1::2], strict=True))
    return te.compute(shape, lambda *index: product(list(index), steps), "resize_weighted")


def extrapolated(x, value, axes, *outside):
    """``x`` with ``value`` wherever an axis reads outside of the input."""

    def element(*index):
        away = [mask[index[axis]] for axis, mask in zip(axes, outside, strict=True)]
        return tirx.Select(tirx.any(*away), tirx.const(value, x.dtype), x(*index))

    return te.compute(x.shape, element, "resize_extrapolated")


def rounded(x, dtype):
    """``x`` as an integer type: rounded to nearest even, saturated."""
    low, high = tirx.min_value(dtype), tirx.max_value(dtype)

    def element(*index):
        whole = te.nearbyint(x(*index))
        bounded = tirx.max(tirx.min(whole, high.astype(x.dtype)), low.astype(x.dtype))
        return bounded.astype(dtype)

    return te.compute(x.shape, element, "round_saturate")


_MOST = float(1 << 40)  # elements: more than memory holds


def scaled_length(extent, scale):
    """``floor(extent * scale)`` of numbers, in float32 as ONNX infers it: 10 * 2.3 is 23."""
    return int(np.float32(extent) * np.float32(scale))


def scaled_dims(scales, *dims):
    """``floor(dims * scales)``: ``int64[len(dims)]``; -1 of no scale, or of more than memory.

    In float32, as :func:`scaled_length`.
    """

    def element(k):
        size = _number(_pick(dims, k), "float32") * _number(scales[k], "float32")
        fits = tirx.all(scales[k] > tirx.const(0, scales.dtype), size < _MOST)
        length = te.floor(size).astype("int64")
        return tirx.if_then_else(fits, length, tirx.const(-1, "int64"))

    return te.compute((len(dims),), element, "scaled_dims")


def kept_aspect(sizes, policy, *dims):
    """Lengths ``int64[n]`` and scales ``float64[n]`` that resize all ``dims`` alike.

    The policy "not_larger" stays within ``sizes``, "not_smaller" covers them.
    """
    choose = tirx.min if policy == "not_larger" else tirx.max
    count = len(dims)
    ratios = te.compute((count,), lambda k: _f64(sizes[k]) / _f64(_pick(dims, k)), "size_ratio")
    scale = reduce(choose, (ratios[k] for k in range(count)))
    scales = te.compute((count,), lambda _: scale, "common_scale")
    lengths = te.compute(
        (count,),
        lambda k: te.floor(scales[k] * _f64(_pick(dims, k)) + 0.5).astype("int64"),
        "resized_length",
    )
    return [lengths, scales]


def _pick(values, position):
    result = values[-1]
    for k in range(len(values) - 2, -1, -1):
        result = tirx.Select(position == k, values[k], result)
    return result


def _scale(length, extent, scale, k, dtype="float64"):
    if scale is None:
        return _number(length, dtype) / _number(extent, dtype)
    return _entry(scale, k, dtype)


def _entry(values, k, dtype="float64"):
    """Entry ``k`` of a tensor in ``dtype``; a number stands for itself."""
    return _number(values[k] if isinstance(values, Tensor) else values, dtype)


def _number(value, dtype):
    known = isinstance(value, int | float)
    return tirx.const(value, dtype) if known else value.astype(dtype)


def _f64(value):
    return _number(value, "float64")


_ROUNDING = {
    "round_prefer_floor": lambda x: te.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: te.floor(x + 0.5),
    "floor": te.floor,
    "ceil": te.ceil,
}
