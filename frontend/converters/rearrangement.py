"""Converters for operators that move blocks of elements: DepthToSpace, ReverseSequence, ..."""

from tvm import relax

from tvm_ext.ops import rearrangement as ops

from ..axes import placed_all
from ..indices import demand_between
from ..run_time import demand_parts
from ..table import converter
from .shape import reshaped


@converter("DepthToSpace", 1)
def depth_to_space_1(bb, x, *, blocksize):
    return depth_to_space(bb, x, blocksize=blocksize)


@converter("DepthToSpace", 11, 13, 28)
def depth_to_space(bb, x, *, blocksize, mode="DCR"):
    n, c, h, w = bb.shape(x)
    demand_parts(bb, c, blocksize * blocksize, "the number of channels")
    if mode == "DCR":
        return bb.emit_te(ops.depth_to_space, x, [blocksize] * 2)
    b, depth = blocksize, bb.simplify(c // (blocksize * blocksize))
    return _regroup(bb, x, [n, depth, b, b, h, w], [0, 1, 4, 2, 5, 3], [n, depth, h * b, w * b])


@converter("PhasesToSpace", 1, domain="tvm_ext")
def phases_to_space(bb, x, *, strides):
    """DepthToSpace of mode DCR over any number of spatial axes, each with its block."""
    return bb.emit_te(ops.depth_to_space, x, strides)


@converter("SpaceToDepth", 1, 13)
def space_to_depth_13(bb, x, *, blocksize):
    return space_to_depth(bb, x, blocksize=blocksize)


@converter("SpaceToDepth", 28)
def space_to_depth(bb, x, *, blocksize, mode="DCR"):
    n, c, h, w = bb.shape(x)
    demand_parts(bb, h, blocksize, "the height")
    demand_parts(bb, w, blocksize, "the width")
    b, rows, columns = blocksize, bb.simplify(h // blocksize), bb.simplify(w // blocksize)
    order = [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4]
    return _regroup(bb, x, [n, c, rows, b, columns, b], order, [n, c * b * b, rows, columns])


def _regroup(bb, x, split, order, shape):
    x = reshaped(bb, x, split)
    x = bb.emit(relax.op.permute_dims(x, order))
    return reshaped(bb, x, shape)


@converter("ReverseSequence", 10, 28)
def reverse_sequence(bb, x, sequence_lens, *, batch_axis=1, time_axis=0):
    time_axis, batch_axis = placed_all((time_axis, batch_axis), bb.rank(x))
    sequence_lens = bb.of_shape(sequence_lens, [bb.shape(x)[batch_axis]])
    demand_between(bb, sequence_lens, 0, bb.shape(x)[time_axis], "a length")
    return bb.emit_te(ops.reverse_sequence, x, sequence_lens, time_axis, batch_axis)
