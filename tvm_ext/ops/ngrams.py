"""Weighted occurrences of n-grams in rows of numbers."""

from tvm import te, tirx

__all__ = ["completes_ngram", "weigh_ngrams"]


def weigh_ngrams(
    x: te.Tensor,
    ngrams: te.Tensor,
    lengths: te.Tensor,
    weights: te.Tensor,
    slots: te.Tensor,
    skips: int,
    once: bool,
) -> te.Tensor:
    """The weights of the n-grams in ``x[R, C]``, summed by slot -> float32 ``[R, S]``.

    ``ngrams[G, L]``, of type int64 as ``x``, holds ``lengths[G]`` numbers each, which stand 1 to
    ``skips + 1`` places apart; a single number is counted once. ``slots[S, M]`` names the n-grams
    of each result, -1 for none. An n-gram adds its weight of ``weights[G]`` for each occurrence;
    if ``once``, a result is the weight of its first n-gram as soon as any of them occurs.
    """
    rows, columns = x.shape
    count, longest = (int(d) for d in ngrams.shape)
    start, skip = te.reduce_axis((0, columns), "start"), te.reduce_axis((0, skips + 1), "skip")

    def occurs(row, gram):
        found = tirx.any(skip == 0, lengths[gram] > 1)
        for k in range(longest):
            place = start + k * (skip + 1)
            same = x[row, tirx.min(place, columns - 1)] == ngrams[gram, k]
            found = tirx.all(found, tirx.any(k >= lengths[gram], tirx.all(place < columns, same)))
        return tirx.Select(found, tirx.const(1.0, "float32"), tirx.const(0.0, "float32"))

    counts = te.compute(
        (rows, count), lambda r, g: te.sum(occurs(r, g), axis=[start, skip]), "occurrences"
    )
    member = te.reduce_axis((0, slots.shape[1]), "member")

    def slot(row, s):
        gram = slots(s, member)
        known = tirx.max(gram, tirx.const(0, gram.ty.dtype))
        value = counts(row, known) * (tirx.const(1.0, "float32") if once else weights(known))
        return te.sum(tirx.Select(gram >= 0, value, tirx.const(0.0, "float32")), axis=member)

    sums = te.compute((rows, slots.shape[0]), slot, "slots")
    if not once:
        return sums

    def first_weight(row, s):
        weight = weights(tirx.max(slots(s, 0), tirx.const(0, slots.dtype)))
        return tirx.Select(sums(row, s) > 0.0, weight, tirx.const(0.0, "float32"))

    return te.compute(sums.shape, first_weight, "once")


def completes_ngram(
    ids: te.Tensor, scores: te.Tensor, size: int, hidden: float = float("-inf")
) -> te.Tensor:
    """``scores[B, V]``; ``hidden`` for a number that, behind ``ids[B, S]``, repeats ``size``."""
    batch, length = ids.shape
    start = te.reduce_axis((0, tirx.max(length - size + 1, 0)), "start")

    def repeats(b, number):
        same = [ids[b, start + k] == ids[b, length - size + 1 + k] for k in range(size - 1)]
        found = tirx.all(ids[b, start + size - 1] == number, *same)
        return te.max(
            tirx.Select(found, tirx.const(1, "int32"), tirx.const(0, "int32")), axis=start
        )

    seen = te.compute((batch, scores.shape[1]), repeats, "repeats")
    lowest = tirx.const(hidden, scores.dtype)

    def element(b, number):
        return tirx.Select(seen[b, number] > 0, lowest, scores[b, number])

    return te.compute(scores.shape, element, "completes_ngram")
