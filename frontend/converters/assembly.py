"""Converters that write blocks into a larger tensor: Col2Im, TensorScatter."""

from math import prod

from tvm_ext.ops import assembly as ops

from .. import window as windows
from ..axes import placed
from ..indices import demand_between
from ..known import as_expr
from ..precision import cast
from ..table import converter

_MOST = 1 << 62  # any place, where it wraps around


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
    _demand_columns(bb, x, block, positions)
    dtype = bb.dtype(x)
    if dtype == "bool":  # whose sum is whether one of them is true
        x = cast(bb, x, "int32")
    y = bb.emit_te(ops.col2im, x, image, block, window.strides, window.dilations, window.before,
                   positions)  # fmt: skip
    return cast(bb, y, dtype)


def _demand_columns(bb, x, block, positions):
    """Assert that there is a column of blocks for each position."""
    columns, wanted = bb.shape(x)[2], bb.simplify(prod(map(as_expr, positions)))
    bb.demand_dims([columns], [wanted], f"axis 2 of {bb.name(x)} is {{given}}, not {{wanted}}")
    size = bb.simplify(prod(map(as_expr, block)))
    rest = bb.simplify(as_expr(bb.shape(x)[1]) % as_expr(size))
    reason = f"axis 1 of {bb.name(x)} is no multiple of the size of a block: {{given}} are left"
    bb.demand_dims([rest], [0], reason)


@converter("TensorScatter", 24)
def tensor_scatter(bb, past_cache, update, write_indices=None, *, axis=-2, mode="linear"):
    if mode not in ("linear", "circular"):
        raise NotImplementedError(f"mode {mode!r}")
    axis = placed(axis, bb.rank(past_cache))
    if write_indices is not None:
        most = _MOST
        if mode == "linear":
            most = bb.simplify(bb.shape(past_cache)[axis] - as_expr(bb.shape(update)[axis]))
        demand_between(bb, write_indices, 0, most, "a place to write to")
    return bb.emit_te(ops.tensor_scatter, past_cache, update, write_indices, axis,
                      mode == "circular")  # fmt: skip
