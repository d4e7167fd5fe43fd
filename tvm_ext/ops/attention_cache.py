"""Attention over a cache of keys and values whose valid length differs between sequences.

``lengths[B]`` is one less than the number of keys that sequence b has with its new ones; S new ones
come behind those that it had, or at its start where the S are all (then some may be padding).
"""

from tvm import te, tirx

__all__ = [
    "cache_extent", "cache_mask", "cache_positions", "key_padding",
    "updated_cache",
]  # fmt: skip


def cache_extent(past, total):
    """The keys that a cache holds: as ``past[B, G, P, H]``, or ``total[1]`` if that is more."""
    return te.compute((1,), lambda i: tirx.max(total[i], past.shape[2]), "cache_extent")


def updated_cache(past, fresh, lengths, extent):
    """``past[B, G, P, H]`` (or None), ``fresh[B, G, S, H]`` in it: ``[B, G, extent, H]``.

    Behind the new elements there are zeros.
    """
    batch, heads, count, size = fresh.shape
    zero = tirx.const(0, fresh.dtype)

    def element(b, g, t, h):
        place = t - _start(lengths, b, count)
        new = fresh[b, g, tirx.max(tirx.min(place, count - 1), 0), h]
        beyond = tirx.if_then_else(place < count, new, zero)
        if past is None:
            return beyond
        old = tirx.if_then_else(t < past.shape[2], past[b, g, t, h], zero)
        return tirx.if_then_else(place < 0, old, beyond)

    return te.compute((batch, heads, extent, size), element, "updated_cache")


def cache_positions(lengths, count, limit):
    """Where each new key stands: ``int64[B, S]``, below ``limit``."""

    def position(b, s):
        return tirx.max(tirx.min(_start(lengths, b, count) + s, limit - 1), 0)

    return te.compute((lengths.shape[0], count), position, "cache_positions")


def cache_mask(lengths, sink, heads, count, extent, causal, window, dtype):
    """0 where a query may see a key, -inf elsewhere: ``[B, 1, S, extent]``.

    ``window`` (-1: unbounded) is how many keys a query sees, itself included. With ``sink[N]`` the
    result is ``[B, N, S, extent + 1]``: the last key has that score.
    """
    zero, hidden = tirx.const(0, dtype), tirx.const(float("-inf"), dtype)

    def element(b, n, s, t):
        position = _start(lengths, b, count) + s
        seen = [t <= lengths[b].astype("int64")]
        if causal:
            seen.append(t <= position)
        if window >= 0:
            seen.append(position - t < window)
        value = tirx.Select(tirx.all(*seen), zero, hidden)
        if sink is None:
            return value
        return tirx.if_then_else(t == extent, sink[n].astype(dtype), value)

    shape = (lengths.shape[0], 1, count, extent)
    if sink is not None:
        shape = (lengths.shape[0], heads, count, extent + 1)
    return te.compute(shape, element, "cache_mask")


def key_padding(mask, batch, queries, keys, hidden, dtype, spans=False):
    """What is added to scores: 0 for keys that count, ``hidden`` for padding; ``[B, 1, S|1, T]``.

    ``mask`` says of each sequence how many keys count, ``[B]``, or with ``spans`` where they end
    and start, ``[2 B]``; or of each key whether it does: ``[B, T]``, ``[B, S, T]``, or
    ``[B, 1, M, M]``, in whose rows the queries come last of the keys.
    """
    rank = len(mask.shape)

    def counts(b, s, t):
        if rank == 1:
            inside = t < mask[b].astype("int64")
            return tirx.all(inside, t >= mask[b + batch].astype("int64")) if spans else inside
        at = {2: (b, t), 3: (b, s, t), 4: (b, 0, keys - queries + s, t)}[rank]
        return mask(*at) != tirx.const(0, mask.dtype)

    def element(b, _, s, t):
        nothing = tirx.const(0, dtype)
        return tirx.Select(counts(b, s, t), nothing, tirx.const(hidden, dtype))

    return te.compute((batch, 1, queries if rank > 2 else 1, keys), element, "key_padding")


def _start(lengths, b, count):
    """The place of the first new key."""
    return tirx.max(lengths[b].astype("int64") + 1 - count, 0)
