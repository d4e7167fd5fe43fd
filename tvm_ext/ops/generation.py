"""What a search for the next tokens computes around its decoder."""

from tvm import te, tirx

__all__ = ["greedy_scores", "prompt_positions", "steps_left"]


def steps_left(longest, length):
    """``longest - length``, or 0: int64, a scalar."""
    return te.compute((), lambda: tirx.max(longest - length, tirx.const(0, "int64")), "steps_left")


def prompt_positions(tokens, mask, pad):
    """Which of ``tokens[B, S]`` count, as ``mask`` (or None: those that are not ``pad``) says, and
    where they stand among those; 0 for others. Both int32, ``[B, S]``."""
    zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")

    def counts(b, s):
        return mask(b, s) if mask is not None else tirx.Select(tokens[b, s] == pad, zero, one)

    seen = te.compute(tokens.shape, counts, "prompt_mask")
    k = te.reduce_axis((0, tokens.shape[1]), "k")

    def before(b, s):
        counted = tirx.all(k < s, seen[b, k] != 0, seen[b, s] != 0)
        return te.sum(tirx.Select(counted, one, zero), axis=k)

    return seen, te.compute(tokens.shape, before, "prompt_positions")


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
