"""A binary heap in a row of a buffer: the least entry is at its front.

Entries are ``int64`` that order by value, then by place: the first of equals is the largest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from .ordering import total_key

__all__ = ["WIDEST", "Heap", "entry", "order", "place_of", "rank_of"]

#: Types of so many bits at most have entries.
WIDEST = 32
_PLACES = (1 << WIDEST) - 1
# Of what sinks: the node it is compared at, none once it has stopped, and the one it leaves empty.
_AT, _HOLE = 0, 1


def order(value: tirx.Expr, nan_is_largest: bool = True) -> tirx.Expr:
    """An ``int32`` that compares as ``value`` does; zeros are equal."""
    return total_key(value, nan_is_largest=nan_is_largest).astype("int32")


def entry(rank: tirx.Expr, place: tirx.Expr) -> tirx.Expr:
    """What the heap keeps of ``rank``, an ``int32``, at ``place``, an ``int64`` below 2**32."""
    key = tirx.shift_left(rank.astype("int64"), _int64(WIDEST))
    return tirx.bitwise_or(key, _PLACES - place)


def rank_of(key: tirx.Expr) -> tirx.Expr:
    """The ``rank`` of an entry."""
    return tirx.shift_right(key, _int64(WIDEST)).astype("int32")


def place_of(key: tirx.Expr) -> tirx.Expr:
    """The ``place`` of an entry."""
    return _PLACES - tirx.bitwise_and(key, _int64(_PLACES))


@dataclass(frozen=True)
class Heap:
    """The elements ``buffer[*row, :]``, of ``levels`` levels at most.

    ``node`` is scratch, ``int64[2]``.
    """

    buffer: tirx.Var
    row: Sequence[tirx.Expr]
    node: tirx.Var
    levels: int

    def __getitem__(self, place: tirx.Expr | int) -> tirx.Expr:
        return self.buffer[(*self.row, place)]

    def store(self, place: tirx.Expr | int, value: tirx.Expr) -> None:
        T.buffer_store(self.buffer, value, [*self.row, place])

    def build(self, count: tirx.Expr) -> None:
        """Order the first ``count`` entries."""
        half = tirx.floordiv(count, 2)
        with T.serial(0, half) as i:
            self.sink(half - 1 - i, count)

    def swap(self, i: tirx.Expr, j: tirx.Expr) -> None:
        first, second = T.bind(self[i]), T.bind(self[j])
        self.store(i, second)
        self.store(j, first)

    def sink(self, start: tirx.Expr, count: tirx.Expr) -> None:
        """Let the entry at ``start`` sink, among ``count``, until none below it is less."""
        node = self.node
        moved = T.bind(self[start])
        T.buffer_store(node, start, [_AT])
        T.buffer_store(node, start, [_HOLE])
        with T.serial(0, self.levels):
            left = node[_AT] * 2 + 1
            with T.If(left < count), T.Then():
                right = tirx.min(left + 1, count - 1)
                lower = T.bind(tirx.Select(self[right] < self[left], right, left))
                less = T.bind(self[lower])
                with T.If(less < moved):
                    with T.Then():
                        self.store(node[_AT], less)
                        T.buffer_store(node, lower, [_AT])
                        T.buffer_store(node, lower, [_HOLE])
                    with T.Else():
                        T.buffer_store(node, count, [_AT])
        self.store(node[_HOLE], moved)


def _int64(value: int) -> tirx.Expr:
    return tirx.const(value, "int64")
