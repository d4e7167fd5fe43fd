"""Converters that write blocks into a larger tensor: Col2Im, TensorScatter."""

from tvm_ext.ops import assembly as ops

from .. import window as windows
from ..axes import placed
from ..precision import cast
from ..table import converter


@converter("Col2Im", 18)
def col2im(bb, x, image_shape, block_shape, *, dilations=None, pads=None, strides=None):
    # Each of these has an entry per spatial axis.
    counts = [len(v) for v in (dilations, strides, (pads or ())[::2]) if v]
    counts += [
        n for n in (bb.shape(image_shape)[0], bb.shape(block_shape)[0]) if isinstance(n, int)
    ]
    counts += [] if bb.declared_rank is None else [bb.declared_rank - 2]
    count = counts[0] if counts else None
    image = bb.dims(image_shape, count, "a size of the image")
    block = bb.dims(block_shape, count, "a size of the block", 1)
    window = windows.resolve(image, block, strides, dilations, pads, "NOTSET")
    positions = window.outputs(image)
    dtype = bb.dtype(x)
    if dtype == "bool":  # whose sum is whether one of them is true
        x = cast(bb, x, "int32")
    y = bb.emit_te(ops.col2im, x, image, block, window.strides, window.dilations, window.before,
                   positions)  # fmt: skip
    return cast(bb, y, dtype)


@converter("TensorScatter", 24)
def tensor_scatter(bb, past_cache, update, write_indices=None, *, axis=-2, mode="linear"):
    if mode not in ("linear", "circular"):
        raise NotImplementedError(f"mode {mode!r}")
    axis = placed(axis, bb.rank(past_cache))
    return bb.emit_te(ops.tensor_scatter, past_cache, update, write_indices, axis,
                      mode == "circular")  # fmt: skip
