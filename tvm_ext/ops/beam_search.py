"""What a beam search computes around its decoder.

``N`` rows are beams, ``K`` after each other of each of ``B`` prompts. Of each prompt up to ``K``
hypotheses, texts that have ended, are kept, best first: ``texts[N, M]``, their scores ``best[N]``
and how many there are, ``used[B]``.
"""

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from . import serial

__all__ = ["best_texts", "each_beam", "first_sums", "next_beams", "step_totals",
           "totals"]  # fmt: skip

_FAR = -1e9  # the score of all beams but one in the first step, in which they are alike


def each_beam(x, rows, beams):
    """``x[B, ...]``, each row ``beams`` times: ``[rows, ...]``."""
    return te.compute((rows, *x.shape[1:]), lambda n, *i: x(n // beams, *i), "each_beam")


def first_sums(rows, beams):
    """The logarithms of the probabilities of beams that have no token: float32 ``[rows]``."""
    zero, far = tirx.const(0, "float32"), tirx.const(_FAR, "float32")
    return te.compute((rows,), lambda n: tirx.Select(n % beams == 0, zero, far), "first_sums")


def totals(scores, sums, temperature, batch, beams):
    """``scores[N, V]`` of the next tokens and ``sums[N]`` of those so far: ``[B, K, V]``.

    The scores are divided by ``temperature[1]`` if it is given and positive.
    """

    def total(b, k, v):
        score = scores[b * beams + k, v]
        if temperature is not None:
            heat = temperature[0].astype("float32")
            score = tirx.Select(heat > tirx.const(0, "float32"), score / heat, score)
        return score + sums[b * beams + k]

    return te.compute((batch, beams, scores.shape[1]), total, "totals")


def step_totals(first, following, steps):
    """The totals of all ``steps``, ``[steps, B, K, V]``: ``first[B, K, V]`` (or None), then
    ``following[T, B, K, V]``, then 0 where the search has ended before."""
    begun = 0 if first is None else 1
    zero = tirx.const(0, "float32")

    def total(step, *i):
        known = tirx.all(step >= begun, step - begun < following.shape[0])
        value = tirx.if_then_else(known, following(step - begun, *i), zero)
        return value if first is None else tirx.if_then_else(step == 0, first(*i), value)

    return te.compute((steps, *following.shape[1:]), total, "step_totals")


def next_beams(values, places, history, penalty, done, texts, best, used, beams, words, end, pad,
               early):  # fmt: skip
    """The next step of all beams, by the best ``values`` and ``places`` in ``K * V`` of their
    totals, ``[B, 2 K]`` or more; ``history[N, L]`` are their tokens so far.

    Candidates that ``end`` become hypotheses if they are among the first ``K``; the best others go
    on. A prompt is done as soon as it has ``K`` hypotheses which no candidate is better than or, if
    ``early``, at once: then its beams go on from the first row, by ``pad``.

    Returns sums (float32), tokens and the rows that they go on from (int32), ``[N]`` each; who is
    done, ``int32[B]``, and ``texts``, ``best`` and ``used`` after the step; and scratch.
    """
    candidates = tirx.min(2 * beams, values.shape[1])
    zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")

    def body(ins, outs):
        value, place, tokens, power, ended, *before = ins
        sums, chosen, rows, finished, *after, at = outs
        kept = _Hypotheses(*after, at, tokens, power, beams, pad)

        def candidate(b, j):
            token = place[b, j] % words
            row = b * beams + place[b, j] // words
            with T.If(token == tirx.const(end, "int64")):
                with T.Then():
                    serial.when(j < beams, lambda: kept.add(b, value[b, j], row))
                with T.Else():
                    go_on(b * beams + at[1], value[b, j], token, row)
                    T.buffer_store(at, at[1] + 1, [1])

        def go_on(n, total, token, row):
            T.buffer_store(sums, total, [n])
            T.buffer_store(chosen, token.astype("int32"), [n])
            T.buffer_store(rows, row.astype("int32"), [n])

        def prompt(b):
            kept.copy(b, *before)
            T.buffer_store(finished, ended[b], [b])
            with T.serial(0, beams) as k:
                nothing = tirx.const(0, "float32"), tirx.const(pad, "int64")
                go_on(b * beams + k, *nothing, tirx.const(0, "int64"))
            T.buffer_store(at, tirx.const(0, "int64"), [1])
            with T.If(ended[b] == 0), T.Then():
                with T.serial(0, candidates) as j:
                    serial.when(at[1] < beams, lambda: candidate(b, j))
                full = kept.used[b] == beams.astype("int32")
                if not early:
                    full = tirx.all(full, tirx.Not(kept.worst(b) < kept.score(value[b, 0])))
                T.buffer_store(finished, tirx.Select(full, one, zero), [b])

        return serial.nest(done.shape, prompt)

    inputs = [values, places, history, penalty, done, texts, best, used]
    shapes = [best.shape, best.shape, best.shape, done.shape, texts.shape, best.shape, used.shape,
              (2,)]  # fmt: skip
    dtypes = ["float32", "int32", "int32", "int32", "int32", "float32", "int32", "int64"]
    return serial.kernel(shapes, dtypes, inputs, body, "next_beams")


def best_texts(sums, history, penalty, done, texts, best, used, beams, pad):
    """``texts``, ``best`` and ``used`` when the search has ended, and scratch: the beams of prompts
    that are not ``done`` are hypotheses, too."""

    def body(ins, outs):
        (total, tokens, power, ended, *before), (*after, at) = ins, outs
        kept = _Hypotheses(*after, at, tokens, power, beams, pad)

        def prompt(b):
            kept.copy(b, *before)
            with T.If(ended[b] == 0), T.Then(), T.serial(0, beams) as k:
                kept.add(b, total[b * beams + k], b * beams + k)

        return serial.nest(used.shape, prompt)

    inputs = [sums, history, penalty, done, texts, best, used]
    shapes = [texts.shape, best.shape, used.shape, (1,)]
    return serial.kernel(shapes, ["int32", "float32", "int32", "int64"], inputs, body, "best_texts")


class _Hypotheses:
    """The hypotheses of all prompts, best first; of the same score, earlier ones are before later
    ones. The place where one goes is ``at[0]``."""

    def __init__(self, texts, best, used, at, history, penalty, beams, pad):
        self.texts, self.best, self.used, self.at = texts, best, used, at
        self.history, self.beams, self.pad = history, beams, pad
        length = history.shape[1].astype("float32")
        self.divisor = tirx.power(length, penalty[0].astype("float32"))

    def score(self, total):
        """That of a text as long as the history."""
        return total / self.divisor

    def worst(self, b):
        return self.best[b * self.beams + self.beams - 1]

    def copy(self, b, texts, best, used):
        """Those of the prompt ``b`` are these."""
        T.buffer_store(self.used, used[b], [b])
        with T.serial(0, self.beams) as k:
            n = b * self.beams + k
            T.buffer_store(self.best, best[n], [n])
            with T.serial(0, texts.shape[1]) as t:
                T.buffer_store(self.texts, texts[n, t], [n, t])

    def add(self, b, total, row):
        """A text of the prompt ``b``, ``history[row]``, unless there are better ones."""
        many = self.used[b].astype("int64")
        score = T.bind(self.score(total))
        better = tirx.Not(score <= self.worst(b))
        with T.If(tirx.any(many < self.beams, better)), T.Then():
            T.buffer_store(self.at, tirx.min(many, self.beams - 1), [0])
            more = tirx.min(many + 1, self.beams).astype("int32")
            T.buffer_store(self.used, more, [b])
            with T.serial(0, self.beams - 1) as i:
                n = b * self.beams + self.beams - 1 - i
                here = self.at[0] == self.beams - 1 - i
                serial.when(tirx.all(here, score > self.best[n - 1]), lambda: self._make_room(n))
            place = T.bind(b * self.beams + self.at[0])
            T.buffer_store(self.best, score, [place])
            self._write(place, row)

    def _make_room(self, n):
        """The hypothesis before ``n`` goes there."""
        T.buffer_store(self.best, self.best[n - 1], [n])
        with T.serial(0, self.texts.shape[1]) as t:
            T.buffer_store(self.texts, self.texts[n - 1, t], [n, t])
        T.buffer_store(self.at, self.at[0] - 1, [0])

    def _write(self, place, row):
        length = self.history.shape[1]
        with T.serial(0, self.texts.shape[1]) as t:
            with T.If(t < length):
                with T.Then():
                    T.buffer_store(self.texts, self.history[row, t], [place, t])
                with T.Else():
                    T.buffer_store(self.texts, tirx.const(self.pad, "int32"), [place, t])
