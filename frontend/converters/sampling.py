"""Converters that read images between pixels or by region: GridSample, AffineGrid, RoiAlign."""

from tvm import relax

from tvm_ext.ops import sampling as ops

from ..indices import demand_indices
from ..table import converter

# So many channels are worth two transpositions of an image.
_CHANNELS_LAST = 8

# Opset 16 has the names of the 2-D case.
_MODES = {"bilinear": "linear", "bicubic": "cubic"}


@converter("GridSample", 20, 22)
def grid_sample(bb, x, grid, *, align_corners=0, mode="linear", padding_mode="zeros"):
    mode = _MODES.get(mode, mode)
    if mode not in ("linear", "nearest", "cubic"):
        raise NotImplementedError(f"mode {mode!r}")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise NotImplementedError(f"padding_mode {padding_mode!r}")
    options = mode, padding_mode, bool(align_corners)
    batch, _, *image = bb.shape(x)
    grid = bb.of_shape(grid, [batch, *bb.shape(grid)[1:-1], len(image)])
    if bb.rank(grid) != bb.rank(x):
        raise ValueError(f"a grid of rank {bb.rank(grid)} for images of rank {bb.rank(x)}")
    return _by_channels(bb, x, lambda x, last: bb.emit_te(ops.grid_sample, x, grid, *options, last))


def _by_channels(bb, x, sample):
    """``sample(x[N, C, ...], False)``, or with channels last, ``sample(x[N, ..., C], True)``.

    There a point is found once for all channels, and a pixel is whole vectors.
    """
    channels, rank = bb.shape(x)[1], bb.rank(x)
    if not isinstance(channels, int) or channels < _CHANNELS_LAST:
        return sample(x, False)
    y = sample(bb.emit(relax.op.permute_dims(x, [0, *range(2, rank), 1])), True)
    rank = bb.rank(y)
    return bb.emit(relax.op.permute_dims(y, [0, rank - 1, *range(1, rank - 1)]))


@converter("GridSample", 16)
def grid_sample_16(bb, x, grid, *, align_corners=0, mode="bilinear", padding_mode="zeros"):
    return grid_sample(bb, x, grid, align_corners=align_corners, mode=mode,
                       padding_mode=padding_mode)  # fmt: skip


@converter("AffineGrid", 20)
def affine_grid(bb, theta, size, *, align_corners=0):
    batch, _, *spatial = bb.dims(size, bb.declared_rank)
    bb.demand_dims([batch], bb.shape(theta)[:1], "the size asks for {given} grids, not {wanted}")
    theta = bb.of_shape(theta, [batch, len(spatial), len(spatial) + 1])
    return bb.emit_te(ops.affine_grid, theta, spatial, bool(align_corners))


@converter("RoiAlign", 16, 22)
def roi_align(bb, x, rois, batch_indices, *, coordinate_transformation_mode="half_pixel",
              mode="avg", output_height=1, output_width=1, sampling_ratio=0,
              spatial_scale=1.0):  # fmt: skip
    boxes = bb.shape(rois)[0]
    demand_indices(bb, batch_indices, bb.shape(x)[0], "the image of a box", negative=False)
    rois, batch_indices = bb.of_shape(rois, [boxes, 4]), bb.of_shape(batch_indices, [boxes])
    shift = coordinate_transformation_mode == "half_pixel"
    options = (output_height, output_width), spatial_scale, sampling_ratio, shift, mode

    def sample(x, last):
        return bb.emit_te(ops.roi_align, x, rois, batch_indices, *options, last)

    return _by_channels(bb, x, sample)


@converter("RoiAlign", 10)
def roi_align_10(bb, x, rois, batch_indices, *, mode="avg", output_height=1, output_width=1,
                 sampling_ratio=0, spatial_scale=1.0):  # fmt: skip
    return roi_align(bb, x, rois, batch_indices, mode=mode, output_height=output_height,
                     coordinate_transformation_mode="output_half_pixel",
                     output_width=output_width, sampling_ratio=sampling_ratio,
                     spatial_scale=spatial_scale)  # fmt: skip


@converter("MaxRoiPool", 1, 22)
def max_roi_pool(bb, x, rois, *, pooled_shape, spatial_scale=1.0):
    rois = bb.of_shape(rois, [bb.shape(rois)[0], 5])
    images = bb.emit_te(ops.box_images, rois)
    demand_indices(bb, images, bb.shape(x)[0], "the image of a box", negative=False)
    return bb.emit_te(ops.max_roi_pool, x, rois, list(pooled_shape), spatial_scale)
