"""Direct convolution in NCHW[x]c: a register tile of output channels and pixels.

The tile's accumulators stay in registers over the whole reduction; bias, residual and activation
are applied before the tile is stored. Threads split the batch, rows or output channels, always
the same way along a chain so that activations stay in the core that made them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm import s_tir, tirx
from tvm.s_tir import dlight as dl
from tvm.target import Target

from ..machine import Machine

__all__ = ["Conv2dBlocked", "DepthwiseBlocked", "Tile", "choose_tile"]

# Accumulators that hide the latency of two FMA units.
ENOUGH_ACCUMULATORS = 10
# From here on rows are worth splitting; below, weights outweigh activations.
ROWS_PER_SPLIT = 28


@dataclass(frozen=True)
class Tile:
    """Accumulators: ``vectors`` of output channels by ``rows`` by ``columns`` of pixels."""

    vectors: int
    rows: int
    columns: int

    @property
    def accumulators(self) -> int:
        return self.vectors * self.rows * self.columns

    def score(self) -> tuple[float, int]:
        """FMA rate relative to the peak, then the size (fewer passes over the weights)."""
        latency = min(1.0, self.accumulators / ENOUGH_ACCUMULATORS)
        loads = (self.vectors + self.rows * self.columns) / self.accumulators
        return round(latency * min(1.0, 0.6 / loads), 2), self.accumulators


def choose_tile(target: Target, oc_blocks: int, height: int, width: int, lanes: int,
                vectors: int | None = None) -> Tile:
    """The best register tile for ``oc_blocks`` vectors of channels on ``[height, width]`` pixels.

    Tiles divide the work exactly; ``vectors`` is given where weights are packed already.
    """
    machine = Machine.of(target)
    tiles = [
        tile
        for v in ([vectors] if vectors else _divisors(oc_blocks, 6))
        for columns in _divisors(width, 28)
        for rows in _divisors(height, 4)
        if (tile := Tile(v, rows, columns)).accumulators + v + 2 <= machine.registers
    ]
    return max(tiles, key=Tile.score, default=Tile(vectors or 1, 1, 1))


def _divisors(extent: int, limit: int) -> list[int]:
    return [d for d in range(1, min(extent, limit) + 1) if extent % d == 0]


@dataclass(frozen=True)
class _Kernel:
    """A convolution kernel taken apart: [pad,] contraction, epilogue chain."""

    sch: s_tir.Schedule
    pads: list
    contraction: object
    output: object
    channels: int  # of the input, per group
    weight_bytes: int


def _take_apart(func: tirx.PrimFunc, reduce_axes: int) -> _Kernel | None:
    """The kernel if it is one blocked contraction with element-wise blocks around it."""
    if not isinstance(func, tirx.PrimFunc):
        return None
    sch = s_tir.Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    kinds = [_kind(sch.get(block)) for block in blocks]
    contraction = "SSSSS" + "R" * reduce_axes
    if kinds.count(contraction) != 1 or set(kinds) - {contraction, "SSSSS"}:
        return None
    at = kinds.index(contraction)
    block = sch.get(blocks[at])
    reads = [region.source for region in block.reads]
    if not _static(func) or at > 1 or len(reads) != 2:
        return None
    weight = next((b for b in reads if b in set(func.params) and
                   len(b.ty.shape) == reduce_axes + 2), None)
    if weight is None or not _lane_is_innermost(block):
        return None
    for inner in blocks[at + 1 : -1]:
        sch.compute_inline(inner)
    if at == len(blocks) - 1:
        output = sch.cache_write(blocks[at], 0, "local")
    else:
        output = blocks[-1]
        sch.set_scope(blocks[at], 0, "local")
    shape = [int(d) for d in weight.ty.shape]
    return _Kernel(sch, blocks[:at], blocks[at], output, shape[1] * shape[4] if reduce_axes == 4
                   else 1, prod(shape) * 4)


def _kind(block: tirx.SBlock) -> str:
    letters = {tirx.IterVar.DataPar: "S", tirx.IterVar.CommReduce: "R"}
    return "".join(letters.get(v.iter_type, "O") for v in block.iter_vars)


def _static(func: tirx.PrimFunc) -> bool:
    return all(isinstance(d, tirx.IntImm) for p in func.params
               if tirx.is_buffer_var(p) for d in p.ty.shape)


def _lane_is_innermost(block: tirx.SBlock) -> bool:
    (write,) = block.writes
    return all(r.min.same_as(v.var) for r, v in zip(write.region, block.iter_vars, strict=False))


class Conv2dBlocked(dl.base.ScheduleRule):
    """[pad,] dense or grouped convolution with packed weights, and its epilogue."""

    def apply(self, func, target, _tunable):
        kernel = _take_apart(func, reduce_axes=4)
        if kernel is None:
            return None
        sch, machine = kernel.sch, Machine.of(target)
        n, o, h, w, lane = sch.get_loops(kernel.output)
        batch, oc_blocks, height, width, lanes = (int(sch.get(x).extent) for x in (n, o, h, w, lane))
        vectors = _vectors(sch.get(kernel.contraction), lanes)
        tile = choose_tile(target, oc_blocks, height, width, lanes, vectors)

        oo, oi = sch.split(o, [None, vectors])
        ho, hi = sch.split(h, [None, tile.rows])
        wo, wi = sch.split(w, [None, tile.columns])
        rows, tiles = height // tile.rows, oc_blocks // vectors
        block = _row_block(kernel, machine, rows, width * tile.rows * lanes)
        split = _who_splits(machine.cores, batch, rows // block, tiles, height, kernel.weight_bytes)
        sb, si = sch.split(ho, [None, block])
        if split == "channels":
            sch.reorder(oo, n, sb, si, wo, oi, hi, wi, lane)
            outer, oo = _chunks(sch, oo, tiles, machine.cores)
            sch.reorder(outer, n, sb, *oo, si)
        else:
            sch.reorder(n, sb, oo, si, wo, oi, hi, wi, lane)
            outer = n if split == "batch" else sch.fuse(n, sb)
        if machine.cores > 1:
            sch.parallel(outer)

        _register_tile(sch, kernel.contraction, wo, reduce_axes=4, unrolled=(oi, hi, wi), lane=lane)
        for pad in kernel.pads:
            _pad(sch, pad)
        return sch


class DepthwiseBlocked(dl.base.ScheduleRule):
    """[pad,] depthwise convolution of blocked channels, and its epilogue."""

    def apply(self, func, target, _tunable):
        kernel = _take_apart(func, reduce_axes=2)
        if kernel is None:
            return None
        sch, machine = kernel.sch, Machine.of(target)
        n, o, h, w, lane = sch.get_loops(kernel.output)
        height, width, lanes = (int(sch.get(x).extent) for x in (h, w, lane))
        tile = choose_tile(target, 1, height, width, lanes, vectors=1)
        ho, hi = sch.split(h, [None, tile.rows])
        wo, wi = sch.split(w, [None, tile.columns])
        sch.reorder(n, o, ho, wo, hi, wi, lane)
        channel = sch.fuse(n, o)
        if machine.cores > 1:
            sch.parallel(channel)
        _register_tile(sch, kernel.contraction, wo, reduce_axes=2, unrolled=(hi, wi), lane=lane)
        for pad in kernel.pads:
            sch.compute_at(pad, channel, preserve_unit_loops=True)
            sch.vectorize(sch.get_loops(pad)[-1])
        return sch


def _vectors(block: tirx.SBlock, lanes: int) -> int:
    weight = next(r.source for r in block.reads if len(r.source.ty.shape) == 6)
    return int(weight.ty.shape[-1]) // lanes


def _row_block(kernel: _Kernel, machine: Machine, rows: int, row_elements: int) -> int:
    """Rows to sweep under one tile of weights: as many as half of L2 holds of the input."""
    if kernel.weight_bytes <= machine.l2_bytes // 4:
        return 1
    row_bytes = 4 * row_elements * kernel.channels // 16
    limit = max(1, machine.l2_bytes // 2 // max(row_bytes, 1))
    return max(d for d in _divisors(rows, limit))


def _who_splits(cores: int, batch: int, row_blocks: int, tiles: int, height: int,
                weight_bytes: int) -> str:
    if batch % cores == 0:
        return "batch"
    even_rows = batch * row_blocks % cores == 0 or batch * row_blocks >= 8 * cores
    if even_rows and (height >= ROWS_PER_SPLIT or weight_bytes < 1 << 18):
        return "rows"
    if tiles >= cores and (tiles % cores == 0 or tiles >= 8 * cores or not even_rows):
        return "channels"
    return "rows"


def _chunks(sch, loop, extent: int, cores: int):
    """(parallel loop, inner loops): one contiguous run per core where that is even."""
    if extent % cores == 0:
        outer, inner = sch.split(loop, [cores, None])
        return outer, [inner]
    return loop, []


def _register_tile(sch, contraction, at, reduce_axes: int, unrolled, lane) -> None:
    """Accumulate the tile under loop ``at`` in registers, channels in vector lanes."""
    sch.compute_at(contraction, at, preserve_unit_loops=True)
    co, ch, cw, cv, *reduction = sch.get_loops(contraction)[-4 - reduce_axes:]
    if reduce_axes == 4:
        extent = int(sch.get(reduction[-1]).extent)
        steps = next(s for s in (4, 3, 2, 1) if extent % s == 0)
        outer, inner = sch.split(reduction.pop(), [None, steps])
        sch.reorder(*reduction, outer, inner, ch, cw, co, cv)
        flat = (inner, ch, cw, co)
    else:
        sch.reorder(*reduction, ch, cw, co, cv)
        flat = (*reduction, ch, cw, co)
    sch.vectorize(cv)
    for loop in flat:
        sch.unroll(loop)
    init = sch.decompose_reduction(contraction, reduction[0])
    *tile, vector = sch.get_loops(init)[-4:]
    sch.vectorize(vector)
    for loop in tile:
        sch.unroll(loop)
    sch.vectorize(lane)
    for loop in unrolled:
        sch.unroll(loop)


def _pad(sch, pad) -> None:
    n, o, h, _, lane = sch.get_loops(pad)
    sch.parallel(sch.fuse(n, o, h))
    sch.vectorize(lane)
