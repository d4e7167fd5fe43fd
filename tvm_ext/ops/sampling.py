"""Reading an image between its pixels: GridSample, and the grid of an affine map."""

from itertools import product

from tvm import te, tirx

__all__ = ["affine_grid", "box_images", "grid_sample", "max_roi_pool", "roi_align"]

CUBIC = -0.75  # the coefficient of Keys' kernel that ONNX and torch use


def grid_sample(x, grid, mode, padding_mode, align_corners, channels_last=False):
    """``x[N, C, I...]`` at the points of ``grid[N, O..., r]`` -> ``[N, C, O...]``.

    ``channels_last``: ``x[N, I..., C]`` -> ``[N, O..., C]``.

    A point lists its coordinates from the last axis of ``x`` to the first, -1 to 1 across the
    image. ``mode`` is linear, nearest or cubic; ``padding_mode`` zeros, border or reflection.
    Computed in float32 (float64 for float64); the result has the type of ``x``.
    """
    batch, channels, *sizes = _channels_first(x.shape) if channels_last else x.shape
    dtype = "float64" if str(x.dtype) == "float64" else "float32"
    taps = {"linear": (0, 1), "nearest": (0,), "cubic": (-1, 0, 1, 2)}[mode]

    def number(value):
        return tirx.Cast(dtype, value) if isinstance(value, tirx.Expr) else tirx.const(value, dtype)

    def limits(size):
        half = 0.0 if align_corners else 0.5
        return number(-half), number(size) - number(1 - half)

    def reflected(v, size):
        low, high = limits(size)
        width = high - low
        period = tirx.max(width + width, number(1e-9))
        away = te.abs(v - low)
        away = away - te.floor(away / period) * period
        return low + tirx.Select(away > width, period - away, away)

    def coordinate(n, position, axis):
        size = sizes[axis]
        value = grid(n, *position, len(sizes) - 1 - axis).astype(dtype)
        if align_corners:
            value = (value + number(1)) * number(0.5) * (number(size) - number(1))
        else:
            value = ((value + number(1)) * number(size) - number(1)) * number(0.5)
        if mode == "nearest":
            value = tirx.nearbyint(value)
        low, high = limits(size)
        outside = tirx.any(value < low, value > high)
        if padding_mode == "border" and mode != "cubic":  # of which the pixels are clamped
            clamped = tirx.max(tirx.min(value, number(size) - number(1)), number(0))
            return tirx.Select(outside, clamped, value)
        if padding_mode == "reflection":
            return tirx.Select(outside, reflected(value, size), value)
        return value

    def place(point, axis, tap):
        """The pixel of a tap along an axis, which may lie outside of the image."""
        i = te.floor(point).astype("int64") + tap
        if padding_mode != "reflection":
            return i
        low, high = limits(sizes[axis])
        v = number(i)
        v = tirx.Select(tirx.any(v < low, v > high), reflected(v, sizes[axis]), v)
        return v.astype("int64")

    def pixel(n, c, where):
        index, inside = [], []
        for i, size in zip(where, sizes, strict=True):
            inside += [i >= 0, i < size]
            index.append(tirx.max(tirx.min(i, size - 1), 0))
        value = (x(n, *index, c) if channels_last else x(n, c, *index)).astype(dtype)
        if padding_mode == "zeros":  # the place is one in the image: no branch is needed
            return tirx.Select(tirx.all(*inside), value, number(0))
        return value

    # Long formulas are computed into arrays: else they are there once for each use.
    long = mode == "cubic" or padding_mode == "reflection"

    def kept(function, name):
        return te.compute((batch, *shape), function, name) if long else function

    def point_of(axis):
        return kept(lambda n, *i: coordinate(n, i, axis), f"grid_point{axis}")

    def place_of(axis, tap):
        return kept(lambda *i: place(points[axis](*i), axis, tap), f"grid_place{axis}")

    shape, axes = grid.shape[1:-1], range(len(sizes))
    points = [point_of(axis) for axis in axes]
    places = [[place_of(axis, tap) for tap in taps] for axis in axes]

    def element(n, c, *position):
        fractions = [point - te.floor(point) for point in (f(n, *position) for f in points)]
        weights = [_weights(mode, fraction, number) for fraction in fractions]
        value = number(0)
        for steps in product(range(len(taps)), repeat=len(sizes)):
            weight, where = number(1), []
            for axis, k in enumerate(steps):
                weight = weight * weights[axis][k]
                where.append(places[axis][k](n, *position))
            value = value + weight * pixel(n, c, where)
        return value.astype(x.dtype)

    if channels_last:
        last = (batch, *shape, channels)
        return te.compute(last, lambda n, *i: element(n, i[-1], *i[:-1]), "grid_sample")
    return te.compute((batch, channels, *shape), element, "grid_sample")


def _channels_first(shape):
    return [shape[0], shape[-1], *shape[1:-1]]


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
    dtype = "float64" if str(x.dtype) == "float64" else "float32"
    _, channels, *sizes = _channels_first(x.shape) if channels_last else x.shape

    def number(value):
        return tirx.const(value, dtype)

    def box(r, axis):
        """The start of a box along an axis, and the extent of one output."""
        start = rois(r, 1 - axis).astype(dtype) * number(scale)
        end = rois(r, 3 - axis).astype(dtype) * number(scale)
        if shift:
            start, end = start - number(0.5), end - number(0.5)
        extent = end - start if shift else tirx.max(end - start, number(1))
        return start, extent / number(outputs[axis])

    def samples(r, axis):
        bound = tirx.floordiv(sizes[axis] + outputs[axis] - 1, outputs[axis])
        if sampling_ratio:
            return tirx.const(sampling_ratio, "int64")
        wanted = te.ceil(box(r, axis)[1]).astype("int64")
        return tirx.max(tirx.min(wanted, bound.astype("int64")), 1)

    def corners(r, axis, out, k):
        """Two neighbours with their weights, both 0 beyond a pixel around the image."""
        start, extent = box(r, axis)
        step = extent / samples(r, axis).astype(dtype)
        at = start + tirx.Cast(dtype, out) * extent + (tirx.Cast(dtype, k) + number(0.5)) * step
        size = tirx.Cast(dtype, sizes[axis])
        inside = tirx.all(at >= number(-1), at <= size)
        at = tirx.max(tirx.min(at, size - number(1)), number(0))
        low = te.floor(at)
        part = at - low
        first = low.astype("int64")
        second = tirx.min(first + 1, sizes[axis] - 1)
        zero = number(0)
        return (
            (first, tirx.Select(inside, number(1) - part, zero)),
            (second, tirx.Select(inside, part, zero)),
        )

    bounds = [
        sampling_ratio or tirx.max(tirx.floordiv(size + out - 1, out), 1)
        for size, out in zip(sizes, outputs, strict=True)
    ]
    ky, kx = (te.reduce_axis((0, bound), f"k{axis}") for axis, bound in enumerate(bounds))

    def weighted(r, c, i, j):
        # One that is not there never touches foreign memory: it reads the nearest.
        image = tirx.max(tirx.min(batch(r).astype("int64"), x.shape[0] - 1), 0)
        for y, wy in corners(r, 0, i, ky):
            for z, wz in corners(r, 1, j, kx):
                value = x(image, y, z, c) if channels_last else x(image, c, y, z)
                yield wy * wz * value.astype(dtype)

    def counted(r):
        return tirx.all(ky < samples(r, 0), kx < samples(r, 1))

    def placed(r, *rest):
        """Box, channel and place of an element of the result."""
        i, j, c = rest if channels_last else (*rest[1:], rest[0])
        return r, c, i, j

    shape = (rois.shape[0], *((*outputs, channels) if channels_last else (channels, *outputs)))
    if reduction == "max":

        def largest(*index):
            first, *rest = weighted(*placed(*index))
            for value in rest:
                first = tirx.max(first, value)
            first = tirx.if_then_else(counted(index[0]), first, te.min_value(dtype))
            return te.max(first, axis=[ky, kx])

        peak = te.compute(shape, largest, "roi_max")
        return te.compute(shape, lambda *i: peak(*i).astype(x.dtype), "roi_align")

    def term(*index):
        value = sum(weighted(*placed(*index)), number(0))
        if not sampling_ratio:
            value = tirx.if_then_else(counted(index[0]), value, number(0))
        return te.sum(value, axis=[ky, kx])

    total = te.compute(shape, term, "roi_sum")

    def mean(r, *rest):
        count = samples(r, 0) * samples(r, 1)
        return (total(r, *rest) / count.astype(dtype)).astype(x.dtype)

    return te.compute(shape, mean, "roi_align")


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
