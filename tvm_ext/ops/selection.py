"""Operators whose number of results depends on the data.

Each kernel fills as much as could be needed and says how many entries count.
"""

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from . import serial
from .cast import is_true


def nonzero(x):
    """The places of the elements that are not zero: ``int64[rank, size]`` and ``int64[1]``."""
    rank, size = len(x.shape), tirx.const(1, "int64")
    is_bool = str(x.dtype.dtype) == "bool"
    for extent in x.shape:
        size = size * extent

    def body(ins, outs):
        (source,), (places, count) = ins, outs

        def visit(*i):
            def keep():
                for axis, position in enumerate(i):
                    T.buffer_store(places, position.astype("int64"), [axis, count[0]])
                T.buffer_store(count, count[0] + 1, [0])

            element = source[i]
            serial.when(element if is_bool else is_true(element), keep)

        return tirx.SeqStmt([_zero(count), serial.nest(x.shape, visit)])

    return serial.kernel([(rank, size), (1,)], ["int64", "int64"], [x], body, "nonzero")


def true_positions(condition, extent):
    """Where ``condition`` is true, before ``extent``: ``int64[extent]``, and how many."""

    def body(ins, outs):
        (chosen,), (positions, count) = ins, outs

        def visit(i):
            def keep():
                T.buffer_store(positions, i.astype("int64"), [count[0]])
                T.buffer_store(count, count[0] + 1, [0])

            serial.when(tirx.all(chosen[i], i < extent), keep)

        return tirx.SeqStmt([_zero(count), serial.nest(condition.shape, visit)])

    return serial.kernel([(extent,), (1,)], ["int64", "int64"], [condition], body, "true_positions")


def slice_ranks(x, axis):
    """How many slices along ``axis`` come before each in lexicographic order: ``int64[extent]``.

    Equal slices have equal ranks.
    """
    extent = x.shape[axis]
    rest = [d for k, d in enumerate(x.shape) if k != axis]
    size = tirx.const(1, "int64")
    for dim in rest:
        size = size * dim

    def at(i, flat):
        index = []
        for dim in reversed(rest):
            index.insert(0, tirx.floormod(flat, dim))
            flat = tirx.floordiv(flat, dim)
        return (*index[:axis], i, *index[axis:])

    def body(ins, outs):
        ranks, order = outs  # order: the first difference of two slices decides

        def compare(i, j):
            T.buffer_store(order, tirx.const(0, "int64"), [0])
            with T.serial(0, size) as k:
                a, b = ins[0][at(i, k)], ins[0][at(j, k)]
                sign = tirx.Select(b < a, tirx.const(1, "int64"), tirx.const(-1, "int64"))
                serial.when(
                    tirx.all(order[0] == 0, tirx.Not(a == b)),
                    lambda: T.buffer_store(order, sign, [0]),
                )
            serial.when(order[0] > 0, lambda: T.buffer_store(ranks, ranks[i] + 1, [i]))

        def clear(i):
            T.buffer_store(ranks, tirx.const(0, "int64"), [i])

        return tirx.SeqStmt([serial.nest([extent], clear), serial.nest([extent, extent], compare)])

    return serial.kernel([(extent,), (1,)], ["int64", "int64"], [x], body, "slice_ranks")


def unique_groups(keys, order):
    """Groups of equal ``keys[d]``, ascending; ``order`` sorts them.

    Returns the first place, then the size of each group, the group of each key, and how many
    groups there are: ``int64[d]`` three times, ``int64[1]``.
    """
    (extent,) = keys.shape

    def body(ins, outs):
        (key, sorted_places), (first, counts, inverse, total) = ins, outs

        def visit(k):
            place = sorted_places[k]
            previous = sorted_places[tirx.max(k - 1, 0)]

            def open_group():
                T.buffer_store(first, place, [total[0]])
                T.buffer_store(counts, tirx.const(0, "int64"), [total[0]])
                T.buffer_store(total, total[0] + 1, [0])

            serial.when(tirx.any(k == 0, key[place] != key[previous]), open_group)
            group = total[0] - 1
            T.buffer_store(inverse, group, [place])
            T.buffer_store(counts, counts[group] + 1, [group])
            T.buffer_store(first, tirx.min(first[group], place), [group])

        return tirx.SeqStmt([_zero(total), serial.nest([extent], visit)])

    return serial.kernel(
        [(extent,)] * 3 + [(1,)], ["int64"] * 4, [keys, order], body, "unique_groups"
    )


def by_first_place(first, counts, inverse):
    """The results of ``unique_groups``, the groups in the order of their first places."""
    (extent,) = first.shape

    def body(ins, outs):
        old_first, old_counts, old_group = ins
        new_first, new_counts, new_inverse, label, total = outs

        def visit(i):
            group = old_group[i]

            def number():
                T.buffer_store(label, total[0], [group])
                T.buffer_store(new_first, i.astype("int64"), [total[0]])
                T.buffer_store(new_counts, old_counts[group], [total[0]])
                T.buffer_store(total, total[0] + 1, [0])

            serial.when(old_first[group] == i, number)
            T.buffer_store(new_inverse, label[group], [i])

        return tirx.SeqStmt([_zero(total), serial.nest([extent], visit)])

    return serial.kernel(
        [(extent,)] * 4 + [(1,)], ["int64"] * 5, [first, counts, inverse], body, "by_first_place"
    )


def _zero(count):
    return serial.nest([1], lambda i: T.buffer_store(count, tirx.const(0, "int64"), [i]))


def take_first(x, positions, axis, count):
    """``y[..., i, ...] = x[..., positions[i], ...]`` for ``i < count`` along ``axis``."""
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return te.compute(
        shape, lambda *i: x(*i[:axis], positions[i[axis]], *i[axis + 1 :]), "take_first"
    )
