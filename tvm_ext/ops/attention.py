"""The parts of attention that are no matrix product: masks and rotation."""

from tvm import te, tirx
from tvm.sym import Analyzer

__all__ = [
    "distance_bias", "masked_scores", "over_root", "rotary_embedding", "section_angles",
    "seen_keys",
]  # fmt: skip


def masked_scores(scores, mask, lengths, past, causal, left, right):
    """``scores[B, H, S, T]`` with -inf where a query must not see a key; same shape and type.

    ``mask`` (or None) has rank 4, dims equal to those of ``scores`` or 1: bool keeps what is true,
    a float is added. The others are those of :func:`seen_keys`.
    """
    hidden = tirx.const(float("-inf"), scores.dtype)
    *_, queries, keys = scores.shape

    def element(b, h, q, k):
        value = scores(b, h, q, k)
        seen = _rules(b, q, k, queries, lengths, past, causal, left, right)
        if mask is not None:
            seen.append(k < _width(mask, keys))
            place = _element(mask, scores.shape, (b, h, q, k))
            if str(mask.dtype) == "bool":
                seen.append(place)
            else:
                value = value + place.astype(scores.dtype)
        if mask is not None and not _same(mask.shape[3], keys):  # of no width, nothing can be read
            return tirx.if_then_else(tirx.all(*seen), value, hidden)
        return tirx.Select(tirx.all(*seen), value, hidden)  # stays a vector

    return te.compute(scores.shape, element, "masked_scores")


def seen_keys(mask, lengths, queries, keys, past, causal, left, right):
    """Whether a query sees a key: bool, ``[B or 1, H or 1, queries or 1, keys]``.

    ``mask`` (or None) is bool of rank 4; keys beyond its last dim, unless that is 1, are hidden.
    ``lengths[B]`` (or None) counts the keys of each batch. A query stands at ``past`` plus its
    index, or, with lengths and no ``past`` (None), at the end of the keys; ``causal`` hides later
    keys, ``left`` and ``right`` (-1: unbounded) those farther away.
    """
    queries, keys = tirx.const(queries, "int64"), tirx.const(keys, "int64")
    outer = [1, 1, 1] if mask is None else list(mask.shape[:3])
    if lengths is not None:
        outer[0] = lengths.shape[0]
    if causal or left >= 0 or right >= 0:
        outer[2] = queries
    shape = [*outer, keys]

    def element(b, h, q, k):
        seen = _rules(b, q, k, queries, lengths, past, causal, left, right)
        if mask is None:
            return tirx.all(*seen)
        place = _element(mask, shape, (b, h, q, k))
        if _same(mask.shape[3], keys):
            return tirx.all(*seen, place)
        inside = tirx.all(*seen, k < _width(mask, keys))
        return tirx.if_then_else(inside, place, tirx.const(False))  # of no width, nothing is read

    return te.compute(shape, element, "seen_keys")


def over_root(scores, size):
    """``scores / sqrt(size)``; shape and type of ``scores``."""
    factor = 1 / te.sqrt(size.astype("float64"))
    return te.compute(
        scores.shape, lambda *i: scores(*i) * factor.astype(scores.dtype), "over_root"
    )


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


def distance_bias(table, buckets, queries, keys):
    """``table[H, buckets]`` by the distance of key and query: ``[1, H, queries, keys]``.

    ``buckets[2 F + 1]`` are those of the distances from -F to F, which stand for all beyond.
    """
    furthest = tirx.floordiv(buckets.shape[0], 2)

    def element(_, h, q, k):
        distance = tirx.max(tirx.min(k - q, furthest), -furthest)
        return table[h, buckets[distance + furthest]]

    return te.compute((1, table.shape[0], queries, keys), element, "distance_bias")


def section_angles(cache, positions, streams):
    """``cache[position, k]`` for each k, of that of the ``positions[3, B, S]`` that ``streams[K]``
    names: ``[B, S, K]``. A position out of range takes the nearest row."""

    def element(b, s, k):
        row = positions(streams[k], b, s)
        return cache[tirx.max(tirx.min(row, cache.shape[0] - 1), 0), k]

    return te.compute((*positions.shape[1:], streams.shape[0]), element, "section_angles")


def _rules(b, q, k, queries, lengths, past, causal, left, right):
    """The conditions of :func:`seen_keys` without a mask."""
    position = q + (0 if past is None else past)
    if past is None and lengths is not None:
        position = q + lengths[b].astype("int64") - queries
    seen = []
    if causal:
        seen.append(k <= position)
    if left >= 0:
        seen.append(position - k <= left)
    if right >= 0:
        seen.append(k - position <= right)
    if lengths is not None:
        seen.append(k < lengths[b].astype("int64"))
    return seen


def _element(mask, shape, index):
    """The element of ``mask`` that broadcasts to ``index``; beyond its end the last one."""
    return mask(
        *(
            i if _same(dim, extent) else tirx.min(i, dim - 1)
            for i, dim, extent in zip(index, mask.shape, shape, strict=True)
        )
    )


def _width(mask, keys):
    """The keys that a mask speaks about: all of them, where it has one for all."""
    width = mask.shape[3]
    return width if _same(width, keys) else tirx.Select(width == 1, keys, width)


def _same(a, b):
    return bool(Analyzer().can_prove_equal(a, b))
