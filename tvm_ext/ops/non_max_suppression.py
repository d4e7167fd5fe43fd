"""Non-maximum suppression: of boxes that overlap, the one with the best score stays.

The boxes of a class come from a heap, best first, and each is compared with those that stay, many
at once, until one covers it: no more are looked at than are needed. Classes are independent.
"""

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, log2

from tvm import te, tirx
from tvm.ir import Range
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from . import heap
from .heap import WIDEST, Heap

__all__ = ["non_max_suppression"]

# Boxes that are compared at once, and scores that are passed by together: some vectors.
_BLOCK = 64


def non_max_suppression(boxes, scores, limit, overlap, lowest, centred):
    """Rows (batch, class, box) ``int64[batches * classes * boxes, 3]``, and how many ``int64[1]``.

    ``boxes[batches, boxes, 4]`` hold two corners, or centre and size if ``centred``;
    ``scores[batches, classes, boxes]``. Per class at most ``limit[0]`` boxes stay, best first,
    with scores above ``lowest[0]`` (or None: any), none overlapping a better one by more than
    ``overlap[0]``. What follows these two is scratch.
    """
    batches, classes, number = scores.shape
    groups, padded = batches * classes, _blocks(number) * _BLOCK

    def body(inputs, outputs):
        box, score, most, threshold, *lowest = inputs
        selected, total, *scratch = outputs
        kernel = _Suppression(box, score, most, threshold, lowest, *scratch, centred)
        with IRBuilder() as builder, _block("root", inputs, outputs):
            with T.serial(0, groups) as loop, T.sblock("classes"):
                group = T.axis.spatial(Range(0, groups), loop)
                T.reads(*map(_whole, inputs))
                T.writes(*kernel.rows(group))
                with T.sblock("select"):
                    T.reads(*map(_whole, inputs))
                    T.writes(*kernel.rows(group))
                    kernel.select(group)
            with _block("collect", [kernel.keys, kernel.taken], [selected, total]):
                _store(total, 0)
                with T.serial(0, groups) as group:
                    kernel.collect(group, selected, total)
        return builder.get()

    inputs = [boxes, scores, limit, overlap, *([] if lowest is None else [lowest])]
    shapes = [(groups * number, 3), (1,), (groups, number), (groups, 4, padded), (groups,)]
    dtypes = ["int64", "int64", "int64", "float32", "int64"]
    return te.extern(shapes, inputs, body, name="non_max_suppression", dtype=dtypes)


@dataclass(frozen=True)
class _Suppression:
    """What is emitted for each group, a class of a batch.

    ``keys[groups, boxes]`` have the group's heap in front, and the boxes that stay from the end on;
    ``corners[groups, 4, ..]`` theirs, whole blocks of them; ``taken[groups]`` says how many stay.
    """

    box: tirx.Var
    score: tirx.Var
    most: tirx.Var
    threshold: tirx.Var
    lowest: Sequence[tirx.Var]
    keys: tirx.Var
    corners: tirx.Var
    taken: tirx.Var
    centred: bool

    @property
    def number(self):
        """The boxes of a group."""
        return self.score.shape[2]

    def place(self, group):
        """The batch and the class."""
        classes = self.score.shape[1]
        return tirx.floordiv(group, classes), tirx.floormod(group, classes)

    def rows(self, group):
        """What belongs to a group alone."""
        padded = self.corners.shape[2]
        keys, corners = self.keys[group, 0 : self.number], self.corners[group, 0:4, 0:padded]
        return keys, corners, self.taken[group]

    def select(self, group):
        """The boxes that stay become the last ones in the row of ``keys``."""
        node = T.sblock_alloc_buffer([2], "int64", scope="local")
        count = T.sblock_alloc_buffer([1], "int64", scope="local")
        covered = T.sblock_alloc_buffer([1], "int32", scope="local")
        number = self.number
        levels = ceil(log2(int(number) + 1)) if isinstance(number, tirx.IntImm) else WIDEST
        waiting = Heap(self.keys, (group,), node, levels)
        batch, label = self.place(group)
        _store(count, 0)
        _store(self.taken, 0, group)
        self.gather(batch, label, waiting, count, covered)
        waiting.build(count[0])
        with T.serial(0, T.bind(count[0])):
            with T.If(self.taken[group] < self.most[0].astype("int64")), T.Then():
                best = T.bind(heap.place_of(tirx.bitwise_not(waiting[0])))
                _store(count, count[0] - 1)
                waiting.store(0, waiting[count[0]])
                waiting.sink(tirx.const(0, "int64"), count[0])
                candidate = [T.bind(side) for side in _corners(self.box, batch, best, self.centred)]
                self.compare(group, candidate, covered)
                with T.If(covered[0] == 0), T.Then():
                    self.keep(group, candidate, best)

    def gather(self, batch, label, waiting, count, above):
        """Entries of all boxes that may stay; ``above``: a block has some."""

        def add(j):
            rank = heap.order(self.score[batch, label, j], nan_is_largest=False)
            waiting.store(count[0], tirx.bitwise_not(heap.entry(rank, j)))
            _store(count, count[0] + 1)

        if not self.lowest:
            with T.serial(0, self.number) as j:
                add(j.astype("int64"))
            return
        (lowest,) = self.lowest
        with T.serial(0, _blocks(self.number)) as block:
            first = block * _BLOCK
            size = tirx.min(tirx.const(_BLOCK, "int64"), self.number - first)

            def passes(t):
                return self.score[batch, label, first + t] > lowest[0]

            _store(above, 0)
            with T.serial(0, size) as t:
                _store(above, tirx.bitwise_or(above[0], passes(t).astype("int32")))
            with T.If(above[0] != 0), T.Then(), T.serial(0, size) as t:
                with T.If(passes(t)), T.Then():
                    add((first + t).astype("int64"))

    def compare(self, group, candidate, covered):
        """Is the candidate ``covered`` by one of those that stay?"""
        _store(covered, 0)
        with T.serial(0, _blocks(self.taken[group])) as block:
            with T.If(covered[0] == 0), T.Then(), T.serial(0, _BLOCK) as t:
                other = [self.corners[group, side, block * _BLOCK + t] for side in range(4)]
                hit = _overlaps(other, candidate, self.threshold[0])
                _store(covered, tirx.bitwise_or(covered[0], hit.astype("int32")))

    def keep(self, group, candidate, best):
        """The candidate stays; what a new block of corners does not hold yet overlaps nothing."""
        place = T.bind(self.taken[group])
        with T.If(tirx.floormod(place, _BLOCK) == 0), T.Then():
            with T.serial(0, 4) as side, T.serial(0, _BLOCK) as t:
                T.buffer_store(self.corners, tirx.const(0.0, "float32"), [group, side, place + t])
        for side, value in enumerate(candidate):
            T.buffer_store(self.corners, value, [group, side, place])
        T.buffer_store(self.keys, best, [group, self.number - 1 - place])
        _store(self.taken, place + 1, group)

    def collect(self, group, selected, total):
        """Rows of the boxes that stay, behind those of the groups before."""
        with T.serial(0, T.bind(self.taken[group])) as j:
            row = *self.place(group), self.keys[group, self.number - 1 - j]
            for column, value in enumerate(row):
                T.buffer_store(selected, value.astype("int64"), [total[0], column])
            _store(total, total[0] + 1)


def _blocks(number):
    """How many blocks hold so many boxes."""
    return tirx.floordiv(number + (_BLOCK - 1), _BLOCK)


@contextmanager
def _block(name, reads, writes):
    """A block that may touch all of these buffers: places that are computed have no region."""
    with T.sblock(name):
        T.reads(*map(_whole, reads))
        T.writes(*map(_whole, writes))
        yield


def _whole(buffer):
    return buffer[tuple(slice(0, extent) for extent in buffer.shape)]


def _store(buffer, value, place=0):
    dtype = str(buffer.dtype)
    T.buffer_store(buffer, tirx.const(value, dtype) if isinstance(value, int) else value, [place])


def _corners(box, b, j, centred):
    """Low and high ends in both directions."""
    a, c, d, e = (box[b, j, k] for k in range(4))
    if centred:
        return a - d / 2, c - e / 2, a + d / 2, c + e / 2
    return tirx.min(a, d), tirx.min(c, e), tirx.max(a, d), tirx.max(c, e)


def _overlaps(first, second, threshold):
    """Whether intersection / union exceeds ``threshold``; empty boxes overlap nothing."""
    sides = [
        tirx.max(tirx.min(first[k + 2], second[k + 2]) - tirx.max(first[k], second[k]), 0)
        for k in range(2)
    ]
    shared = sides[0] * sides[1]
    areas = [(r[2] - r[0]) * (r[3] - r[1]) for r in (first, second)]
    union = areas[0] + areas[1] - shared
    return tirx.all(areas[0] > 0, areas[1] > 0, shared > threshold * union)
