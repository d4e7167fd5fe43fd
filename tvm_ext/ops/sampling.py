"""Reading an image between its pixels: GridSample and its AffineGrid, and pools of regions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from tvm import te, tirx

__all__ = ["affine_grid", "box_images", "grid_sample", "max_roi_pool", "roi_align"]

CUBIC = -0.75  # the coefficient of Keys' kernel that ONNX and torch use
_TAPS = {"linear": (0, 1), "nearest": (0,), "cubic": (-1, 0, 1, 2)}


@dataclass(frozen=True)
class _Image:
    """``x[N, C, I...]``, or ``x[N, I..., C]`` if ``channels_last``."""

    x: te.Tensor
    channels_last: bool

    @property
    def channels(self):
        return self.x.shape[-1 if self.channels_last else 1]

    @property
    def sizes(self):
        return list(self.x.shape[1:-1] if self.channels_last else self.x.shape[2:])

    @property
    def dtype(self):
        """What is computed in."""
        return "float64" if str(self.x.dtype) == "float64" else "float32"

    def number(self, value):
        """``value`` in the type that is computed in."""
        known = isinstance(value, int | float)
        return tirx.const(value, self.dtype) if known else tirx.Cast(self.dtype, value)

    def pixel(self, n, c, where):
        """The pixel at a place in the image."""
        value = self.x(n, *where, c) if self.channels_last else self.x(n, c, *where)
        return value.astype(self.dtype)


def grid_sample(x, grid, mode, padding_mode, align_corners, channels_last=False):
    """``x[N, C, I...]`` at the points of ``grid[N, O..., r]`` -> ``[N, C, O...]``.

    ``channels_last``: ``x[N, I..., C]`` -> ``[N, O..., C]``.

    A point lists its coordinates from the last axis of ``x`` to the first, -1 to 1 across the
    image. ``mode`` is linear, nearest or cubic; ``padding_mode`` zeros, border or reflection.
    Computed in float32 (float64 for float64); the result has the type of ``x``.
    """
    image = _Image(x, channels_last)
    points_of = _Points(image, grid, mode, padding_mode, align_corners)
    batch, shape, axes = x.shape[0], grid.shape[1:-1], range(len(image.sizes))
    # Long formulas are computed into arrays: else they are there once for each use.
    long = mode == "cubic" or padding_mode == "reflection"

    def kept(function, name):
        return te.compute((batch, *shape), function, name) if long else function

    def point_of(axis):
        return kept(lambda n, *i: points_of.coordinate(n, i, axis), f"grid_point{axis}")

    def place_of(axis, tap):
        return kept(lambda *i: points_of.place(points[axis](*i), axis, tap), f"grid_place{axis}")

    points = [point_of(axis) for axis in axes]
    places = [[place_of(axis, tap) for tap in _TAPS[mode]] for axis in axes]

    def element(n, c, *position):
        fractions = [point - te.floor(point) for point in (f(n, *position) for f in points)]
        weights = [_weights(mode, fraction, image.number) for fraction in fractions]
        value = image.number(0)
        for steps in product(range(len(_TAPS[mode])), repeat=len(axes)):
            weight, where = image.number(1), []
            for axis, k in enumerate(steps):
                weight = weight * weights[axis][k]
                where.append(places[axis][k](n, *position))
            value = value + weight * points_of.pixel(n, c, where)
        return value.astype(x.dtype)

    if channels_last:
        last = (batch, *shape, image.channels)
        return te.compute(last, lambda n, *i: element(n, i[-1], *i[:-1]), "grid_sample")
    return te.compute((batch, image.channels, *shape), element, "grid_sample")


@dataclass(frozen=True)
class _Points:
    """Where the points of a ``grid`` lie in an image, and the pixels there."""

    image: _Image
    grid: te.Tensor
    mode: str
    padding_mode: str
    align_corners: bool

    def coordinate(self, n, position, axis):
        """A point along an axis, in pixels."""
        number, size = self.image.number, self.image.sizes[axis]
        value = self.grid(n, *position, len(self.image.sizes) - 1 - axis).astype(self.image.dtype)
        if self.align_corners:
            value = (value + number(1)) * number(0.5) * (number(size) - number(1))
        else:
            value = ((value + number(1)) * number(size) - number(1)) * number(0.5)
        if self.mode == "nearest":
            value = tirx.nearbyint(value)
        low, high = self._limits(size)
        outside = tirx.any(value < low, value > high)
        if self.padding_mode == "border" and self.mode != "cubic":  # cubic clamps its pixels
            clamped = tirx.max(tirx.min(value, number(size) - number(1)), number(0))
            return tirx.Select(outside, clamped, value)
        if self.padding_mode == "reflection":
            return tirx.Select(outside, self._reflected(value, size), value)
        return value

    def place(self, point, axis, tap):
        """The pixel of a tap along an axis, which may lie outside of the image."""
        i = te.floor(point).astype("int64") + tap
        if self.padding_mode != "reflection":
            return i
        size = self.image.sizes[axis]
        low, high = self._limits(size)
        v = self.image.number(i)
        v = tirx.Select(tirx.any(v < low, v > high), self._reflected(v, size), v)
        return v.astype("int64")

    def pixel(self, n, c, where):
        """The pixel at a place; outside of the image the nearest, or 0 of mode zeros."""
        index, inside = [], []
        for i, size in zip(where, self.image.sizes, strict=True):
            inside += [i >= 0, i < size]
            index.append(tirx.max(tirx.min(i, size - 1), 0))
        value = self.image.pixel(n, c, index)
        if self.padding_mode == "zeros":  # the place is one in the image: no branch is needed
            return tirx.Select(tirx.all(*inside), value, self.image.number(0))
        return value

    def _limits(self, size):
        """The ends of an axis of the image."""
        half, number = 0.0 if self.align_corners else 0.5, self.image.number
        return number(-half), number(size) - number(1 - half)

    def _reflected(self, v, size):
        """``v`` folded back into an axis of the image at the ends."""
        low, high = self._limits(size)
        width = high - low
        period = tirx.max(width + width, self.image.number(1e-9))
        away = te.abs(v - low)
        away = away - te.floor(away / period) * period
        return low + tirx.Select(away > width, period - away, away)


def _weights(mode, fraction, number):
    """The weight of each tap of a point ``fraction`` beyond tap 0."""
    if mode == "nearest":
        return [number(1)]
    if mode == "linear":
        return [number(1) - fraction, fraction]
    a = CUBIC

    def near(t):
        return (number(a + 2) * t - number(a + 3)) * t * t + number(1)

    def far(t):
        return ((number(a) * t - number(5 * a)) * t + number(8 * a)) * t - number(4 * a)

    rest = number(1) - fraction
    return [far(fraction + number(1)), near(fraction), near(rest), far(rest + number(1))]


def affine_grid(theta, sizes, align_corners):
    """The points ``theta[N, r, r + 1] @ (p, 1)`` for each pixel p of an image of ``sizes``.

    Result ``[N, *sizes, r]``, coordinates from the last axis to the first, in the type of
    ``theta``.
    """
    rank = len(sizes)
    dtype = theta.dtype
    sizes = [tirx.const(size, "int64") if isinstance(size, int) else size for size in sizes]

    def centre(i, size):
        i, size = tirx.Cast(dtype, i), tirx.Cast(dtype, size)
        one, two = tirx.const(1, dtype), tirx.const(2, dtype)
        if align_corners:
            return two * i / tirx.max(size - one, one) - one
        return (two * i + one) / size - one

    def element(n, *index):
        *position, row = index
        value = theta(n, row, rank)
        for axis in range(rank):
            point = centre(position[axis], sizes[axis])
            value = value + theta(n, row, rank - 1 - axis) * point
        return value

    shape = (theta.shape[0], *sizes, tirx.const(rank, "int64"))
    return te.compute(shape, element, "affine_grid")


def roi_align(
    x, rois, batch, outputs, scale, sampling_ratio, shift, reduction, channels_last=False
):
    """``x[N, C, H, W]`` averaged over a grid of boxes -> ``[R, C, *outputs]``, type of ``x``.

    ``channels_last``: ``x[N, H, W, C]`` -> ``[R, *outputs, C]``.
    ``rois[R, 4]`` are x1, y1, x2, y2 in units of 1 / ``scale`` pixels, ``batch[R]`` their images.
    ``shift`` moves pixel centres by half a pixel; otherwise boxes are at least one pixel wide.
    Each output takes ``sampling_ratio`` samples per axis, or, for 0, one per pixel of its part of
    the box, at most as many as the part of a box that covers the image. ``reduction`` is avg, or
    max: the largest weighted corner, as ONNX defines it.
    """
    image = _Image(x, channels_last)
    boxes = _Boxes(image, rois, outputs, scale, sampling_ratio, shift)
    ky, kx = (te.reduce_axis((0, boxes.bound(axis)), f"k{axis}") for axis in range(2))

    def weighted(r, *rest):
        """The weighted corners of a sample of an element of the result."""
        i, j, c = rest if channels_last else (*rest[1:], rest[0])
        # One that is not there never touches foreign memory: it reads the nearest.
        of_box = tirx.max(tirx.min(batch(r).astype("int64"), x.shape[0] - 1), 0)
        for y, wy in boxes.corners(r, 0, i, ky):
            for z, wz in boxes.corners(r, 1, j, kx):
                yield wy * wz * image.pixel(of_box, c, (y, z))

    def counted(r):
        return tirx.all(ky < boxes.samples(r, 0), kx < boxes.samples(r, 1))

    def largest(r, *rest):
        first, *others = weighted(r, *rest)
        for value in others:
            first = tirx.max(first, value)
        first = tirx.if_then_else(counted(r), first, te.min_value(image.dtype))
        return te.max(first, axis=[ky, kx])

    def term(r, *rest):
        value = sum(weighted(r, *rest), image.number(0))
        if not sampling_ratio:
            value = tirx.if_then_else(counted(r), value, image.number(0))
        return te.sum(value, axis=[ky, kx])

    def mean(r, *rest):
        count = boxes.samples(r, 0) * boxes.samples(r, 1)
        return (total(r, *rest) / count.astype(image.dtype)).astype(x.dtype)

    channels = image.channels
    shape = (rois.shape[0], *((*outputs, channels) if channels_last else (channels, *outputs)))
    if reduction == "max":
        peak = te.compute(shape, largest, "roi_max")
        return te.compute(shape, lambda *i: peak(*i).astype(x.dtype), "roi_align")
    total = te.compute(shape, term, "roi_sum")
    return te.compute(shape, mean, "roi_align")


@dataclass(frozen=True)
class _Boxes:
    """The samples that :func:`roi_align` takes of boxes, axis by axis: rows, then columns."""

    image: _Image
    rois: te.Tensor
    outputs: Sequence[int]
    scale: float
    sampling_ratio: int
    shift: bool

    def bound(self, axis):
        """How many samples an output takes along an axis at most."""
        size, count = self.image.sizes[axis], self.outputs[axis]
        return self.sampling_ratio or tirx.max(tirx.floordiv(size + count - 1, count), 1)

    def samples(self, r, axis):
        """How many samples the outputs of a box take along an axis."""
        if self.sampling_ratio:
            return tirx.const(self.sampling_ratio, "int64")
        count = self.outputs[axis]
        bound = tirx.floordiv(self.image.sizes[axis] + count - 1, count)
        wanted = te.ceil(self._start_and_extent(r, axis)[1]).astype("int64")
        return tirx.max(tirx.min(wanted, bound.astype("int64")), 1)

    def corners(self, r, axis, out, k):
        """Two neighbours of a sample with their weights, both 0 beyond a pixel around the image."""
        number, size = self.image.number, self.image.sizes[axis]
        start, extent = self._start_and_extent(r, axis)
        step = extent / number(self.samples(r, axis))
        at = start + number(out) * extent + (number(k) + number(0.5)) * step
        inside = tirx.all(at >= number(-1), at <= number(size))
        at = tirx.max(tirx.min(at, number(size) - number(1)), number(0))
        low = te.floor(at)
        part, first = at - low, low.astype("int64")
        second = tirx.min(first + 1, size - 1)
        return (
            (first, tirx.Select(inside, number(1) - part, number(0))),
            (second, tirx.Select(inside, part, number(0))),
        )

    def _start_and_extent(self, r, axis):
        """The start of a box along an axis, and the extent of one output."""
        number, dtype = self.image.number, self.image.dtype
        start = self.rois(r, 1 - axis).astype(dtype) * number(self.scale)
        end = self.rois(r, 3 - axis).astype(dtype) * number(self.scale)
        if self.shift:
            start, end = start - number(0.5), end - number(0.5)
        extent = end - start if self.shift else tirx.max(end - start, number(1))
        return start, extent / number(self.outputs[axis])


def box_images(rois):
    """Which images the boxes ``rois[R, 5]`` of MaxRoiPool are of: their first numbers."""
    return te.compute(rois.shape[:1], lambda r: rois(r, 0).astype("int64"), "box_images")


def max_roi_pool(x, rois, pooled, spatial_scale):
    """The largest element in each cell of a grid ``pooled`` over each region of ``x[N, C, H, W]``.

    ``rois[R, 5]`` has the batch and the corners x1, y1, x2, y2, both inside; a cell that holds no
    pixel is 0.
    """

    def corner(r, k):
        scaled = rois(r, k).astype("float32") * tirx.const(spatial_scale, "float32")
        return te.floor(scaled + tirx.const(0.5, "float32")).astype("int64")

    def cell(r, axis, out):
        """First row or column of a cell, and the one after its last."""
        first, last = corner(r, 2 - axis), corner(r, 4 - axis)
        step = tirx.max(last - first + 1, 1).astype("float32") / tirx.const(pooled[axis], "float32")
        place, size = out.astype("float32"), x.shape[2 + axis].astype("int64")
        begin = te.floor(place * step).astype("int64") + first
        end = te.ceil((place + 1.0) * step).astype("int64") + first
        return tirx.max(tirx.min(begin, size), 0), tirx.max(tirx.min(end, size), 0)

    rows, columns = (te.reduce_axis((0, x.shape[k]), f"r{k}") for k in (2, 3))

    def largest(r, c, i, j):
        top, bottom = cell(r, 0, i)
        left, right = cell(r, 1, j)
        inside = tirx.all(rows >= top, rows < bottom, columns >= left, columns < right)
        batch = tirx.max(tirx.min(rois(r, 0).astype("int64"), x.shape[0] - 1), 0)
        value = x(batch, c, rows, columns)
        return te.max(tirx.if_then_else(inside, value, te.min_value(x.dtype)), axis=[rows, columns])

    shape = (rois.shape[0], x.shape[1], *pooled)
    peak = te.compute(shape, largest, "roi_peak")

    def filled(r, c, i, j):
        top, bottom = cell(r, 0, i)
        left, right = cell(r, 1, j)
        empty = tirx.any(bottom <= top, right <= left)
        return tirx.Select(empty, tirx.const(0, x.dtype), peak(r, c, i, j))

    return te.compute(shape, filled, "max_roi_pool")
