"""Elements moved: tensors joined, blocks of channels into space, sequences reversed in part."""

from math import prod

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


def depth_to_space(x, strides):
    """``x[N, phases * C, H, W]`` -> ``[N, C, H * strides[0], W * strides[1]]``, phases outermost.

    Whatever the spatial axes. In one step: neighbouring channels stay neighbours, so that it
    serves a blocked layout as well.
    """
    n, channels, *image = x.shape
    depth = channels // prod(strides)

    def element(n, c, *at):
        phase = tirx.const(0, "int64")
        for i, stride in zip(at, strides, strict=True):
            phase = phase * stride + tirx.floormod(i, stride)
        place = (tirx.floordiv(i, stride) for i, stride in zip(at, strides, strict=True))
        return x(n, phase * depth + c, *place)

    shape = (size * stride for size, stride in zip(image, strides, strict=True))
    return te.compute((n, depth, *shape), element, "depth_to_space")


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
