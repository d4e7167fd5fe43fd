"""What a search for the next tokens computes around its decoder."""

from tvm import te, tirx

from .random import random_share
from .search import arg_extremum

__all__ = ["drawn_tokens", "greedy_scores", "last_token", "left_padding", "nucleus",
           "prompt_positions", "steps_left", "tempered"]  # fmt: skip


def steps_left(longest, length):
    """``longest - length``, or 0: int64, a scalar."""
    return te.compute((), lambda: tirx.max(longest - length, tirx.const(0, "int64")), "steps_left")


def prompt_positions(tokens, mask, pad):
    """Which of ``tokens[B, S]`` count: those that ``mask`` says or, if it is None, those that are
    not ``pad``; where they stand among the latter, 0 for others; and how many those are, ``[B,
    1]``. All int32."""
    batch, length = tokens.shape
    zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")
    filled = te.compute(
        tokens.shape, lambda b, s: tirx.Select(tokens[b, s] == pad, zero, one), "filled"
    )
    k, t = (te.reduce_axis((0, length), name) for name in "kt")

    def before(b, s):
        counted = tirx.all(k < s, filled[b, k] != 0, filled[b, s] != 0)
        return te.sum(tirx.Select(counted, one, zero), axis=k)

    seen = te.compute(
        tokens.shape, lambda b, s: filled[b, s] if mask is None else mask[b, s], "prompt_mask"
    )
    positions = te.compute(tokens.shape, before, "prompt_positions")
    counts = te.compute((batch, 1), lambda b, _: te.sum(filled[b, t], axis=t), "prompt_lengths")
    return [seen, positions, counts]


def left_padding(tokens, pad):
    """0 for the tokens before the first that is not ``pad``, else 1: int32 ``[B, S]``."""
    k = te.reduce_axis((0, tokens.shape[1]), "k")
    zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")

    def seen(b, s):
        return te.max(tirx.Select(tirx.all(k <= s, tokens[b, k] != pad), one, zero), axis=k)

    return te.compute(tokens.shape, seen, "prompt_mask")


def last_token(logits, words):
    """``logits[B, S, V]`` of the last token, for the first ``words`` of the vocabulary: ``[B, 1,
    words]``."""
    batch, length, _ = logits.shape
    return te.compute((batch, 1, words), lambda b, _, v: logits[b, length - 1, v], "last_token")


def greedy_scores(logits, history, step, least, penalty, allowed, first_allowed, end):
    """The scores of the next token by the logits of the last one, ``logits[B, S, V]``: ``[B, V]``.

    ``history[B, L]`` are all tokens so far: by ``penalty[1]`` what is in them gets less probable,
    and before there are ``least[1]``, the token ``end`` is not chosen. ``allowed[V]`` and, in the
    first ``step``, ``first_allowed[B, V]`` are 0 for what is not chosen. All but the first three
    and ``end`` may be None.
    """
    batch, length, words = logits.shape
    dtype, lowest = logits.dtype, te.min_value(logits.dtype)
    k = te.reduce_axis((0, history.shape[1]), "k")
    zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")
    seen = te.compute(
        (batch, words),
        lambda b, v: te.max(tirx.Select(history[b, k] == v, one, zero), axis=k),
        "seen",
    )

    def score(b, v):
        value = logits[b, length - 1, v]
        if penalty is not None:
            factor = penalty[0].astype(dtype)
            less = tirx.Select(value < tirx.const(0, dtype), value * factor, value / factor)
            value = tirx.Select(seen[b, v] > 0, less, value)
        hidden = []
        if allowed is not None:
            hidden.append(allowed[v] == 0)
        if first_allowed is not None:
            hidden.append(tirx.all(step() == 0, first_allowed[b, v] == 0))
        if least is not None:
            hidden.append(tirx.all(v == end, history.shape[1] < least[0].astype("int64")))
        return tirx.Select(tirx.any(*hidden), lowest, value) if hidden else value

    return te.compute((batch, words), score, "greedy_scores")


def tempered(scores, temperature, presence=None, *, penalty=0.0):
    """``scores[B, V] / temperature``, less ``penalty`` where ``presence[B, V]`` is 1."""
    dtype = scores.dtype

    def score(b, v):
        value = scores[b, v] / tirx.const(temperature, dtype)
        if presence is None:
            return value
        return value - presence[b, v].astype(dtype) * tirx.const(penalty, dtype)

    return te.compute(scores.shape, score, "tempered")


def nucleus(scores, order, mass, share, least, hidden, descending):
    """``scores[B, V]``, with ``hidden`` for all but the most probable tokens, whose probabilities
    sum up to ``share``.

    ``order`` are the scores in order, ``mass`` the running sums of their probabilities. What comes
    first if ``descending``, or at least the last ``least``, stays.
    """
    batch, words = scores.shape
    dtype = scores.dtype
    k = te.reduce_axis((0, words), "k")

    def stays(b, k):
        if descending:
            before = mass[b, tirx.max(k - 1, 0)]
            return tirx.any(k == 0, before <= tirx.const(share, dtype))
        few = tirx.all(k > 0, k >= words - least)
        return tirx.any(few, mass[b, k] > tirx.const(1 - share, dtype))

    largest = tirx.max_value(dtype)
    bound = te.compute(
        (batch,), lambda b: te.min(tirx.Select(stays(b, k), order[b, k], largest), axis=k), "bound"
    )
    return te.compute(
        scores.shape,
        lambda b, v: tirx.Select(scores[b, v] < bound[b], tirx.const(hidden, dtype), scores[b, v]),
        "nucleus",
    )


def drawn_tokens(scores, step, seed):
    """One token of each row, drawn with probabilities proportional to ``exp(scores[B, V])``: int32
    ``[B]``; by ``seed[1]`` and ``step``."""
    batch, words = scores.shape

    def noisy(b, v):
        place = (step() * batch + b) * words + v
        place = place + tirx.shift_left(seed[0].astype("int64"), tirx.const(32, "int64"))
        share = random_share(place, 0)
        return scores[b, v].astype("float64") - tirx.log(-tirx.log(share))

    drawn = arg_extremum(te.compute(scores.shape, noisy, "noisy"), 1, False, largest=True,
                         last=False)  # fmt: skip
    return te.compute(drawn.shape, lambda b: drawn(b).astype("int32"), "drawn_tokens")
