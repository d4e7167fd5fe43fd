"""Sequences of different lengths behind each other in one axis, without padding.

``offsets[B + 1]`` are integers, 0 first: sequence b has the rows ``offsets[b]`` to
``offsets[b + 1]``. With ``state[B, C, P]`` come the P rows that stood before each sequence.
"""

from tvm import te, tirx

from .elementwise import dtype_of, float_compute

__all__ = ["causal_convolution", "last_rows", "rows_without_padding", "sequence_of"]

_INT64 = [tirx.const(0, "int64"), tirx.const(1, "int64")]


def sequence_of(offsets, rows):
    """The sequence that each of ``rows`` belongs to: int64 ``[rows]``."""
    k = te.reduce_axis((1, offsets.shape[0] - 1), "sequence")

    def passed(row):
        behind = row >= offsets[k].astype("int64")
        return te.sum(tirx.Select(behind, _INT64[1], _INT64[0]), axis=k)

    return te.compute((rows,), passed, "sequence_of")


def causal_convolution(x, w, bias, state, offsets, dilation):
    """Depthwise: a row and those ``dilation`` apart before it, of its own sequence.

    ``x[N, C]``, ``w[C, 1, K]``, ``bias[C]`` or None, ``state[B, C, (K - 1) * dilation]``; float32
    for narrow floats.
    """
    own, dtype = sequence_of(offsets, x.shape[0]), float_compute(dtype_of(x))
    taps = w.shape[2]
    tap = te.reduce_axis((0, taps), "tap")

    def term(n, c):
        back = (taps - 1 - tap) * dilation
        value = _row_before(x, state, offsets, own[n], n, c, back)
        return te.sum(value.astype(dtype) * w[c, 0, tap].astype(dtype), axis=tap)

    y = te.compute(x.shape, term, "packed_convolution")
    if bias is None:
        return y
    return te.compute(x.shape, lambda n, c: y[n, c] + bias[c].astype(dtype), "packed_bias")


def last_rows(x, state, offsets):
    """The P rows before the end of each sequence: shape and type of ``state``."""

    def element(b, c, p):
        end = tirx.max(tirx.min(offsets[b + 1].astype("int64"), x.shape[0]), 1)
        return _row_before(x, state, offsets, b, end - 1, c, state.shape[2] - 1 - p)

    return te.compute(state.shape, element, "last_rows")


def _row_before(x, state, offsets, b, n, c, back):
    """``x[n - back, c]``, or what stood before sequence b where that is not in it."""
    first = tirx.max(tirx.min(offsets[b].astype("int64"), n), 0)
    place, held = n - first - back, state.shape[2]
    inside = x[tirx.max(first + place, 0), c]
    return tirx.if_then_else(place >= 0, inside, state[b, c, tirx.max(held + place, 0)])


def rows_without_padding(counts, length):
    """Where the rows that count stand, of ``counts[B]`` sequences padded to ``length``.

    Returns the places of those rows, then of the padding, int32 ``[B, length]``; and how many rows
    come before each sequence, and in all, int32 ``[B + 1]``.
    """
    batch = counts.shape[0]
    k, b = te.reduce_axis((0, batch), "k"), te.reduce_axis((1, batch), "b")

    def before(sequence):
        return te.sum(tirx.Select(k < sequence, counts[k], tirx.const(0, counts.dtype)), axis=k)

    offsets = te.compute((batch + 1,), before, "offsets")

    def start(sequence):
        return offsets[sequence].astype("int64")

    def own(number):
        """The last sequence that begins no later, among the rows or in the padding."""
        begin = tirx.Select(number < start(batch), start(b), start(batch) + b * length - start(b))
        return te.sum(tirx.Select(begin <= number, _INT64[1], _INT64[0]), axis=b)

    owners = te.compute((batch * length,), own, "owners")

    def place(i, j):
        number, at = i * length + j, owners[i * length + j]
        padding = counts[at].astype("int64") + number - start(batch) - at * length + start(at)
        row = tirx.Select(number < start(batch), number - start(at), padding)
        return (at * length + row).astype("int32")

    return te.compute((batch, length), place, "places"), offsets
