"""Converters for operators of com.microsoft that ONNX later took over, and for two it did not."""

from math import prod

from tvm import relax

from tvm_ext.ops.crop_and_resize import crop_and_resize
from tvm_ext.ops.inverse import inverse

from ..microsoft import microsoft
from .constant import trilu
from .padding import pad_inputs
from .sampling import grid_sample_16
from .selection import unique
from .shape import reshaped


@microsoft("Trilu")
def trilu_1(bb, x, k=None, *, upper=1):
    return trilu(bb, x, k, upper=upper)


@microsoft("Unique")
def unique_1(bb, x):
    """Of a vector, in the order of first appearance."""
    values, _, inverse, counts = unique(bb, x, sorted=0)
    return values, inverse, counts


@microsoft("Pad")
def pad_1(bb, x, pads, value=None, *, mode="constant"):
    """``pads`` may be a row."""
    pads = bb.emit(relax.op.reshape(pads, [-1])) if bb.rank(pads) == 2 else pads
    return pad_inputs(bb, x, pads, value, mode=mode)


@microsoft("GridSample")
def grid_sample_1(bb, x, grid, *, align_corners=0, mode="bilinear", padding_mode="zeros"):
    return grid_sample_16(bb, x, grid, align_corners=align_corners, mode=mode,
                          padding_mode=padding_mode)  # fmt: skip


@microsoft("CropAndResize")
def crop_and_resize_1(bb, x, rois, batch_indices, crop_size, *, extrapolation_value=0.0,
                      mode="bilinear"):  # fmt: skip
    if mode not in ("bilinear", "nearest"):
        raise NotImplementedError(f"mode {mode}")
    size = bb.dims(crop_size)
    return bb.emit_te(crop_and_resize, x, rois, batch_indices, size, mode == "nearest",
                      extrapolation_value)  # fmt: skip


@microsoft("Inverse")
def inverse_1(bb, x):
    *batch, rows, columns = bb.shape(x)
    flat = reshaped(bb, x, [bb.simplify(prod(batch)), rows, columns])
    return reshaped(bb, bb.emit_te(inverse, flat), bb.shape(x))
