"""Sequences of tensors of one shape."""

from tvm import te, tirx


def sequence_at(position, *items):
    """The tensor at ``position`` (a scalar; negative from the end) of ``items`` of one shape."""

    def element(*index):
        at = position(*[0] * len(position.shape)).astype("int64")
        at = tirx.Select(at < 0, at + len(items), at)
        value = items[0](*index)
        for k, item in enumerate(items[1:], 1):
            value = tirx.Select(at == k, item(*index), value)
        return value

    return te.compute(items[0].shape, element, "sequence_at")
