"""Converters that write blocks into a larger tensor: Col2Im, TensorScatter."""

from tvm_ext.ops import assembly as ops

from .. import window as windows
from ..axes import placed
from ..table import converter


@converter("Col2Im", 18)
def col2im(bb, x, image_shape, block_shape, *, dilations=None, pads=None, strides=None):
    image, block = bb.dims(image_shape), bb.dims(block_shape)
    window = windows.resolve(image, block, strides, dilations, pads, "NOTSET")
    positions = window.outputs(image)
    return bb.emit_te(ops.col2im, x, image, block, window.strides, window.dilations,
                      window.before, positions)  # fmt: skip


@converter("TensorScatter", 24)
def tensor_scatter(bb, past_cache, update, write_indices=None, *, axis=-2, mode="linear"):
    if mode not in ("linear", "circular"):
        raise NotImplementedError(f"mode {mode!r}")
    axis = placed(axis, bb.rank(past_cache))
    return bb.emit_te(ops.tensor_scatter, past_cache, update, write_indices, axis,
                      mode == "circular")  # fmt: skip
