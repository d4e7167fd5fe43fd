"""Elements moved: tensors joined, blocks of channels into space, sequences reversed in part."""

from tvm import te, tirx
from tvm.sym import Analyzer

__all__ = ["concatenate", "depth_to_space", "reverse_sequence"]


def concatenate(tensors, axis):
    """``tensors``, equal in all dims but ``axis``, one after the other along it.

    Where an element is from is told by comparisons with sums of dims alone.
    """
    starts = [tirx.const(0, "int64")]
    for x in tensors:
        starts.append(starts[-1] + x.shape[axis])

    def element(*index):
        value = None
        for x, start, end in reversed(list(zip(tensors, starts, starts[1:], strict=False))):
            read = x(*index[:axis], index[axis] - start, *index[axis + 1 :])
            value = read if value is None else tirx.if_then_else(index[axis] < end, read, value)
        return value

    shape = list(tensors[0].shape)
    shape[axis] = Analyzer().simplify(starts[-1])  # n * 2, as Relax has it, not n + n
    return te.compute(shape, element, "concatenate")


def depth_to_space(x, block):
    """``x[N, block * block * C, H, W]`` -> ``[N, C, block * H, block * W]``, phases outermost.

    In one step: neighbouring channels stay neighbours, so that it serves a blocked layout as well.
    """
    n, channels, h, w = x.shape
    depth = channels // (block * block)

    def element(n, c, i, j):
        phase = tirx.floormod(i, block) * block + tirx.floormod(j, block)
        return x(n, phase * depth + c, tirx.floordiv(i, block), tirx.floordiv(j, block))

    return te.compute((n, depth, h * block, w * block), element, "depth_to_space")


def reverse_sequence(x, lengths, time_axis, batch_axis):
    """``x`` with the first ``lengths[b]`` steps of each batch item in reverse order."""
    steps = x.shape[time_axis]

    def element(*index):
        length = tirx.min(lengths[index[batch_axis]].astype("int64"), steps)
        at = list(index)
        at[time_axis] = tirx.Select(
            at[time_axis] < length, length - 1 - at[time_axis], at[time_axis]
        )
        return x(*at)

    return te.compute(x.shape, element, "reverse_sequence")
