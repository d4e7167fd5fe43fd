"""Attention of symbolic sizes by blocks of keys: softmax as it goes along, loops that are built.

Before: the products, the masks, the parts of a softmax and the result, a block each
After, where there are few queries::

    for n in T.parallel(B * H):
        for s in range(S):
            for t in range(0, T, 128):             # keys
                score[0..127] = sum(q[n, s, :] * k[n, t + (0..127), :])     # lanes along the depth
                high = max(high, score);  factor = exp(high before - high)
                weight = exp(score - high);  total = total * factor + sum(weight)
                y[:] = y[:] * factor + sum(weight * v[n, t + (0..127), :])
            result[n, s, :] = y / total

Else a task is as many queries as a vector has lanes: in these they are multiplied with the keys,
and squares of scores are turned in registers. Either way keys and values are read as they lie in
memory, and keys beyond the last take no part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl

from ..machine import Machine
from .contraction import axis_kinds, blocks_of, is_static
from .matmul_loops import shared
from .matmul_rows import term_of, tile_rows
from .register_tiles import (
    RegisterTiles,
    halves,
    int64,
    lanewise,
    local,
    loop,
    parts,
    scheduled,
    sequence,
    substituted,
    var,
)

__all__ = ["AttentionSymbolic"]

_FLOAT = "float32"
_KEYS = 128  # in a block; their scores, and part of the values, stay in L1
_VECTORS = 4  # of values, in a tile
_FEW = 4  # as many queries as this part of the lanes are taken one by one


class AttentionSymbolic(dl.base.ScheduleRule):
    """Scores, masks, softmax and the product with the values; any sizes but those of a head.

    12 heads of 64, a mask, one Zen 5 core: one query over 900 keys 76 us (a kernel each for the
    transpose of the keys, the products and the softmax: 189 us), 512 queries of as many 5.0 ms
    (5.5 ms), 64 of 64 107 us (98 us).
    """

    def apply(self, func, target, _tunable):
        found = blocks_of(func)
        if found is None or is_static(func):
            return None
        sch, blocks = found
        attention = _taken_apart([sch.get(block) for block in blocks])
        return None if attention is None else scheduled(sch.mod["main"], attention.loops(target))


def _taken_apart(blocks: list[SBlock]) -> _Attention | None:
    """The blocks by what they are for; None where they are others."""
    if len(blocks) != 7:
        return None
    rank = len(blocks[-1].iter_vars)
    map_, fold, product = "S" * rank, "S" * (rank - 1) + "R", "S" * rank + "R"
    scores, masked, peak, power, *sums, output = blocks
    total, mixed = sorted(sums, key=lambda block: len(block.iter_vars))  # a guard reads total first
    blocks = [scores, masked, peak, power, total, mixed, output]
    kinds = [axis_kinds(block) for block in blocks]
    if rank < 2 or kinds != [product, map_, fold, map_, fold, product, map_]:
        return None
    factors = term_of(scores)
    if not isinstance(factors, tirx.Mul):
        return None
    row, column = (axis.var for axis in scores.iter_vars[-3:-1])
    if not _reads(factors.a, row) or not _reads(factors.b, column):
        return None
    sizes = [block.iter_vars[axis].dom.extent for block, axis in ((scores, -1), (mixed, -2))]
    if not all(isinstance(size, tirx.IntImm) for size in sizes):
        return None
    return _Attention(scores, masked, peak, power, total, mixed, output)


def _reads(factor: tirx.Expr, variable: tirx.Var) -> bool:
    return isinstance(factor, ir.TensorLoad) and any(
        v.same_as(variable) for i in factor.indices for v in tirx.analysis.undefined_vars(i, [])
    )


@dataclass(frozen=True)
class _Attention:
    """The blocks, whose formulas are taken for one element at a time."""

    scores: SBlock
    masked: SBlock
    peak: SBlock
    power: SBlock
    total: SBlock
    mixed: SBlock
    output: SBlock

    def loops(self, target) -> tirx.Stmt:
        """The whole kernel."""
        machine = Machine.of(target)
        lanes = machine.lanes(_FLOAT)
        *batch, rows, keys, depth = self.scores.iter_vars
        length, width = rows.dom.extent, int(self.mixed.iter_vars[-2].dom.extent)
        sizes = _Sizes(length, keys.dom.extent, int(depth.dom.extent), width, lanes)
        extents = [axis.dom.extent for axis in batch]
        names = [axis.var.name for axis in batch]
        kernels = [kind(self, [*map(var, names)], machine, sizes) for kind in (_ByRow, _ByLanes)]
        some, many = (
            shared([*extents, kernel.count], [*kernel.names, kernel.number], kernel.body())
            for kernel in kernels
        )
        return tirx.IfThenElse(length * _FEW <= lanes, some, many)


@dataclass(frozen=True)
class _Sizes:
    """Queries, keys, elements of a key and of a value; lanes of a vector."""

    length: tirx.Expr
    keys: tirx.Expr
    depth: int
    width: int
    lanes: int


class _Formulas:
    """Single elements of an attention, and tasks of ``rows`` queries; ``names`` are the loops over
    the batch."""

    rows: int

    def __init__(self, attention: _Attention, names: list[tirx.Var], machine: Machine, sizes):
        self.attention, self.names, self.machine, self.sizes = attention, names, machine, sizes
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

    def _at(self, block: SBlock, *place) -> dict:
        axes = (axis.var for axis in block.iter_vars)
        return dict(zip(axes, (*self.names, *place), strict=True))

    def query(self, row, d):
        scores = self.attention.scores
        return substituted(term_of(scores).a, self._at(scores, row, int64(0), d))

    def key(self, key, d):
        scores = self.attention.scores
        return substituted(term_of(scores).b, self._at(scores, int64(0), key, d))

    def score(self, value, row, key):
        """A score after scales and masks, of which ``value`` is the product."""
        masked = self.attention.masked
        known = {_written(self.attention.scores): value}
        return substituted(_filled(masked.body.value, known), self._at(masked, row, key))

    def power(self, score, high):
        power = self.attention.power
        known = {_written(self.attention.masked): score, _written(self.attention.peak): high}
        return _filled(power.body.value, known)

    def weighted(self, weight, row, key, column):
        mixed = self.attention.mixed
        known = {_written(self.attention.power): weight}
        return substituted(_filled(term_of(mixed), known), self._at(mixed, row, column, key))

    def result(self, value, weight, row, column) -> tirx.Stmt:
        """The store of ``value``, a sum of values by weight, whose weights add up to ``weight``."""
        store, mixed = self.attention.output.body, _written(self.attention.mixed)
        known = {mixed: value, _written(self.attention.total): weight}
        (load,) = _loads(store.value, mixed)[:1]
        axes = dict(zip(load.indices, (*self.names, row, column), strict=True))
        final = tirx.BufferStore(store.buffer, _filled(store.value, known), store.indices)
        return substituted(final, axes)

    def body(self) -> tirx.Stmt:
        """A task: ``rows`` queries from ``first`` on."""
        sizes, rows = self.sizes, self.rows
        shape = {
            "score": (rows, _KEYS), "sums": (rows, sizes.width), "peak": (1, rows),
            "factor": (1, rows), "total": (rows, sizes.lanes), "high": (1, sizes.lanes),
        }  # fmt: skip
        own = {name: tirx.decl_buffer(s, _FLOAT, name, scope="local") for name, s in shape.items()}
        row, column, block, at = var("row"), var("column"), var("block"), int64(0)
        zero, lowest = tirx.const(0, _FLOAT), tirx.min_value(_FLOAT)
        whole, rest = sizes.keys // _KEYS, sizes.keys % _KEYS
        steps = [
            loop(row, rows, sequence([
                loop(column, sizes.width, _store(own["sums"], zero, row, column)),
                lanewise(0, sizes.lanes, lambda i: _store(own["total"], zero, row, i)),
                _store(own["peak"], lowest, at, row),
            ])),
            loop(block, whole, self.block(block * _KEYS, _KEYS, own)),
            self.block(whole * _KEYS, rest, own),
            self.finish(own),
        ]  # fmt: skip
        return local([*self.before(), *steps], [*own.values(), *self.buffers])

    def block(self, start, count, own: dict[str, tirx.Var]) -> tirx.Stmt:
        """What ``count`` keys from ``start`` on change."""
        softmax = loop(row := var("row"), self.rows, self._softmax(row, start, count, own))
        return sequence([self.products(start, count, own["score"]), softmax,
                         self._mixed(start, count, own)])  # fmt: skip

    def _softmax(self, row, start, count, own) -> tirx.Stmt:
        """The scores of a row become its weights; what it has yet shrinks as its peak rises.

        A peak begins at the lowest number, so that no -inf is subtracted from another.
        """
        score, peak, factor = own["score"], own["peak"], own["factor"]
        total, high, zero, lanes = own["total"], own["high"], int64(0), self.sizes.lanes

        def changed(_, key):
            return _store(score, self.score(score[row, key], self.row(row), start + key), row, key)

        def higher(lane, key):
            return _store(high, tirx.max(high[zero, lane], score[row, key]), zero, lane)

        def weigh(_, key):
            return _store(score, self.power(score[row, key], peak[zero, row]), row, key)

        def add(lane, key):
            return _store(total, total[row, lane] + score[row, key], row, lane)

        def rescaled(lane):
            return _store(total, total[row, lane] * factor[zero, row], row, lane)

        return sequence([
            *_vectors(count, lanes, changed),
            lanewise(0, lanes, lambda lane: _store(high, peak[zero, row], zero, lane)),
            *_vectors(count, lanes, higher),
            *_folded(high, zero, lanes, tirx.max),
            _store(factor, self.power(peak[zero, row], high[zero, zero]), zero, row),
            _store(peak, high[zero, zero], zero, row),
            lanewise(0, lanes, rescaled),
            *_vectors(count, lanes, weigh),
            *_vectors(count, lanes, add),
        ])  # fmt: skip

    def _mixed(self, start, count, own) -> tirx.Stmt:
        """Sums shrink by their factor; the values of the keys are added."""
        score, sums, factor, sizes = own["score"], own["sums"], own["factor"], self.sizes

        def term(row, column, step):
            return self.weighted(score[row, step], row, start + step, column)

        def store(value, row, column):
            return _store(sums, sums[row, column] * factor[int64(0), row] + value, row, column)

        tiles = RegisterTiles(_FLOAT, count, term, store, costly=False)
        height, lanes = min(tile_rows(self.machine, _VECTORS), 4, self.rows), sizes.lanes
        widths = dict.fromkeys([_VECTORS * lanes, lanes, max(lanes // 4, 1), 1])
        nest = []
        for width, column, panels in _some(sizes.width, list(widths)):
            panel, inner = var("panel"), []
            for size, row, turns in _some(self.rows, halves(height)):
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

        weight = _folded(total, row, self.sizes.lanes, lambda a, b: a + b)
        body = sequence([*weight, _columns(self.sizes, store)])
        exists = self.first + row < self.sizes.length
        return loop(row, self.rows, tirx.IfThenElse(exists, body, None))


class _ByRow(_Formulas):
    """One query, whose products with keys are sums in lanes along the depth.

    As many keys as lanes are folded together; keys beyond the last are that one again.
    """

    rows = 1

    def __init__(self, *given):
        super().__init__(*given)
        self.part = min(self.sizes.lanes, self.sizes.depth & -self.sizes.depth)
        shape = (self.part, self.part)
        self.partial = tirx.decl_buffer(shape, _FLOAT, "partial", scope="local")
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
            return _store(partial, value, key, lane)

        tiles = RegisterTiles(_FLOAT, self.sizes.depth // part, term, store, costly=False)
        tile = tiles.tile(number * rows, rows, zero, part, part)
        sums = loop(number, part // rows, tile, tirx.ForKind.UNROLLED)
        result = lanewise(0, part, lambda i: _store(score, partial[zero, i], zero, first + i))
        steps = sequence([sums, *_folded_rows(partial, part), result])
        return loop(group, (count + (part - 1)) // part, steps)


class _ByLanes(_Formulas):
    """As many queries as a vector has lanes; their products with as many keys are turned."""

    def __init__(self, *given):
        super().__init__(*given)
        self.rows = lanes = self.sizes.lanes
        heights = {"query": self.sizes.depth, "tile": lanes, "turned": lanes}
        self.buffers = [
            tirx.decl_buffer((height, lanes), _FLOAT, name, scope="local")
            for name, height in heights.items()
        ]

    def before(self) -> list[tirx.Stmt]:
        """The queries, one in each lane."""
        d, query = var("d"), self.buffers[0]

        def transposed(lane):
            return _store(query, self.query(self.row(lane), d), d, lane)

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
            return _store(tile, value, key, lane)

        tiles = RegisterTiles(_FLOAT, self.sizes.depth, term, store, costly=False)
        turns, last = _turned(tile, turned, lanes)
        results = [
            lanewise(0, lanes, partial(_copied, score, last, row, first)) for row in range(lanes)
        ]
        steps = [tiles.tile(zero, lanes, zero, lanes, lanes), *turns, *results]
        return loop(group, (count + (lanes - 1)) // lanes, sequence(steps))


def _copied(score, tile, row: int, first, lane) -> tirx.Stmt:
    return _store(score, tile[int64(row), lane], int64(row), first + lane)


def _store(buffer: tirx.Var, value: tirx.Expr, *place: tirx.Expr) -> tirx.Stmt:
    return tirx.BufferStore(buffer, value, list(place))


def _some(extent: int, sizes: list[int]):
    """The pieces of ``extent`` that there are."""
    return ((size, at, int(count)) for size, at, count in parts(extent, sizes) if int(count))


def _turned(tile, other, lanes: int) -> tuple[list[tirx.Stmt], tirx.Var]:
    """The transpose of ``tile[lanes, lanes]``, and which of the two buffers it is in then.

    Blocks off the diagonal change places, of half the rows, of a quarter, down to single elements.
    """
    made, half, vector = [], lanes // 2, tirx.Ramp(int64(0), int64(1), max(lanes, 2))
    while half:
        for row in (r for r in range(lanes) if not r & half):
            both = [tirx.BufferLoad(tile, [int64(r), vector]) for r in (row, row + half)]
            upper = [c if not c & half else lanes + c - half for c in range(lanes)]
            lower = [c + half if not c & half else lanes + c for c in range(lanes)]
            for place, chosen in ((row, upper), (row + half, lower)):
                made.append(_store(other, tirx.Shuffle(both, chosen), int64(place), vector))
        tile, other, half = other, tile, half // 2
    return made, tile


def _folded_rows(buffer, count: int) -> list[tirx.Stmt]:
    """The sum of each of ``count`` rows of as many lanes, one after the other in the first row.

    Two rows become one of halves, each half of a part of a row added to the other, again and again:
    two shuffles and a sum for each row that is done with.
    """
    lanes = tirx.Ramp(int64(0), int64(1), count) if count > 1 else int64(0)
    made, rows, part = [], count, count
    while rows > 1:
        rows, half = rows // 2, part // 2
        starts = [row * count + at for row in range(2) for at in range(0, count, part)]
        for row in range(rows):
            both = [tirx.BufferLoad(buffer, [int64(2 * row + k), lanes]) for k in range(2)]
            low, high = (
                tirx.Shuffle(both, [start + shift + k for start in starts for k in range(half)])
                for shift in (0, half)
            )
            made.append(tirx.BufferStore(buffer, low + high, [int64(row), lanes]))
        part = half
    return made


def _columns(sizes: _Sizes, store: Callable[[tirx.Expr], tirx.Stmt]) -> tirx.Stmt:
    """``store`` of all columns of a value."""
    nest = []
    for size, column, n in parts(sizes.width, [sizes.lanes, 1]):
        if int(n):
            turn = var("turn")

            def moved(lane, at=column + turn * size):
                return store(at + lane)

            nest.append(loop(turn, int(n), lanewise(0, size, moved)))
    return sequence(nest)


def _vectors(count, lanes: int, statement) -> list[tirx.Stmt]:
    """``statement(lane, place)`` of ``count`` elements; those of no whole vector in lane 0."""
    made = []
    for size, first, n in parts(count, [lanes, 1]):
        turn = var("turn")

        def both(lane, at=first + turn * size):
            return statement(lane, at + lane)

        made.append(loop(turn, n, lanewise(0, size, both)))
    return made


def _folded(buffer, row, lanes: int, combine) -> list[tirx.Stmt]:
    """The lanes of a row of ``buffer`` combined, in the first."""
    made = []
    while lanes > 1:
        lanes //= 2

        def half(lane, lanes=lanes):
            value = combine(buffer[row, lane], buffer[row, lane + lanes])
            return tirx.BufferStore(buffer, value, [row, lane])

        made.append(lanewise(0, lanes, half))
    return made


def _written(block: SBlock) -> tirx.Var:
    return block.writes[0].source


def _filled(value: tirx.Expr, known: dict) -> tirx.Expr:
    """``value`` with what is loaded from some buffers replaced."""

    def load(node: ir.TensorLoad) -> ir.Expr:
        return next((new for old, new in known.items() if node.source.same_as(old)), node)

    return tvm_ffi.structural_map(value, (ir.TensorLoad, load))


def _loads(value: tirx.Expr, buffer: tirx.Var) -> list[ir.TensorLoad]:
    found: list[ir.TensorLoad] = []

    def note(load: ir.TensorLoad) -> None:
        if load.source.same_as(buffer):
            found.append(load)

    tvm_ffi.structural_walk(value, (ir.TensorLoad, note))
    return found
