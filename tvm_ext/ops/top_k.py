"""The largest elements of rows, of which few are wanted: a heap of those seen so far.

Blocks of elements that hold nothing above the least of the heap are passed by at the speed of an
integer maximum, which vectorises.
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

# Elements of which the maximum is asked at once.
_BLOCK = 64


def top_k(x: te.Tensor, axis: int, k: int, largest: bool) -> list[te.Tensor]:
    """Values and int64 places of the ``k`` largest, or smallest, elements of ``x`` along ``axis``,
    in order; NaN is the most extreme.

    Elements are floats or signed integers of up to :data:`WIDEST` bits; ``0 < k <= extent``.
    """
    extent = x.shape[axis]
    rows = [*x.shape[:axis], *x.shape[axis + 1 :]] or [_int64(1)]
    levels = max(1, ceil(log2(k + 1)))

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
                    most = T.sblock_alloc_buffer([1], "int32", scope="local")
                    best = Heap(kept, (), node, levels)
                    with T.serial(0, _int64(k)) as t:
                        best.store(t, heap.entry(rank(row, t), t))
                    best.build(_int64(k))
                    _pass_rest(best, most, row)
                    _sort(best)
                    with T.serial(0, _int64(k)) as j:
                        place = heap.place_of(best[j])
                        T.buffer_store(values, x(*at(row, place)), at(row, j))
                        T.buffer_store(places, place, at(row, j))
        return builder.get()

    def _pass_rest(best, most, row):
        """Take what is above the least that is kept, at the root of the heap."""
        least = heap.rank_of(best[0])
        with T.serial(0, tirx.floordiv(extent - k + (_BLOCK - 1), _BLOCK)) as block:
            first = block * _BLOCK + k
            size = tirx.min(_int64(_BLOCK), extent - first)
            T.buffer_store(most, tirx.min_value("int32"), [0])
            with T.serial(0, size) as t:
                T.buffer_store(most, tirx.max(most[0], rank(row, first + t)), [0])
            with T.If(most[0] > least), T.Then(), T.serial(0, size) as t:
                with T.If(rank(row, first + t) > least), T.Then():
                    best.store(0, heap.entry(rank(row, first + t), first + t))
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
