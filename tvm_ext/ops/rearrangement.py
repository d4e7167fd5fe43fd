"""Elements moved: blocks of channels into space, sequences reversed in part."""

from tvm import te, tirx

__all__ = ["depth_to_space", "reverse_sequence"]


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
