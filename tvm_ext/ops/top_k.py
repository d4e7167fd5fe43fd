"""The largest elements of rows, of which few are wanted.

The largest of each block of elements are found first, at the speed of an integer maximum, which
vectorises. As many blocks as elements are wanted then give a bound that enough elements reach, and
only blocks that reach it are looked at again. A heap keeps the best of either.
"""

from contextlib import ExitStack
from math import ceil, log2

from tvm import te, tirx
from tvm.ir import Range
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from . import heap
from .elementwise import dtype_of
from .heap import Heap

__all__ = ["top_k"]

# Elements of a block. Twice as many blocks as are wanted make a good bound.
_BLOCKS = 64, 32, 16, 8, 1


def top_k(x: te.Tensor, axis: int, k: int, largest: bool) -> list[te.Tensor]:
    """Values and int64 places of the ``k`` largest, or smallest, elements of ``x`` along ``axis``,
    in order; NaN is the most extreme.

    Elements are floats or signed integers of up to :data:`WIDEST` bits; ``0 < k <= extent``.
    """
    extent = int(x.shape[axis])
    rows = [*x.shape[:axis], *x.shape[axis + 1 :]] or [_int64(1)]
    levels = max(1, ceil(log2(k + 1)))
    block = next(n for n in _BLOCKS if extent >= (2 if n > 8 else 1) * n * k)
    blocks = -(-extent // block)

    def at(row, t):
        return [*row[:axis], t, *row[axis:]] if len(x.shape) > 1 else [t]

    def rank(row, t):
        """What is large of elements that are wanted, as ``int32``."""
        key = heap.order(x(*at(row, t)), nan_is_largest=largest)
        return key if largest else tirx.bitwise_not(key)

    def body(inputs, outputs):
        (source,), (values, places) = inputs, outputs
        with IRBuilder() as builder:
            with ExitStack() as nest:
                loops = [nest.enter_context(T.serial(0, size)) for size in rows]
                nest.enter_context(T.sblock("rows"))
                row = [T.axis.spatial(Range(0, n), i) for n, i in zip(rows, loops, strict=True)]
                T.reads(source[tuple(at(row, slice(0, extent)))])
                written = tuple(at(row, slice(0, k)))
                T.writes(values[written], places[written])
                with T.sblock("heap"):
                    kept = T.sblock_alloc_buffer([k], "int64")
                    node = T.sblock_alloc_buffer([2], "int64", scope="local")
                    count = T.sblock_alloc_buffer([1], "int64", scope="local")
                    maxima = T.sblock_alloc_buffer([blocks], "int32")
                    best = Heap(kept, (), node, levels)
                    _find_maxima(maxima, row)
                    _best_blocks(best, maxima)
                    _best_elements(best, count, maxima, row)
                    _sort(best)
                    with T.serial(0, _int64(k)) as j:
                        place = heap.place_of(best[j])
                        T.buffer_store(values, x(*at(row, place)), at(row, j))
                        T.buffer_store(places, place, at(row, j))
        return builder.get()

    def _find_maxima(maxima, row):
        whole = extent // block
        for first, number, size in (0, whole, block), (whole, blocks - whole, extent % block):
            with T.serial(0, _int64(number)) as b:
                T.buffer_store(maxima, tirx.min_value("int32"), [first + b])
                with T.serial(0, _int64(size)) as t:
                    largest = tirx.max(maxima[first + b], rank(row, (first + b) * block + t))
                    T.buffer_store(maxima, largest, [first + b])

    def _best_blocks(best, maxima):
        """The heap of as many blocks as elements are wanted."""
        with T.serial(0, _int64(k)) as b:
            best.store(b, heap.entry(maxima[b], b))
        best.build(_int64(k))
        with T.serial(_int64(k), _int64(blocks)) as b:
            with T.If(maxima[b] > heap.rank_of(best[0])), T.Then():
                best.store(0, heap.entry(maxima[b], b))
                best.sink(_int64(0), _int64(k))

    def _best_elements(best, count, maxima, row):
        """The heap of elements; as many as are wanted reach the least of the best blocks."""
        bound = T.bind(heap.rank_of(best[0]))
        T.buffer_store(count, _int64(0), [0])
        with T.serial(0, _int64(blocks)) as b:
            more = tirx.any(count[0] < k, maxima[b] > heap.rank_of(best[0]))
            with T.If(tirx.all(maxima[b] >= bound, more)), T.Then():
                first = b * block
                with T.serial(0, tirx.min(_int64(block), extent - first)) as t:
                    own = T.bind(rank(row, first + t))
                    with T.If(own >= bound), T.Then():
                        _take(best, count, own, first + t)

    def _take(best, count, own, place):
        with T.If(count[0] < k):
            with T.Then():
                best.store(count[0], heap.entry(own, place))
                T.buffer_store(count, count[0] + 1, [0])
                with T.If(count[0].equal(_int64(k))), T.Then():
                    best.build(_int64(k))
            with T.Else(), T.If(own > heap.rank_of(best[0])), T.Then():
                best.store(0, heap.entry(own, place))
                best.sink(_int64(0), _int64(k))

    def _sort(best):
        """The least goes behind the others, again and again."""
        with T.serial(0, _int64(k - 1)) as i:
            last = k - 1 - i
            best.swap(_int64(0), last)
            best.sink(_int64(0), last)

    shapes = [[*x.shape[:axis], k, *x.shape[axis + 1 :]]] * 2
    # The block around an extern is the function's root; schedules look it up by that name.
    return te.extern(shapes, [x], body, name="root", dtype=[dtype_of(x), "int64"])


def _int64(value):
    return tirx.const(value, "int64")
