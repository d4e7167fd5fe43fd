"""The largest elements of rows, of which few are wanted.

The largest of each block of elements are found first, at the speed of an integer maximum, which
vectorises. As many blocks as elements are wanted then give a bound that enough elements reach, and
only blocks that reach it are looked at again. A heap keeps the best of either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

from tvm import te, tirx
from tvm.ir import Range
from tvm.tirx.script.builder import ir as T

from . import heap, serial
from .elementwise import dtype_of
from .heap import Heap

__all__ = ["top_k"]

# Elements of a block. Twice as many blocks as are wanted make a good bound.
_BLOCKS = 64, 32, 16, 8, 1


def top_k(x: te.Tensor, axis: int, k: int, largest: bool) -> list[te.Tensor]:
    """Values and int64 places of the ``k`` largest, or smallest, elements of ``x`` along ``axis``,
    in order; NaN is the most extreme.

    Elements are floats or signed integers of up to :data:`heap.WIDEST` bits; ``0 < k <= extent``.
    """
    rows = [*x.shape[:axis], *x.shape[axis + 1 :]] or [_int64(1)]

    def body(inputs, outputs):
        (source,), (values, places) = inputs, outputs

        def each_row(*loops):
            with T.sblock("rows"):
                row = [T.axis.spatial(Range(0, n), i) for n, i in zip(rows, loops, strict=True)]
                search = _Search(x, axis, k, largest, row)
                T.reads(source[tuple(search.at(slice(0, search.extent)))])
                written = tuple(search.at(slice(0, k)))
                T.writes(values[written], places[written])
                with T.sblock("heap"):
                    search.emit(values, places)

        return serial.nest(rows, each_row)

    shapes = [[*x.shape[:axis], k, *x.shape[axis + 1 :]]] * 2
    # The block around an extern is the function's root; schedules look it up by that name.
    return te.extern(shapes, [x], body, name="root", dtype=[dtype_of(x), "int64"])


@dataclass(frozen=True)
class _Search:
    """What is emitted for a row of ``x``: all of ``axis``, at ``row`` along the other axes."""

    x: te.Tensor
    axis: int
    k: int
    largest: bool
    row: Sequence[tirx.Expr]

    @property
    def extent(self) -> int:
        """The elements of the row."""
        return int(self.x.shape[self.axis])

    @property
    def block(self) -> int:
        """The elements of a block."""
        return next(n for n in _BLOCKS if self.extent >= (2 if n > 8 else 1) * n * self.k)

    @property
    def blocks(self) -> int:
        """The blocks of the row; the last one may hold fewer elements."""
        return -(-self.extent // self.block)

    def at(self, t):
        """The indices of element ``t``."""
        return [*self.row[: self.axis], t, *self.row[self.axis :]] if len(self.x.shape) > 1 else [t]

    def rank(self, t):
        """What is large of elements that are wanted, as ``int32``."""
        key = heap.order(self.x(*self.at(t)), nan_is_largest=self.largest)
        return key if self.largest else tirx.bitwise_not(key)

    def emit(self, values, places):
        """The row of both results."""
        kept = T.sblock_alloc_buffer([self.k], "int64")
        node = T.sblock_alloc_buffer([2], "int64", scope="local")
        count = T.sblock_alloc_buffer([1], "int64", scope="local")
        maxima = T.sblock_alloc_buffer([self.blocks], "int32")
        best = Heap(kept, (), node, max(1, ceil(log2(self.k + 1))))
        self.find_maxima(maxima)
        self.best_blocks(best, maxima)
        self.best_elements(best, count, maxima)
        self.sort(best)
        with T.serial(0, _int64(self.k)) as j:
            place = heap.place_of(best[j])
            T.buffer_store(values, self.x(*self.at(place)), self.at(j))
            T.buffer_store(places, place, self.at(j))

    def find_maxima(self, maxima):
        """The largest rank of each block."""
        block = self.block
        whole, rest = divmod(self.extent, block)
        for first, number, size in (0, whole, block), (whole, self.blocks - whole, rest):
            with T.serial(0, _int64(number)) as b:
                T.buffer_store(maxima, tirx.min_value("int32"), [first + b])
                with T.serial(0, _int64(size)) as t:
                    largest = tirx.max(maxima[first + b], self.rank((first + b) * block + t))
                    T.buffer_store(maxima, largest, [first + b])

    def best_blocks(self, best, maxima):
        """The heap of as many blocks as elements are wanted."""
        k = _int64(self.k)
        with T.serial(0, k) as b:
            best.store(b, heap.entry(maxima[b], b))
        best.build(k)
        with T.serial(k, _int64(self.blocks)) as b:
            with T.If(maxima[b] > heap.rank_of(best[0])), T.Then():
                best.store(0, heap.entry(maxima[b], b))
                best.sink(_int64(0), k)

    def best_elements(self, best, count, maxima):
        """The heap of elements; as many as are wanted reach the least of the best blocks."""
        bound = T.bind(heap.rank_of(best[0]))
        T.buffer_store(count, _int64(0), [0])
        with T.serial(0, _int64(self.blocks)) as b:
            more = tirx.any(count[0] < self.k, maxima[b] > heap.rank_of(best[0]))
            with T.If(tirx.all(maxima[b] >= bound, more)), T.Then():
                first = b * self.block
                with T.serial(0, tirx.min(_int64(self.block), self.extent - first)) as t:
                    own = T.bind(self.rank(first + t))
                    with T.If(own >= bound), T.Then():
                        self.take(best, count, own, first + t)

    def take(self, best, count, own, place):
        """An element joins the heap, in place of its least one where the heap is full."""
        k = _int64(self.k)
        with T.If(count[0] < k):
            with T.Then():
                best.store(count[0], heap.entry(own, place))
                T.buffer_store(count, count[0] + 1, [0])
                with T.If(count[0].equal(k)), T.Then():
                    best.build(k)
            with T.Else(), T.If(own > heap.rank_of(best[0])), T.Then():
                best.store(0, heap.entry(own, place))
                best.sink(_int64(0), k)

    def sort(self, best):
        """The least goes behind the others, again and again."""
        with T.serial(0, _int64(self.k - 1)) as i:
            last = self.k - 1 - i
            best.swap(_int64(0), last)
            best.sink(_int64(0), last)


def _int64(value):
    return tirx.const(value, "int64")
