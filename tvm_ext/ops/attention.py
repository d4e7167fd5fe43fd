"""The parts of attention that are no matrix product: masks, softmax over masked rows, rotation."""

from tvm import te, tirx
from tvm.sym import Analyzer

__all__ = ["masked_scores", "masked_softmax", "over_root", "rotary_embedding", "section_angles"]


def masked_scores(scores, mask, lengths, past, causal, left, right):
    """``scores[B, H, S, T]`` with -inf where a query must not see a key; same shape and type.

    ``mask`` (or None) has rank 4, dims equal to those of ``scores`` or 1: bool keeps what is true,
    a float is added; keys beyond its last dim are masked. ``lengths[B]`` (or None) counts the keys
    of each batch. A query stands at ``past`` plus its index, or, with lengths and no ``past``
    (None), at the end of the keys; ``causal`` hides later keys, ``left`` and ``right`` (-1:
    unbounded) those farther away.
    """
    hidden = tirx.const(float("-inf"), scores.dtype)

    def element(b, h, q, k):
        position = q + (0 if past is None else past)
        if past is None and lengths is not None:
            position = q + lengths[b].astype("int64") - scores.shape[2]
        seen = []
        if causal:
            seen.append(k <= position)
        if left >= 0:
            seen.append(position - k <= left)
        if right >= 0:
            seen.append(k - position <= right)
        if lengths is not None:
            seen.append(k < lengths[b].astype("int64"))
        value = scores(b, h, q, k)
        if mask is not None:
            seen.append(k < _width(mask, scores))
            index = [
                i if _same(dim, extent) else tirx.min(i, dim - 1)
                for i, dim, extent in zip((b, h, q, k), mask.shape, scores.shape, strict=True)
            ]
            if str(mask.dtype) == "bool":
                seen.append(mask(*index))
            else:
                value = value + mask(*index).astype(scores.dtype)
        return tirx.if_then_else(tirx.all(*seen), value, hidden)

    return te.compute(scores.shape, element, "masked_scores")


def over_root(scores, size):
    """``scores / sqrt(size)``; shape and type of ``scores``."""
    factor = 1 / te.sqrt(size.astype("float64"))
    return te.compute(
        scores.shape, lambda *i: scores(*i) * factor.astype(scores.dtype), "over_root"
    )


def masked_softmax(x):
    """Softmax over the last axis; a row of -inf alone gives zeros. Shape and type of ``x``."""
    *rows, extent = x.shape
    lowest = tirx.const(float("-inf"), x.dtype)
    zero, one = tirx.const(0, x.dtype), tirx.const(1, x.dtype)
    k = te.reduce_axis((0, extent), "k")
    peak = te.compute(rows, lambda *row: te.max(x(*row, k), axis=k), "row_max")

    def power(*i):
        # te.max starts at the least finite number: a row of -inf gives that.
        shift = tirx.Select(peak(*i[:-1]) <= te.min_value(x.dtype), zero, peak(*i[:-1]))
        return tirx.Select(x(*i) == lowest, zero, te.exp(x(*i) - shift))

    exponential = te.compute(x.shape, power, "row_exp")
    r = te.reduce_axis((0, extent), "r")
    total = te.compute(rows, lambda *row: te.sum(exponential(*row, r), axis=r), "row_sum")

    def write(*i):
        divisor = tirx.Select(total(*i[:-1]) == zero, one, total(*i[:-1]))
        return exponential(*i) / divisor

    return te.compute(x.shape, write, "masked_softmax")


def rotary_embedding(x, cos, sin, positions, rotated, interleaved):
    """Rotate the first ``rotated`` elements of ``x[B, H, S, D]`` by the angle of their position.

    ``cos`` and ``sin`` are ``[B, S, rotated / 2]``, or ``[P, rotated / 2]`` indexed by
    ``positions[B, S]``. Pairs are neighbours if ``interleaved``, else halves apart. Computed in
    float32 for narrow floats; shape and type of ``x``. A position out of range takes the nearest
    row.
    """
    half = rotated // 2
    dtype = "float32" if str(x.dtype) in ("float16", "bfloat16") else x.dtype

    def row(b, s):
        return tirx.max(tirx.min(positions(b, s), cos.shape[0] - 1), 0)

    def element(b, h, s, d):
        pair = tirx.floordiv(d, 2) if interleaved else tirx.floormod(d, half)
        second = tirx.floormod(d, 2) == 1 if interleaved else d >= half
        first = tirx.Select(second, d - (1 if interleaved else half), d)
        where = (b, s, pair) if positions is None else (row(b, s), pair)

        def rotate():
            c, z = cos(*where).astype(dtype), sin(*where).astype(dtype)
            a = x(b, h, s, first).astype(dtype)
            e = x(b, h, s, first + (1 if interleaved else half)).astype(dtype)
            return tirx.Select(second, z * a + c * e, c * a - z * e).astype(x.dtype)

        return tirx.if_then_else(d < rotated, rotate(), x(b, h, s, d))

    return te.compute(x.shape, element, "rotary_embedding")


def section_angles(cache, positions, streams):
    """``cache[position, k]`` for each k, of that of the ``positions[3, B, S]`` that ``streams[K]``
    names: ``[B, S, K]``. A position out of range takes the nearest row."""

    def element(b, s, k):
        row = positions(streams[k], b, s)
        return cache[tirx.max(tirx.min(row, cache.shape[0] - 1), 0), k]

    return te.compute((*positions.shape[1:], streams.shape[0]), element, "section_angles")


def _width(mask, scores):
    """The keys that a mask speaks about: all of them, where it has one for all."""
    width, keys = mask.shape[3], scores.shape[3]
    return width if _same(width, keys) else tirx.Select(width == 1, keys, width)


def _same(a, b):
    return bool(Analyzer().can_prove_equal(a, b))
