"""Depthwise convolution of what a 1x1 convolution makes: blocks of channels, one after the other.

A thread has some rows of the result. For the channels of a register tile it computes the rows of
the expanded image that these see, and then their depthwise convolution: of the expanded image, the
largest tensor of an inverted residual, only this part is ever stored, in L2.

Before: ``e = act(x * wa);  y = act(depthwise(pad(e)))``
After::

    for p in T.parallel(parts):                             # of the rows of y
        for g in range(G):                                  # blocks of channels
            for i in rows that p sees: e[i] = act(x[i] * wa[g])
            for i in rows of p: y[g, i] = act(depthwise(e))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl
from tvm.target import Target

from ..machine import Machine
from ..numbers import number
from ..statements import substituted, with_value
from .contraction import axis_kinds, blocks_of, divisors, is_batched, size
from .conv2d import holds_taps
from .loops import attempt
from .matmul_rows import term_of
from .padded_taps import PADDED, copies, is_padded
from .register_tiles import each, int64, lanewise, local, loop, same, scheduled, sequence, var

__all__ = ["ExpandedDepthwise", "is_depthwise"]

_DENSE, _DEPTHWISE = "SSSSSSRRRR", "SSSSSSRR"
_IMAGE = "SSSSS"
# Multiply-adds of vectors for each pixel of a tile, in a turn of the loop over channels.
_STEPS = 4

Element = Callable[[tirx.Expr, tirx.Expr], tirx.Stmt]


@dataclass(frozen=True)
class ExpandedDepthwise(dl.base.ScheduleRule):
    """1x1 convolution and depthwise one of its result, each with its epilogue.

    float32[1, 16, 112, 112] to 96 channels at a stride of 2, two Zen 4 cores, with a 1x1 kernel
    behind: 0.48 ms (three kernels 0.63 ms) where neighbours use the last-level cache, 0.344 (0.344)
    where they do not.

    Attributes:
        cached: the part of L2 for what a thread keeps of its rows.
        stored: how large an expanded image is worth it, in L2s of all cores.
        repeated: the part of the arithmetic that may be done twice, for rows that two parts see.
            This and ``stored`` decide whether there is such a kernel: no other values to try on it.
    """

    cached: float = number(0.6, 0.25, 1.2)
    stored: float = number(1.0)
    repeated: float = number(0.15)

    def apply(self, func, target, _tunable):
        pair = _take_apart(func)
        if pair is None:
            return None
        return scheduled(pair.func, _Loops(pair, Machine.of(target), self.cached).kernel())

    def pays(self, func: tirx.PrimFunc, target: Target) -> bool:
        """Whether ``func`` is faster than a kernel for each of its convolutions."""
        pair, machine = _take_apart(func), Machine.of(target)
        if pair is None or not holds_taps(machine.registers, pair.depthwise.extents[7]):
            return False
        # What fits into L2 is read from there as fast.
        expanded = 4 * prod(pair.dense.extents[:6])
        if expanded < self.stored * machine.cores * machine.l2_bytes:
            return False
        return _Loops(pair, machine, self.cached).repeated <= self.repeated


def is_depthwise(func: tirx.PrimFunc) -> bool:
    """Whether ``func`` convolves each channel of a padded image by itself."""
    found: list[bool] = []

    def visit(block: SBlock) -> None:
        found.append(axis_kinds(block) == _DEPTHWISE and PADDED in block.annotations)

    tvm_ffi.structural_walk(func.body, (SBlock, visit))
    return any(found)


@dataclass(frozen=True)
class _Stage:
    """A convolution: the block that sums, and the one that makes results of sums."""

    product: SBlock
    result: SBlock

    @property
    def sums(self) -> tirx.Var:
        (region,) = self.product.writes
        return region.source

    @property
    def stored(self) -> tirx.Var:
        (region,) = self.result.writes
        return region.source

    @property
    def extents(self) -> list[int]:
        """Of the axes of the sum; 1 stands for a symbolic number of images."""
        return [size(axis.dom.extent) for axis in self.product.iter_vars]

    def term(self, *place: tirx.Expr) -> tirx.Expr:
        """What is added at the values of all axes of the sum."""
        return substituted(term_of(self.product), _axes(self.product, place))

    def value(self, total: tirx.Expr, *place: tirx.Expr) -> tirx.Expr:
        """The result at ``place`` of what was summed there."""
        value = with_value(self.result.body.value, self.sums, total)
        return substituted(value, _axes(self.result, place))


def _axes(block: SBlock, place) -> dict[tirx.Var, tirx.Expr]:
    return dict(zip((axis.var for axis in block.iter_vars), place, strict=True))


@dataclass(frozen=True)
class _Pair:
    """Both convolutions, and the pads between them."""

    func: tirx.PrimFunc
    dense: _Stage
    pad: SBlock
    depthwise: _Stage

    @property
    def held(self) -> int:
        """Blocks of channels in a register tile."""
        weights = self.dense.product.reads[-1].source
        return int(weights.ty.shape[-1]) // self.dense.extents[5]


def _take_apart(func: object) -> _Pair | None:
    """The convolutions of ``func``, if it has nothing else."""
    if not isinstance(func, tirx.PrimFunc) or not is_batched(func) or not is_depthwise(func):
        return None
    found = blocks_of(func)
    if found is None or any(str(p.ty.dtype.dtype) != "float32" for p in func.params):
        return None
    sch, blocks = found
    kinds = [axis_kinds(sch.get(block)) for block in blocks]
    sums = [k for k, kind in enumerate(kinds) if "R" in kind]
    if [kinds[k] for k in sums] != [_DENSE, _DEPTHWISE]:
        return None
    pads = [k for k in range(*sums) if kinds[k] == _IMAGE and copies(sch, blocks[k])]
    if len(pads) != 1 or not is_padded(sch, blocks[sums[1]]):
        return None
    kept = [sums[0], pads[0] - 1, pads[0], sums[1], len(blocks) - 1]
    others = [block for k, block in enumerate(blocks) if k not in kept]
    if not all(attempt(sch.compute_inline, block) for block in others):
        return None
    dense, made, pad, depthwise, result = (sch.get(blocks[k]) for k in kept)
    pair = _Pair(sch.mod["main"], _Stage(dense, made), pad, _Stage(depthwise, result))
    return pair if _fits(pair) else None


def _fits(pair: _Pair) -> bool:
    """Whether one reads the other, and nothing else does, block of channels by block."""
    dense, depthwise = pair.dense.extents, pair.depthwise.extents

    def reads(block: SBlock) -> bool:
        return any(region.source.same_as(pair.dense.stored) for region in block.reads)

    blocks = dense[1] == depthwise[1] and dense[5] == depthwise[5] and dense[7:9] == [1, 1]
    whole = dense[1] % pair.held == 0
    own = reads(pair.pad) and not reads(pair.depthwise.result)
    return own and blocks and whole and all(map(_is_tiled, (pair.dense, pair.depthwise)))


def _is_tiled(stage: _Stage) -> bool:
    """Whether each result is that of the sum in its place."""
    n, o, row, column, lane = (axis.var for axis in stage.result.iter_vars)
    tile = stage.product.iter_vars[4].dom.extent
    wanted = [n, o, row, column // tile, column % tile, lane]
    loads: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(stage.result.body.value, (ir.TensorLoad, loads.append))
    own = [load for load in loads if load.source.same_as(stage.sums)]
    return bool(own) and all(all(map(same, load.indices, wanted)) for load in own)


class _Loops:
    """The loops of both convolutions."""

    def __init__(self, pair: _Pair, machine: Machine, cached: float):
        self.pair, self.machine = pair, machine
        axes = [tuple(map(int, a)) for a in pair.depthwise.product.annotations[PADDED]]
        (self.height, self.above, self.stride, self.dilation), (self.width, self.left, *_) = axes
        self.batch, self.groups, self.rows, *_, self.lanes = pair.depthwise.extents[:6]
        self.window = pair.depthwise.extents[6:]
        *_, self.padded_width, _ = map(size, pair.pad.writes[0].source.ty.shape)
        self.held = pair.held
        self.part_rows = self._part_rows(int(cached * machine.l2_bytes))
        self.seen = (self.part_rows - 1) * self.stride + (self.window[0] - 1) * self.dilation + 1
        self.image = self._buffer(self.held, self.seen, self.padded_width, self.lanes)

    @property
    def repeated(self) -> float:
        """The part of the arithmetic that is done twice, for rows that two parts see."""
        dense, depthwise = (prod(s.extents) for s in (self.pair.dense, self.pair.depthwise))
        seen = -(-self.rows // self.part_rows) * self.seen
        return (seen / self.height - 1) * dense / (dense + depthwise)

    def kernel(self) -> tirx.Stmt:
        """All of it: threads share images, and their rows."""
        task, turn = var("task"), var("turn")
        parts = -(-self.rows // self.part_rows)
        n, first = task // parts, task % parts * self.part_rows
        group = turn * self.held
        both = sequence([self._expanded(n, group, first), self._convolved(n, group, first)])
        body = [*self._edges(), loop(turn, self.groups // self.held, both)]
        inner = local(body, [self.image])
        images = self.pair.depthwise.product.iter_vars[0].dom.extent
        return loop(task, images * parts, inner, tirx.ForKind.PARALLEL)

    def _part_rows(self, room: int) -> int:
        """Rows of the result that a thread has at once: what these need fits into ``room``."""
        pixels = self.held * self.padded_width * self.lanes
        pixels += self.width * prod(self.pair.dense.extents[6:])
        cores = 1 if self.batch % self.machine.cores == 0 else self.machine.cores
        turns = -(-4 * self.stride * pixels * self.rows // (cores * room))
        return -(-self.rows // (cores * turns))

    def _expanded(self, n, group, first) -> tirx.Stmt:
        """The rows that ``first`` and its followers see, zeros where there is no image."""
        seen, column = var("seen"), var("column")
        row = first * self.stride + seen - self.above
        zeros = [self._zero(k, seen, column + self.left) for k in range(self.held)]
        blank = loop(column, self.width, sequence(zeros))
        inside = tirx.all(row >= 0, row < self.height)
        made = self._row(n, group, row, seen)
        return loop(seen, self.seen, tirx.IfThenElse(inside, made, blank))

    def _row(self, n, group, row, seen) -> tirx.Stmt:
        stage = self.pair.dense
        *_, tiles, tile, _, blocks, _, _, channels = stage.extents
        which, outer, middle, inner = (var(name) for name in ("tile", "block", "turn", "step"))
        sums = self._buffer(tile, self.held * self.lanes, scope="local")
        steps = divisors(channels, max(1, _STEPS // self.held))[-1]

        def add(column, filters):
            own, lane = filters // self.lanes, filters % self.lanes
            zero, step = int64(0), middle * steps + inner
            place = n, group + own, row, which, column, lane, outer, zero, zero, step
            return _added(sums, [column, filters], stage.term(*place))

        def store(column, filters):
            own, lane = filters // self.lanes, filters % self.lanes
            total, at = tirx.BufferLoad(sums, [column, filters]), which * tile + column
            value = stage.value(total, n, group + own, row, at, lane)
            return tirx.BufferStore(self.image, value, [own, seen, at + self.left, lane])

        every = each(tile, self.held * self.lanes, self.lanes, add)
        update = loop(inner, steps, every, tirx.ForKind.UNROLLED)
        update = loop(outer, blocks, loop(middle, channels // steps, update))
        stored = self._stored(store, sums, which, self.width)
        return loop(which, tiles, local([self._cleared(sums), update, stored], [sums]))

    def _convolved(self, n, group, first) -> tirx.Stmt:
        """The rows from ``first`` on of the depthwise convolution."""
        stage = self.pair.depthwise
        *_, tiles, tile, _, _, across = stage.extents
        own, place, which, down, column = map(var, ("own", "row", "tile", "down", "column"))
        sums = self._buffer(tile, self.lanes, scope="local")
        row, padded = first + place, self.pair.pad.writes[0].source

        def load(node):
            if not node.source.same_as(padded):
                return node
            _, _, i, j, lane = node.indices
            return tirx.BufferLoad(self.image, [own, i - first * self.stride, j, lane])

        def add(tap, lane):
            at = n, group + own, row, which, column, lane, down, int64(tap)
            term = tvm_ffi.structural_map(stage.term(*at), (ir.TensorLoad, load))
            return _added(sums, [column, lane], term)

        def store(column, lane):
            total, at = tirx.BufferLoad(sums, [column, lane]), which * tile + column
            value = stage.value(total, n, group + own, row, at, lane)
            return tirx.BufferStore(stage.stored, value, [n, group + own, row, at, lane])

        # The taps of a pixel follow each other: few of the inputs that it shares are live.
        taps = [
            lanewise(0, self.lanes, lambda lane, tap=tap: add(tap, lane)) for tap in range(across)
        ]
        update = loop(column, tile, sequence(taps), tirx.ForKind.UNROLLED)
        update = loop(down, self.window[0], update)
        stored = self._stored(store, sums, which, int(stage.result.iter_vars[3].dom.extent))
        body = loop(which, tiles, local([self._cleared(sums), update, stored], [sums]))
        count = tirx.min(self.rows - first, self.part_rows)
        return loop(own, self.held, loop(place, count, body))

    def _edges(self) -> list[tirx.Stmt]:
        """Zeros left and right of the image, which stay for all blocks."""
        right = self.padded_width - self.left - self.width
        edges = (0, self.left), (self.left + self.width, right)
        return [self._columns(start, count) for start, count in edges if count]

    def _columns(self, start: int, count: int) -> tirx.Stmt:
        own, row, column = map(var, ("own", "row", "column"))
        zeros = loop(column, count, self._zero(own, row, column + start))
        return loop(own, self.held, loop(row, self.seen, zeros))

    def _zero(self, *pixel: ir.Expr | int) -> tirx.Stmt:
        def store(lane):
            return tirx.BufferStore(self.image, tirx.const(0, "float32"), [*pixel, lane])

        return lanewise(0, self.lanes, store)

    def _cleared(self, sums: tirx.Var) -> tirx.Stmt:
        rows, columns = map(int, sums.ty.shape)
        zero = tirx.const(0, "float32")
        return each(rows, columns, self.lanes, lambda *at: tirx.BufferStore(sums, zero, list(at)))

    def _stored(self, store: Element, sums: tirx.Var, which: tirx.Var, width: int) -> tirx.Stmt:
        """``store`` of the sums of tile ``which`` that belong to pixels before ``width``."""
        tile, channels = map(int, sums.ty.shape)
        if width % tile == 0:
            return each(tile, channels, self.lanes, store)

        def pixel(column: int) -> tirx.Stmt:
            place = int64(column)
            vectors = [
                lanewise(start, self.lanes, lambda channel: store(place, channel))
                for start in range(0, channels, self.lanes)
            ]
            return tirx.IfThenElse(which * tile + column < width, sequence(vectors), None)

        return sequence([pixel(column) for column in range(tile)])

    def _buffer(self, *shape: int, scope: str = "global") -> tirx.Var:
        name = "image" if scope == "global" else "sums"
        return tirx.decl_buffer(shape, "float32", name, scope=scope)


def _added(sums: tirx.Var, at: list, term: tirx.Expr) -> tirx.Stmt:
    return tirx.BufferStore(sums, tirx.BufferLoad(sums, at) + term, at)
