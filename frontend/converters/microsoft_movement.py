"""Converters for operators of com.microsoft that move elements; ONNX later took over most."""

from math import prod

from tvm import relax

from tvm_ext.ops.crop_and_resize import crop_and_resize
from tvm_ext.ops.distance import distances
from tvm_ext.ops.inverse import inverse
from tvm_ext.ops.slicing import windows

from ..axes import placed
from ..indices import demand_indices
from ..microsoft import microsoft
from ..precision import constant
from .constant import range_, trilu
from .gather_scatter import gather, gather_nd
from .padding import pad_inputs
from .sampling import grid_sample_16
from .selection import unique
from .shape import identity, reshaped, unsqueeze

microsoft("SampleOp")(identity)


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
    boxes = bb.shape(rois)[0]
    rois, batch_indices = bb.of_shape(rois, [boxes, 4]), bb.of_shape(batch_indices, [boxes])
    demand_indices(bb, batch_indices, bb.shape(x)[0], "the image of a box", negative=False)
    size = bb.dims(crop_size, 2)
    return bb.emit_te(crop_and_resize, x, rois, batch_indices, size, mode == "nearest",
                      extrapolation_value)  # fmt: skip


@microsoft("Inverse")
def inverse_1(bb, x):
    *batch, rows, columns = bb.shape(x)
    flat = reshaped(bb, x, [bb.simplify(prod(batch)), rows, columns])
    return reshaped(bb, bb.emit_te(inverse, flat), bb.shape(x))


@microsoft("CDist")
def cdist(bb, a, b, *, metric="sqeuclidean"):
    if metric not in ("sqeuclidean", "euclidean"):
        raise NotImplementedError(f"metric {metric!r}")
    return bb.emit_te(distances, a, b, metric == "euclidean")


@microsoft("ExpandDims")
def expand_dims(bb, x, axis):
    return unsqueeze(bb, x, _vector(bb, axis))


@microsoft("GatherND")
def gather_nd_1(bb, data, indices):
    return gather_nd(bb, data, indices)


@microsoft("Range")
def range_1(bb, start, limit, delta=None):
    """Numbers may be vectors of one element."""
    delta = bb.const(1, bb.dtype(start)) if delta is None else delta
    return range_(bb, *(_number(bb, value) for value in (start, limit, delta)))


@microsoft("UnfoldTensor")
def unfold_tensor(bb, x, *, dim=-1, size, step=1):
    axis = placed(dim, bb.rank(x))
    if size < 1 or step < 1:
        raise ValueError(f"size {size}, step {step}")
    return bb.emit_te(windows, x, axis, size, step)


@microsoft("TorchEmbedding")
def torch_embedding(bb, weight, indices, padding_idx=None, scale_grad_by_freq=None):
    """What the last two say is of gradients."""
    return gather(bb, weight, indices)


def _vector(bb, x):
    """``x`` of one element as a vector."""
    known = constant(bb, x)
    return reshaped(bb, x, [1]) if known is None else bb.const(known.reshape(1))


def _number(bb, x):
    """``x`` of one element as a scalar."""
    known = constant(bb, x)
    return reshaped(bb, x, []) if known is None else bb.const(known.reshape(()))
