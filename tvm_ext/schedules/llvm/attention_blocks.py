"""Attention of symbolic sizes, task by task: how the keys pass by, a block after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tvm import tirx

from ..machine import Machine
from .attention_formulas import FLOAT, Attention, Formulas
from .lane_folds import folded, folded_rows, put, some, transposed, vectors
from .matmul_rows import tile_rows
from .register_tiles import (
    RegisterTiles,
    halves,
    int64,
    lanewise,
    local,
    loop,
    parts,
    sequence,
    var,
)

__all__ = ["ByLanes", "ByRow", "Sizes"]

_KEYS = 128  # in a block; their scores, and part of the values, stay in L1
_VECTORS = 4  # of values, in a tile
_HIDDEN = -(2.0**26)  # a mask; less than 2**-24 times it is lost in any sum with scores


@dataclass(frozen=True)
class Sizes:
    """Queries, keys, elements of a key and of a value; lanes of a vector."""

    length: tirx.Expr
    keys: tirx.Expr
    depth: int
    width: int
    lanes: int


class _Task(Formulas):
    """``rows`` queries of an attention."""

    rows: int

    def __init__(self, attention: Attention, names: list[tirx.Var], machine: Machine, sizes: Sizes):
        super().__init__(attention, names)
        self.machine, self.sizes = machine, sizes
        self.number = var("task")
        self.buffers: list[tirx.Var] = []

    @property
    def count(self) -> tirx.Expr:
        """The tasks of an element of the batch; ``number`` is the one of the body."""
        return (self.sizes.length + (self.rows - 1)) // self.rows

    @property
    def first(self) -> tirx.Expr:
        """The first query of a task."""
        return self.number * self.rows

    def row(self, row) -> tirx.Expr:
        """The query of a row of a task, the last one beyond the end."""
        return self.first if self.rows == 1 else tirx.min(self.first + row, self.sizes.length - 1)

    def before(self) -> list[tirx.Stmt]:
        """What a task begins with."""
        raise NotImplementedError

    def products(self, start, count, score: tirx.Var) -> tirx.Stmt:
        """``score[rows, ..]`` of ``count`` keys from ``start`` on, before masks."""
        raise NotImplementedError

    def body(self) -> tirx.Stmt:
        """A task: ``rows`` queries from ``first`` on."""
        sizes, rows = self.sizes, self.rows
        shape = {
            "score": (rows, _KEYS), "sums": (rows, sizes.width), "peak": (1, rows),
            "factor": (1, rows), "total": (rows, sizes.lanes), "high": (1, sizes.lanes),
            "seen": (1, sizes.lanes),
        }  # fmt: skip
        own = {name: tirx.decl_buffer(s, FLOAT, name, scope="local") for name, s in shape.items()}
        row, column, block, at = var("row"), var("column"), var("block"), int64(0)
        zero, lowest = tirx.const(0, FLOAT), tirx.min_value(FLOAT)
        whole, rest = sizes.keys // _KEYS, sizes.keys % _KEYS
        steps = [
            loop(row, rows, sequence([
                loop(column, sizes.width, put(own["sums"], zero, row, column)),
                lanewise(0, sizes.lanes, lambda i: put(own["total"], zero, row, i)),
                put(own["peak"], lowest, at, row),
            ])),
        ]  # fmt: skip
        if not _is_zero(whole):
            steps.append(loop(block, whole, self.block(block * _KEYS, _KEYS, own)))
        if not _is_zero(rest):
            steps.append(self.block(whole * _KEYS, rest, own))
        steps.append(self.finish(own))
        return local([*self.before(), *steps], [*own.values(), *self.buffers])

    def block(self, start, count, own: dict[str, tirx.Var]) -> tirx.Stmt:
        """What ``count`` keys from ``start`` on change."""
        softmax = loop(row := var("row"), self.rows, self._softmax(row, start, count, own))
        steps = sequence([self.products(start, count, own["score"]), softmax,
                          self._mixed(start, count, own)])  # fmt: skip
        if not self.attention.may_hide:
            return steps
        seen = self._seen(start, count, own)
        return sequence([*seen, tirx.IfThenElse(own["seen"][0, 0] > 0.0, steps, None)])

    def _seen(self, start, count, own) -> list[tirx.Stmt]:
        """Whether any row sees any key of a block: 1 or 0, the first of ``seen``.

        The first block is not asked: no causal mask hides it, and short texts have no other.
        """
        row, zero, seen = var("row"), int64(0), own["seen"]
        yes, no, hidden = (tirx.const(number, FLOAT) for number in (1, 0, _HIDDEN))

        def note(lane, key):
            mask = self.score(no, self.row(row), start + key)
            passed = tirx.all(mask <= hidden, mask - own["peak"][zero, row] <= hidden)
            value = tirx.max(seen[zero, lane], tirx.Select(passed, no, yes))
            return put(seen, value, zero, lane)

        def begin(lane):
            return put(seen, tirx.Select(start > 0, no, yes), zero, lane)

        lanes = self.sizes.lanes
        notes = loop(row, self.rows, sequence(vectors(count, lanes, note)))
        notes = sequence([notes, *folded(seen, zero, lanes, tirx.max)])
        return [lanewise(0, lanes, begin), tirx.IfThenElse(start > 0, notes, None)]

    def _softmax(self, row, start, count, own) -> tirx.Stmt:
        """The scores of a row become its weights; what it has yet shrinks as its peak rises.

        A peak begins at the lowest number, so that no -inf is subtracted from another.
        """
        score, peak, factor = own["score"], own["peak"], own["factor"]
        total, high, zero, lanes = own["total"], own["high"], int64(0), self.sizes.lanes

        def changed(_, key):
            return put(score, self.score(score[row, key], self.row(row), start + key), row, key)

        def higher(lane, key):
            return put(high, tirx.max(high[zero, lane], score[row, key]), zero, lane)

        def weigh(_, key):
            return put(score, self.power(score[row, key], peak[zero, row]), row, key)

        def add(lane, key):
            return put(total, total[row, lane] + score[row, key], row, lane)

        def rescaled(lane):
            return put(total, total[row, lane] * factor[zero, row], row, lane)

        return sequence([
            *vectors(count, lanes, changed),
            lanewise(0, lanes, lambda lane: put(high, peak[zero, row], zero, lane)),
            *vectors(count, lanes, higher),
            *folded(high, zero, lanes, tirx.max),
            put(factor, self.power(peak[zero, row], high[zero, zero]), zero, row),
            put(peak, high[zero, zero], zero, row),
            lanewise(0, lanes, rescaled),
            *vectors(count, lanes, weigh),
            *vectors(count, lanes, add),
        ])  # fmt: skip

    def _mixed(self, start, count, own) -> tirx.Stmt:
        """Sums shrink by their factor; the values of the keys are added."""
        score, sums, factor, sizes = own["score"], own["sums"], own["factor"], self.sizes

        def term(row, column, step):
            return self.weighted(score[row, step], row, start + step, column)

        def store(value, row, column):
            return put(sums, sums[row, column] * factor[int64(0), row] + value, row, column)

        tiles = RegisterTiles(FLOAT, count, term, store, costly=False)
        height, lanes = min(tile_rows(self.machine, _VECTORS), 4, self.rows), sizes.lanes
        widths = dict.fromkeys([_VECTORS * lanes, lanes, max(lanes // 4, 1), 1])
        nest = []
        for width, column, panels in some(sizes.width, list(widths)):
            panel, inner = var("panel"), []
            for size, row, turns in some(self.rows, halves(height)):
                turn = var("turn")
                place = row + turn * size, size, column + panel * width, width
                inner.append(loop(turn, turns, tiles.tile(*place, min(width, lanes))))
            nest.append(loop(panel, panels, sequence(inner)))
        return sequence(nest)

    def finish(self, own) -> tirx.Stmt:
        """The results of the rows that there are."""
        row, zero, total = var("row"), int64(0), own["total"]

        def store(column):
            return self.result(own["sums"][row, column], total[row, zero], self.first + row, column)

        weight = folded(total, row, self.sizes.lanes, lambda a, b: a + b)
        body = sequence([*weight, _columns(self.sizes, store)])
        exists = self.first + row < self.sizes.length
        return loop(row, self.rows, tirx.IfThenElse(exists, body, None))


class ByRow(_Task):
    """One query, whose products with keys are sums in lanes along the depth.

    As many keys as lanes are folded together; keys beyond the last are that one again.
    """

    rows = 1

    def __init__(self, *given):
        super().__init__(*given)
        self.part = min(self.sizes.lanes, self.sizes.depth & -self.sizes.depth)
        shape = (self.part, self.part)
        self.partial = tirx.decl_buffer(shape, FLOAT, "partial", scope="local")
        self.buffers = [self.partial]

    def before(self) -> list[tirx.Stmt]:
        return []

    def products(self, start, count, score) -> tirx.Stmt:
        """Scores before masks."""
        part, partial, group, number = self.part, self.partial, var("group"), var("number")
        zero, rows = int64(0), min(4, part)
        first = group * part

        def term(key, lane, step):
            d = step * part + lane
            place = start + first + key
            if not isinstance(count, int):
                place = tirx.min(place, self.sizes.keys - 1)
            return self.query(self.first, d) * self.key(place, d)

        def store(value, key, lane):
            return put(partial, value, key, lane)

        tiles = RegisterTiles(FLOAT, self.sizes.depth // part, term, store, costly=False)
        tile = tiles.tile(number * rows, rows, zero, part, part)
        sums = loop(number, part // rows, tile, tirx.ForKind.UNROLLED)
        result = lanewise(0, part, lambda i: put(score, partial[zero, i], zero, first + i))
        steps = sequence([sums, *folded_rows(partial, part), result])
        return loop(group, (count + (part - 1)) // part, steps)


class ByLanes(_Task):
    """As many queries as a vector has lanes; their products with as many keys are turned."""

    def __init__(self, *given):
        super().__init__(*given)
        self.rows = lanes = self.sizes.lanes
        heights = {"query": self.sizes.depth, "tile": lanes, "turned": lanes}
        self.buffers = [
            tirx.decl_buffer((height, lanes), FLOAT, name, scope="local")
            for name, height in heights.items()
        ]

    def before(self) -> list[tirx.Stmt]:
        """The queries, one in each lane."""
        d, query = var("d"), self.buffers[0]

        def transposed(lane):
            return put(query, self.query(self.row(lane), d), d, lane)

        return [loop(d, self.sizes.depth, lanewise(0, self.rows, transposed))]

    def products(self, start, count, score) -> tirx.Stmt:
        """Scores before masks."""
        query, tile, turned = self.buffers
        group, zero, lanes = var("group"), int64(0), self.rows
        first = group * lanes

        def term(key, lane, d):
            place = start + first + key
            if not isinstance(count, int):
                place = tirx.min(place, self.sizes.keys - 1)
            return query[d, lane] * self.key(place, d)

        def store(value, key, lane):
            return put(tile, value, key, lane)

        tiles = RegisterTiles(FLOAT, self.sizes.depth, term, store, costly=False)
        turns, last = transposed(tile, turned, lanes)
        results = [
            lanewise(0, lanes, partial(_copied, score, last, row, first)) for row in range(lanes)
        ]
        steps = [tiles.tile(zero, lanes, zero, lanes, lanes), *turns, *results]
        return loop(group, (count + (lanes - 1)) // lanes, sequence(steps))


def _copied(score, tile, row: int, first, lane) -> tirx.Stmt:
    return put(score, tile[int64(row), lane], int64(row), first + lane)


def _columns(sizes: Sizes, store: Callable[[tirx.Expr], tirx.Stmt]) -> tirx.Stmt:
    """``store`` of all columns of a value."""
    nest = []
    for size, column, n in parts(sizes.width, [sizes.lanes, 1]):
        if int(n):
            turn = var("turn")

            def moved(lane, at=column + turn * size):
                return store(at + lane)

            nest.append(loop(turn, int(n), lanewise(0, size, moved)))
    return sequence(nest)


def _is_zero(count) -> bool:
    return isinstance(count, int | tirx.IntImm) and int(count) == 0
