"""Operators that sample images, and that put them together from columns and pooled places."""

import numpy as np

from .choice import images, is_f32, operand, sizes
from .graph import MICROSOFT, Rejected


def grid_sample(g):
    x = g.choose(lambda v: images(v) and v.ndim > 3)
    spatial = x.ndim - 2
    extents = [g.pick(1, 3, 5, (4, 7)) for _ in range(spatial)]
    grid = operand(g, (sizes(x, 0), *extents, spatial))
    if g.chance(0.5):
        grid = g.node("Tanh", grid)
    modes = ("bilinear", "nearest", "bicubic") if g.opset < 20 else ("linear", "nearest", "cubic")
    return g.node(
        "GridSample",
        x,
        grid,
        mode=g.pick(None, *modes),
        padding_mode=g.pick(None, "zeros", "border", "reflection"),
        align_corners=g.pick(None, 0, 1),
    )


def affine_grid(g):
    """A grid that moves an image, and mostly the image, moved."""
    x = g.choose(images)
    spatial = x.ndim - 2
    theta = operand(g, (sizes(x, 0), spatial, spatial + 1))
    size = g.node("Shape", x)
    # Where a row of one element is aligned, onnxruntime, torch and ONNX differ.
    aligned = g.pick(None, 0, 1) if min(min(a.shape) for a in x.arrays) > 1 else 0
    grid = g.node("AffineGrid", theta, size, align_corners=aligned)
    return g.node("GridSample", x, grid, align_corners=g.pick(0, 1)) if g.chance(0.6) else grid


def roi_align(g):
    x = g.choose(lambda v: images(v) and v.ndim == 4)
    n = g.pick(0, 1, 3, (2, 5))
    count = n if isinstance(n, tuple) else (n, n)
    corners = operand(g, (count, 4))
    rois = g.node("Mul", corners, g.scalar(g.pick(1.0, 3.0)))
    least = min(a.shape[0] for a in x.arrays)
    if min(count) != max(count):
        raise Rejected  # a batch index of each would be of another size
    batch = g.const(g.rng.integers(0, least, n))
    return g.node(
        "RoiAlign",
        x,
        rois,
        batch,
        mode=g.pick(None, "avg"),
        output_height=g.pick(None, 1, 3),
        output_width=g.pick(None, 2, 5),
        sampling_ratio=g.pick(None, 0, 1, 3),
        spatial_scale=g.pick(None, 0.5, 1.0),
        coordinate_transformation_mode=(
            g.pick(None, "half_pixel", "output_half_pixel") if g.opset >= 16 else None
        ),
    )


def max_roi_pool(g):
    x = g.choose(lambda v: images(v) and v.ndim == 4)
    least = min(a.shape[0] for a in x.arrays)
    count = g.pick(1, 3)
    low = g.rng.integers(0, 3, (count, 2))
    high = low + g.rng.integers(1, 6, (count, 2))
    rois = np.concatenate([g.rng.integers(0, least, (count, 1)), low, high], 1)
    return g.node(
        "MaxRoiPool",
        x,
        g.const(rois, "float32"),
        pooled_shape=[g.pick(1, 2, 3), g.pick(1, 2)],
        spatial_scale=g.pick(None, 0.5, 1.0),
    )


def max_unpool(g):
    """The largest of each window and its place, and an image of these."""
    x = g.choose(lambda v: images(v) and v.ndim in (3, 4))
    spatial = x.ndim - 2
    kernel, strides = [g.pick(2, 3) for _ in range(spatial)], [2] * spatial
    if any(min(sizes(x, k + 2)) < kernel[k] for k in range(spatial)):
        raise Rejected  # where no window fits, onnxruntime has one all the same
    largest, places = g.node("MaxPool", x, outputs=2, kernel_shape=kernel, strides=strides)
    whole = all(
        (size - k) % 2 == 0 for a in x.arrays for size, k in zip(a.shape[2:], kernel, strict=True)
    )
    # Without a shape, places in rows that no window reads are not in the result.
    to = [] if whole and g.chance(0.5) else [g.node("Shape", x)]
    return g.node("MaxUnpool", largest, places, *to, kernel_shape=kernel, strides=strides)


def deform_conv(g):
    x = g.choose(lambda v: images(v) and v.ndim == 4 and v.static)
    n, c, *image = x.shape
    m, kernel, stride = g.pick(1, 3, 8), [g.pick(1, 3), g.pick(1, 2, 3)], g.pick(1, 2)
    pads = [g.int(0, 1) for _ in range(4)]
    out = [(size + pads[k] + pads[k + 2] - kernel[k]) // stride + 1 for k, size in enumerate(image)]
    if min(out) < 1:
        raise Rejected
    groups, taps = g.pick(1, c), kernel[0] * kernel[1]
    inputs = [
        x,
        operand(g, (m, c, *kernel)),
        operand(g, (n, 2 * groups * taps, *out)),
        operand(g, (m,)) if g.chance(0.5) else None,
        operand(g, (n, groups * taps, *out)) if g.chance(0.5) else None,
    ]
    return g.node(
        "DeformConv", *inputs, kernel_shape=kernel, pads=pads, strides=[stride] * 2,
        offset_group=groups,
    )  # fmt: skip


def col2im(g):
    block = [g.pick(1, 2, 3), g.pick(1, 2)]
    pads = [g.int(0, 1) for _ in range(4)]
    strides, dilations = ([g.int(1, 2), g.int(1, 2)] for _ in range(2))
    image = [g.pick(5, 6, 9), g.pick(4, 7)]
    counts = [
        (image[k] + pads[k] + pads[k + 2] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1
        for k in (0, 1)
    ]
    columns = operand(
        g, (g.pick(1, (2, 3)), g.pick(1, 3) * block[0] * block[1], counts[0] * counts[1])
    )
    return g.node(
        "Col2Im", columns, g.ints(*image), g.ints(*block), pads=pads, strides=strides,
        dilations=dilations,
    )  # fmt: skip


def center_crop_pad(g):
    x = g.choose(lambda v: v.ndim and v.array.size and v.dtype.kind in "fi")
    axes = sorted(g.rng.permutation(x.ndim)[: g.int(1, x.ndim)].tolist())
    return g.node("CenterCropPad", x, g.ints(*(g.pick(1, 4, 5, 8) for _ in axes)), axes=axes)


def lp_pool(g):
    x = g.choose(lambda v: images(v) and v.ndim == 4)
    p = g.pick(None, 1, 2, 3)
    if g.chance(0.3):
        return g.node("GlobalLpPool", x, p=p)
    kernel = [g.pick(1, 2, 3), g.pick(2, 3)]
    return g.node(
        "LpPool",
        x,
        kernel_shape=kernel,
        p=p,
        strides=[g.int(1, 2), g.int(1, 3)],
        pads=[g.int(0, 1) for _ in range(4)] if g.chance(0.5) else None,
        ceil_mode=g.pick(None, 0, 1) if g.opset >= 18 else None,
    )


def nhwc_max_pool(g):
    """MaxPool of images whose channels come last, of com.microsoft, of codes."""
    x = g.choose(lambda v: is_f32(v) and v.ndim == 4 and v.array.size and min(sizes(v, 1)) > 1)
    scale, zero = g.const(np.float32(0.05)), g.const(np.uint8(128))
    y = g.node("QuantizeLinear", x, scale, zero)
    y = g.node("NhwcMaxPool", y, kernel_shape=[2, 1], **MICROSOFT)
    return g.node("DequantizeLinear", y, scale, zero)


#: What makes a node, and how often it is chosen.
SAMPLING = [(grid_sample, 2), (affine_grid, 1), (roi_align, 1), (max_roi_pool, 1),
            (max_unpool, 1), (deform_conv, 1), (col2im, 1), (center_crop_pad, 1), (lp_pool, 1),
            (nhwc_max_pool, 0.5)]  # fmt: skip
