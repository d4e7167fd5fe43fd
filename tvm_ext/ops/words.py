"""Operators on words and on pairs of sequences, as onnxruntime has them."""

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from . import serial

__all__ = ["agreement", "suffix_match", "time_warping", "word_embedding"]


def word_embedding(words, weights, bias, characters):
    """The largest of ``tanh`` of a convolution over the characters of a word: ``[W, M]``.

    ``words[W, L]`` (int32) are numbers of ``characters[V, E]``, 0 none; ``weights[M, 1, K, E]``,
    ``bias[M]``. Windows end with the word, the first one in any case; a word that begins with none
    is 0.
    """
    count, length = words.shape
    filters, _, width, size = weights.shape
    c = te.reduce_axis((0, length), "c")
    zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")
    letters = te.compute(
        (count,), lambda w: te.sum(tirx.Select(words[w, c] > 0, one, zero), axis=c), "letters"
    )
    k, e = te.reduce_axis((0, width), "k"), te.reduce_axis((0, size), "e")

    def term(w, start, m):
        row = tirx.max(tirx.min(words[w, start + k], characters.shape[0] - 1), 0)
        return te.sum(characters[row, e] * weights[m, 0, k, e], axis=[k, e])

    windows = te.compute((count, length - width + 1, filters), term, "windows")
    start = te.reduce_axis((0, length - width + 1), "start")

    def largest(w, m):
        inside = start <= tirx.max(letters[w].astype("int64") - width, 0)
        value = tirx.Select(
            inside, te.tanh(windows[w, start, m] + bias[m]), te.min_value("float32")
        )
        return te.max(value, axis=start)

    top = te.compute((count, filters), largest, "largest")

    def element(w, m):
        return tirx.Select(words[w, 0] > 0, top[w, m], tirx.const(0.0, "float32"))

    return te.compute(top.shape, element, "word_embedding")


def time_warping(costs):
    """A cheap path through ``costs[M, N]`` from its first element to its last, one row or column or
    both on at each step.

    Of the three steps that lead to an element the strictly cheapest one is taken, or else the one
    along the row, as in onnxruntime. Returns the places on the path, ``int32[2, M + N]``, at the
    end of it; how many there are, ``int64[1]``; and scratch: the costs of paths, ``float32[M + 1,
    N + 1]``, and the place that the search has come to and its last step, ``int64[4]``.
    """
    rows, columns = costs.shape
    longest = rows + columns
    shapes = [(2, longest), (1,), (rows + 1, columns + 1), (4,)]

    def body(ins, outs):
        (cost,), (path, count, total, at) = ins, outs

        def ways(i, j):
            return total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]

        def both(a, b, c):
            return tirx.all(a < b, a < c)

        def begin(i, j):
            far = tirx.const(float("inf"), "float32")
            nothing = tirx.const(0.0, "float32")
            T.buffer_store(total, tirx.Select(tirx.all(i == 0, j == 0), nothing, far), [i, j])

        def extend(row, column):
            a, b, c = ways(row + 1, column + 1)
            least = tirx.Select(both(a, b, c), a, tirx.Select(both(b, a, c), b, c))
            T.buffer_store(total, least + cost[row, column], [row + 1, column + 1])

        def start(k):
            T.buffer_store(at, tirx.Select(k == 0, rows, columns).astype("int64"), [k])
            T.buffer_store(count, tirx.const(0, "int64"), [0])

        def back(k):
            serial.when(tirx.all(at[0] > 0, at[1] > 0), lambda: step(longest - 1 - k))

        def step(place):
            one, none = tirx.const(1, "int64"), tirx.const(0, "int64")
            for axis in range(2):
                T.buffer_store(path, (at[axis] - 1).astype("int32"), [axis, place])
            T.buffer_store(count, count[0] + 1, [0])
            a, b, c = ways(at[0], at[1])
            T.buffer_store(at, tirx.Select(both(b, a, c), none, one), [2])  # columns back
            T.buffer_store(at, tirx.Select(tirx.any(both(a, b, c), both(b, a, c)), one, none), [3])
            for axis in range(2):
                T.buffer_store(at, at[axis] - at[3 - axis], [axis])

        return tirx.SeqStmt([
            serial.nest(total.shape, begin), serial.nest(costs.shape, extend),
            serial.nest([2], start), serial.nest([longest], back),
        ])  # fmt: skip

    return serial.kernel(
        shapes, ["int32", "int64", "float32", "int64"], [costs], body, "time_warping"
    )


def agreement(source, start, predicted):
    """How many of ``predicted[P]`` but the last agree with ``source[S]`` from ``start[1]`` on until
    one does not: ``int64[1]``."""
    i = te.reduce_axis((0, predicted.shape[0] - 1), "i")
    most = predicted.shape[0] - 1

    def differs(_):
        place = tirx.max(tirx.min(i + start[0], source.shape[0] - 1), 0)
        return te.min(tirx.Select(predicted[i] == source[place], most, i), axis=i)

    found = te.compute((1,), differs, "first_difference")
    return te.compute((1,), lambda k: tirx.min(found[k], most), "agreement")


def suffix_match(source, tokens, shape, least, most):
    """Where ``source[S]`` goes on after the last tokens: int64 of one element, ``shape``.

    The last ``least`` to ``most`` of ``tokens[T]`` are looked for in turn, as long as they are
    found; -1 where the last ones found are there more than once.
    """
    size, length = source.shape[0], tokens.shape[0]
    far = tirx.const(1 << 40, "int64")

    def occurrences(n):
        p = te.reduce_axis((0, tirx.max(size - n + 1, 0)), "p")

        def here(fold, value, otherwise):
            same = [source[p + q] == tokens[tirx.max(length - n + q, 0)] for q in range(n)]
            return fold(tirx.Select(tirx.all(*same), value(p), otherwise), axis=p)

        one, none = tirx.const(1, "int64"), tirx.const(0, "int64")
        first = te.compute((1,), lambda _: here(te.min, lambda p: p, far), f"first_{n}")
        count = te.compute((1,), lambda _: here(te.sum, lambda p: one, none), f"count_{n}")
        return first, count

    grams = {n: occurrences(n) for n in range(least, most + 1)}

    def element(*_):
        index, going = tirx.const(-1, "int64"), tirx.const(True, "bool")
        for n, (first, count) in grams.items():
            going = tirx.all(going, n <= length, count[0] > 0)
            behind = first[0] + n
            alone = tirx.any(behind >= size, count[0] == 1)
            index = tirx.Select(going, tirx.Select(alone, behind, tirx.const(-1, "int64")), index)
            going = tirx.all(going, behind < size)
        return index

    return te.compute(shape, element, "suffix_match")
