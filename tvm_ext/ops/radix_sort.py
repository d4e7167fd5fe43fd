"""The order of rows, by counting the digits of integers that sort as their elements do.

A pass over a row puts it in the order of one digit and keeps the order of those that share it, so
one pass for each digit, from the lowest, sorts it. Where the first elements alone are wanted, the
highest digit is counted first, and only what may be among them is sorted.
"""

from contextlib import ExitStack
from dataclasses import dataclass

from tvm import te, tirx
from tvm.ir import Range
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from .elementwise import dtype_of
from .ordering import total_key

__all__ = ["argsort", "sort_leading"]

# Bits of a digit. The counters of one stay in L1; in short rows they would outweigh the elements.
_BITS, _SHORT_BITS, _SHORT = 11, 8, 3000
# Elements of a block, of which the least is found at the speed of an integer minimum.
_BLOCK = 16


def sort_leading(x: te.Tensor, axis: int, k: int | None, largest: bool) -> list[te.Tensor]:
    """Values and int64 places of the ``k`` largest, or smallest, elements of ``x`` along ``axis``.

    In order, the first of equals first; NaN is the most extreme. ``0 < k <= extent``, None is all.
    Extents may be symbolic.
    """
    return _sorted(x, axis, k, largest, [dtype_of(x), "int64"])


def argsort(x: te.Tensor, axis: int, largest: bool, dtype: str) -> te.Tensor:
    """The places of the elements of ``x`` along ``axis`` in their order, in type ``dtype``."""
    return _sorted(x, axis, None, largest, [dtype])


def _sorted(x, axis, k, largest, dtypes):
    extent = x.shape[axis]
    kept = extent if k is None else k
    rows = [*x.shape[:axis], *x.shape[axis + 1 :]] or [_int64(1)]

    def at(row, t):
        return [*row[:axis], t, *row[axis:]] if len(x.shape) > 1 else [t]

    def key(row, t):
        """An integer of 32 or 64 bits, of which the least is wanted first."""
        rank = total_key(x(*at(row, t)), nan_is_largest=largest)
        rank = rank.astype("int64" if "64" in dtype_of(rank) else "int32")
        return tirx.bitwise_not(rank) if largest else rank

    def body(inputs, outputs):
        with IRBuilder() as builder:
            with ExitStack() as nest:
                loops = [nest.enter_context(T.serial(0, size)) for size in rows]
                nest.enter_context(T.sblock("rows"))
                row = [T.axis.spatial(Range(0, n), i) for n, i in zip(rows, loops, strict=True)]
                T.reads(inputs[0][tuple(at(row, slice(0, extent)))])
                T.writes(*(out[tuple(at(row, slice(0, kept)))] for out in outputs))
                with T.sblock("sort"):
                    order = _Row.of(extent, lambda t: key(row, t))
                    order.fill()
                    if k is None or _is_most(k, extent):
                        order.take_all()
                    else:
                        order.select(k)
                    with T.If(order.number[0] > 1), T.Then():
                        order.sort()
                    with T.serial(0, kept) as j:
                        place = T.bind(order.places[order.side[0], j])
                        if len(dtypes) > 1:
                            T.buffer_store(outputs[0], x(*at(row, place)), at(row, j))
                        T.buffer_store(outputs[-1], place.astype(dtypes[-1]), at(row, j))
        return builder.get()

    shapes = [[*x.shape[:axis], kept, *x.shape[axis + 1 :]]] * len(dtypes)
    # The block around an extern is the function's root; schedules look it up by that name.
    return te.extern(shapes, [x], body, name="root", dtype=dtypes)


def _is_most(k, extent):
    """Whether to look for those that are wanted is as much work as to sort all."""
    return isinstance(extent, tirx.IntImm) and 2 * k > int(extent)


@dataclass(frozen=True)
class _Row:
    """The keys and places of a row, in two arrays each, between which they go to and fro.

    Attributes:
        extent: of the row.
        key: place -> its key, the least of which comes first.
        keys, places: ``[2, extent]``.
        counts: of each digit of each pass.
        side: in which array they are.
        number: how many there are.
        least: the least key of some.
        bits: of a digit.
    """

    extent: tirx.Expr
    key: object
    keys: tirx.Var
    places: tirx.Var
    counts: tirx.Var
    side: tirx.Var
    number: tirx.Var
    least: tirx.Var
    bits: int

    @classmethod
    def of(cls, extent, key):
        dtype = dtype_of(key(_int64(0)))
        short = isinstance(extent, tirx.IntImm) and int(extent) < _SHORT
        bits = _SHORT_BITS if short else _BITS
        passes = -(-int(dtype.removeprefix("int")) // bits)
        return cls(
            extent,
            key,
            T.sblock_alloc_buffer([2, extent], dtype),
            T.sblock_alloc_buffer([2, extent], "int64"),
            T.sblock_alloc_buffer([passes, 1 << bits], "int64"),
            T.sblock_alloc_buffer([1], "int64", scope="local"),
            T.sblock_alloc_buffer([1], "int64", scope="local"),
            T.sblock_alloc_buffer([1], dtype, scope="local"),
            bits,
        )

    @property
    def passes(self):
        return int(self.counts.shape[0])

    def fill(self):
        """The keys of all elements, in the order of their places."""
        _store(self.side, 0)
        _store(self.number, self.extent)
        with T.serial(0, self.extent) as i:
            T.buffer_store(self.keys, self._turned(self.key(i)), [0, i])

    def take_all(self):
        with T.serial(0, self.extent) as i:
            T.buffer_store(self.places, i.astype("int64"), [0, i])

    def select(self, k):
        """Take the first ``k``, and what the highest digit does not tell from them.

        Where there are enough blocks of elements, the least of each are counted: as many of these
        as are wanted tell which digits, and other blocks need no second look.
        """
        highest = self.passes - 1
        blocks = tirx.floordiv(self.extent, _BLOCK)
        enough = blocks >= 2 * k
        with T.If(enough), T.Then():
            self._find_least(blocks)
            _store(self.side, 1)
            _store(self.number, blocks)
        self._count([highest])
        _store(self.number, 0)
        _store(self.side, 0)  # the first digit beyond those that are wanted
        with T.serial(0, 1 << self.bits) as digit:
            with T.If(self.number[0] < k), T.Then():
                _store(self.number, self.number[0] + self.counts[highest, digit])
                _store(self.side, digit + 1)
        beyond = T.bind(self.side[0])
        _store(self.side, 0)
        _store(self.number, 0)
        with T.serial(0, blocks) as b:
            near = self._digit(self.keys[1, b], highest) < beyond
            with T.If(tirx.any(tirx.Not(enough), near)), T.Then():
                with T.serial(0, _BLOCK) as t:
                    self._take(b * _BLOCK + t, beyond)
        with T.serial(blocks * _BLOCK, self.extent) as i:
            self._take(i, beyond)

    def _find_least(self, blocks):
        """The least key of each block, where keys are put that have been sorted once."""
        with T.serial(0, blocks) as b:
            T.buffer_store(self.least, tirx.max_value(dtype_of(self.least[0])), [0])
            with T.serial(0, _BLOCK) as t:
                key = self._turned(self.keys[0, b * _BLOCK + t])
                T.buffer_store(self.least, tirx.min(self.least[0], key), [0])
            T.buffer_store(self.keys, self._turned(self.least[0]), [1, b])

    def _take(self, i, beyond):
        """Store an element, and the next over it if it is left out: there is no branch."""
        key = T.bind(self.keys[0, i])
        T.buffer_store(self.keys, key, [0, self.number[0]])
        T.buffer_store(self.places, i.astype("int64"), [0, self.number[0]])
        wanted = self._digit(key, self.passes - 1) < beyond
        _store(self.number, self.number[0] + wanted.astype("int64"))

    def sort(self):
        self._count(range(self.passes))
        for step in range(self.passes):
            source = T.bind(self.side[0])
            shared = T.bind(self.counts[step, self._digit(self.keys[source, 0], step)])
            with T.If(shared < self.number[0]), T.Then():
                self._place(step, source)

    def _place(self, step, source):
        """One pass: each behind those with a lower digit, and with its digit before it."""
        _store(self.side, 0)
        with T.serial(0, 1 << self.bits) as digit:
            count = T.bind(self.counts[step, digit])
            T.buffer_store(self.counts, self.side[0], [step, digit])
            _store(self.side, self.side[0] + count)
        with T.serial(0, self.number[0]) as i:
            key = T.bind(self.keys[source, i])
            digit = T.bind(self._digit(key, step))
            target = T.bind(self.counts[step, digit])
            T.buffer_store(self.keys, key, [1 - source, target])
            T.buffer_store(self.places, self.places[source, i], [1 - source, target])
            T.buffer_store(self.counts, target + 1, [step, digit])
        _store(self.side, 1 - source)

    def _count(self, steps):
        """Count the digits of some passes in one: each increment waits for the last of its own."""
        for step in steps:
            with T.serial(0, 1 << self.bits) as digit:
                T.buffer_store(self.counts, _int64(0), [step, digit])
        with T.serial(0, self.number[0]) as i:
            key = T.bind(self.keys[self.side[0], i])
            for step in steps:
                digit = T.bind(self._digit(key, step))
                T.buffer_store(self.counts, self.counts[step, digit] + 1, [step, digit])

    @staticmethod
    def _turned(key):
        """``key`` with its sign turned: its bits, as a number without one, sort as the key does."""
        return key ^ tirx.min_value(dtype_of(key))

    def _digit(self, key, step):
        dtype = dtype_of(key)
        shifted = tirx.shift_right(key, tirx.const(step * self.bits, dtype))
        mask = tirx.const((1 << self.bits) - 1, dtype)
        return tirx.bitwise_and(shifted, mask).astype("int64")


def _store(scalar, value):
    T.buffer_store(scalar, _int64(value) if isinstance(value, int) else value, [0])


def _int64(value):
    return tirx.const(value, "int64")
