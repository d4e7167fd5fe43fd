"""Hashes of numbers and of n-grams of tokens."""

from tvm import te, tirx

from .elementwise import dtype_of
from .packed_sequences import sequence_of

__all__ = ["hash_ngrams", "murmur_hash"]


def murmur_hash(x, seed, dtype):
    """MurmurHash3_x86_32 of the bytes of each element of 4 or 8 bytes of ``x``, as ``dtype``.

    https://github.com/aappleby/smhasher (public domain)
    """
    words = 2 if dtype_of(x).endswith("64") else 1

    def element(*i):
        value = tirx.reinterpret(f"uint{32 * words}", x(*i)).astype("uint64")
        state = _wide(seed)
        for k in range(words):
            part = _product((value >> _wide(32 * k)) & _wide(_MASK), 0xCC9E2D51)
            part = _product(_turned(part, 15), 0x1B873593)
            state = (_turned(state ^ part, 13) * _wide(5) + _wide(0xE6546B64)) & _wide(_MASK)
        state = state ^ _wide(4 * words)
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            state = _product(state ^ (state >> _wide(shift)), factor)
        return (state ^ (state >> _wide(16))).astype(dtype)

    return te.compute(x.shape, element, "murmur_hash")


# In 64 bits, each product cut to 32: TVM folds the factors of products and shifts that wrap.
_MASK = (1 << 32) - 1


def _product(x, factor):
    return (x * _wide(factor)) & _wide(_MASK)


def _turned(x, bits):
    return ((x << _wide(bits)) | (x >> _wide(32 - bits))) & _wide(_MASK)


def _wide(value):
    return tirx.const(value, "uint64")


def hash_ngrams(ids, multipliers, sizes, past, head_offsets, eos, segments, past_segments, rows,
                *, longest, heads, pad, reset):  # fmt: skip
    """For each n from 2 to ``longest``, ``heads`` hashes of the n tokens of ``ids[N]`` up to a row.

    The tokens times ``multipliers[longest]``, combined by exclusive or, modulo ``sizes``, plus
    ``head_offsets`` (or None), which have an element per result: ``[N, (longest - 1) * heads]``.
    ``rows`` are the offsets of the sequences, ``[B + 1]``, or ``(B, length)``. The other operands
    are those of :class:`_Tokens`. With the hashes come the last ``longest - 1`` tokens of each
    sequence, and of ``segments`` where there are some.
    """
    fill = tirx.const(pad, dtype_of(ids)) if eos is None else eos()
    own, span, batch = _spans(rows, ids.shape[0])
    tokens = _Tokens(own, span, fill, ids, past, fill if reset and eos is not None else None,
                     segments, past_segments)  # fmt: skip
    results = [
        _hashes(tokens, multipliers, sizes, head_offsets, longest, heads),
        tokens.last(ids, past, fill, batch, longest - 1),
    ]
    if segments is not None:
        nothing = tirx.const(0, dtype_of(segments))
        results.append(tokens.last(segments, past_segments, nothing, batch, longest - 1))
    return results


def _spans(rows, count):
    """The sequence of a row, the first row of a sequence and that behind it, and how many."""
    if isinstance(rows, tuple):
        batch, length = rows
        return (
            (lambda n: tirx.floordiv(n, length)),
            (lambda b: (b * length, (b + 1) * length)),
            batch,
        )
    sequences = sequence_of(rows, count)

    def span(b):
        return tuple(tirx.max(tirx.min(rows[at].astype("int64"), count), 0) for at in (b, b + 1))

    return (lambda n: sequences[n]), span, rows.shape[0] - 1


class _Tokens:
    """Tokens of sequences behind each other, ``ids[N]``, and what stood before each of them.

    ``past[B, P]`` (or None) are the P tokens before a sequence, else ``fill``. What is before a row
    is ``fill``, too, from the last ``end`` token on, and from the last change of ``segments[N]``
    on, whose past is ``past_segments[B, P]`` (or None: no change is seen there).
    """

    def __init__(self, own, span, fill, ids, past, end, segments, past_segments):
        self.own, self.span, self.fill, self.end = own, span, fill, end
        self.ids, self.past = ids, past
        self.segments, self.past_segments = segments, past_segments

    def before(self, n, k):
        """The token ``k`` places before row n."""
        value = self._at(self.ids, self.past, n, k, self.fill)
        cut = []
        if self.end is not None:
            found = (self._at(self.ids, self.past, n, j, self.fill) for j in range(1, k + 1))
            cut += [token == self.end for token in found]
        if self.segments is not None:
            cut += [self._changes(n, j) for j in range(k)]
        return tirx.Select(tirx.any(*cut), self.fill, value) if cut else value

    def last(self, rows, past, fill, batch, count):
        """The last ``count`` of ``rows`` of each sequence, and before it of ``past``."""

        def element(b, slot):
            first, end = self.span(b)
            return _held(rows, past, b, first, end - count + slot, fill)

        return te.compute((batch, count), element, "last_tokens")

    def _changes(self, n, j):
        """Whether the segment j places before row n is another than that of the token before it."""
        nothing = tirx.const(0, dtype_of(self.segments))
        own, other = (
            self._at(self.segments, self.past_segments, n, k, nothing) for k in (j, j + 1)
        )
        held = 0 if self.past_segments is None else self.past_segments.shape[1]
        return tirx.all(j + 1 <= n - self.span(self.own(n))[0] + held, own != other)

    def _at(self, rows, past, n, k, otherwise):
        b = self.own(n)
        return _held(rows, past, b, self.span(b)[0], n - k, otherwise)


def _held(rows, past, b, first, place, otherwise):
    """``rows[place]``, or what stood before the sequence b where that begins later."""
    value = rows[tirx.max(tirx.min(place, rows.shape[0] - 1), 0)]
    if past is not None:
        slot = past.shape[1] + place - first
        otherwise = tirx.if_then_else(slot >= 0, past[b, tirx.max(slot, 0)], otherwise)
    return tirx.if_then_else(place >= first, value, otherwise)


def _hashes(tokens, multipliers, sizes, offsets, longest, heads):
    dtype, rows = dtype_of(tokens.ids), tokens.ids.shape
    unsigned = f"u{dtype}"  # whose products wrap

    def product(n, k):
        return tokens.before(n, k).astype(unsigned) * multipliers[k].astype(unsigned)

    def extended(mix, k):
        def term(n):
            return product(n, k) if mix is None else mix[n] ^ product(n, k)

        return te.compute(rows, term, f"mix_{k + 1}")

    mixes = [extended(None, 0)]
    for k in range(1, longest):
        mixes.append(extended(mixes[-1], k))

    def element(n, h):
        value = mixes[1][n]
        for order, mix in enumerate(mixes[2:], 1):
            value = tirx.Select(tirx.floordiv(h, heads) == order, mix[n], value)
        size = tirx.max(sizes[h], tirx.const(1, dtype))
        result = tirx.floormod(tirx.reinterpret(dtype, value), size)
        return result if offsets is None else result + offsets[h]

    return te.compute((*rows, (longest - 1) * heads), element, "ngram_hashes")
