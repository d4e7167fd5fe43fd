"""The largest elements of rows, of which few are wanted: a heap of those seen so far.

Blocks of elements that hold nothing above the least of the heap are passed by at the speed of an
integer maximum, which vectorises. A key of 64 bits orders by value, then by place, the first of
equals in front.
"""

from contextlib import ExitStack
from math import ceil, log2

from tvm import te, tirx
from tvm.ir import Range
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from .elementwise import dtype_of
from .ordering import to_key

__all__ = ["WIDEST", "top_k"]

#: Types of so many bits at most have keys.
WIDEST = 32
# Elements of which the maximum is asked at once.
_BLOCK = 64
_PLACES = (1 << WIDEST) - 1
# Of what sinks: the node it is compared at, none once it has stopped, and the one it leaves empty.
_AT, _HOLE = 0, 1


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

    def order(row, t):
        """What is large of elements that are wanted, as ``int32``."""
        value = x(*at(row, t))
        if "float" in dtype_of(x):  # both zeros are equal
            zero = tirx.const(0, dtype_of(x))
            value = tirx.Select(value.equal(zero), zero, value)
        key = to_key(value, nan_is_largest=largest).astype("int32")
        return key if largest else tirx.bitwise_not(key)

    def entry(row, t):
        key = tirx.shift_left(order(row, t).astype("int64"), _int64(WIDEST))
        return tirx.bitwise_or(key, _PLACES - t)

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
                    heap = T.sblock_alloc_buffer([k], "int64")
                    node = T.sblock_alloc_buffer([2], "int64", scope="local")
                    most = T.sblock_alloc_buffer([1], "int32", scope="local")
                    _fill(heap, node, row)
                    _pass_rest(heap, node, most, row)
                    _sort(heap, node)
                    with T.serial(0, _int64(k)) as j:
                        place = _PLACES - tirx.bitwise_and(heap[j], _int64(_PLACES))
                        T.buffer_store(values, x(*at(row, place)), at(row, j))
                        T.buffer_store(places, place, at(row, j))
        return builder.get()

    def _fill(heap, node, row):
        with T.serial(0, _int64(k)) as t:
            T.buffer_store(heap, entry(row, t), [t])
        with T.serial(0, _int64(k // 2)) as i:
            _sink(heap, node, k // 2 - 1 - i, _int64(k))

    def _pass_rest(heap, node, most, row):
        """Take what is above the least that is kept, at the root of the heap."""
        with T.serial(0, tirx.floordiv(extent - k + (_BLOCK - 1), _BLOCK)) as block:
            first = block * _BLOCK + k
            size = tirx.min(_int64(_BLOCK), extent - first)
            T.buffer_store(most, tirx.min_value("int32"), [0])
            with T.serial(0, size) as t:
                T.buffer_store(most, tirx.max(most[0], order(row, first + t)), [0])
            with T.If(most[0] > _least(heap)), T.Then(), T.serial(0, size) as t:
                with T.If(order(row, first + t) > _least(heap)), T.Then():
                    T.buffer_store(heap, entry(row, first + t), [0])
                    _sink(heap, node, _int64(0), _int64(k))

    def _sort(heap, node):
        """The least goes behind the others, again and again."""
        with T.serial(0, _int64(k - 1)) as i:
            last = k - 1 - i
            _swap(heap, _int64(0), last)
            _sink(heap, node, _int64(0), last)

    def _sink(heap, node, start, count):
        """Let the entry at ``start`` sink until none below it is less."""
        entry = T.bind(heap[start])
        T.buffer_store(node, start, [_AT])
        T.buffer_store(node, start, [_HOLE])
        with T.serial(0, levels):
            left = node[_AT] * 2 + 1
            with T.If(left < count), T.Then():
                right = tirx.min(left + 1, count - 1)
                lower = T.bind(tirx.Select(heap[right] < heap[left], right, left))
                less = T.bind(heap[lower])
                with T.If(less < entry):
                    with T.Then():
                        T.buffer_store(heap, less, [node[_AT]])
                        T.buffer_store(node, lower, [_AT])
                        T.buffer_store(node, lower, [_HOLE])
                    with T.Else():
                        T.buffer_store(node, count, [_AT])
        T.buffer_store(heap, entry, [node[_HOLE]])

    shapes = [[*x.shape[:axis], k, *x.shape[axis + 1 :]]] * 2
    # The block around an extern is the function's root; schedules look it up by that name.
    return te.extern(shapes, [x], body, name="root", dtype=[dtype_of(x), "int64"])


def _least(heap):
    return tirx.shift_right(heap[0], _int64(WIDEST)).astype("int32")


def _swap(heap, i, j):
    first, second = T.bind(heap[i]), T.bind(heap[j])
    T.buffer_store(heap, second, [i])
    T.buffer_store(heap, first, [j])


def _int64(value):
    return tirx.const(value, "int64")
