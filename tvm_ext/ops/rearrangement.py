"""Sequences reversed in part."""

from tvm import te, tirx


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
