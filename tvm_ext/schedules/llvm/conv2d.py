"""Direct convolution in NCHW[x]c: a register tile of output channels and pixels.

The tile's accumulators stay in registers over the whole reduction; bias, residual and activation
are applied before the tile is stored. Threads split the batch, rows or output channels, always
the same way along a chain so that activations stay in the core that made them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm import DataType, s_tir, tirx
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl
from tvm.target import Target

from ..machine import Machine
from .contraction import axis_kinds, divisors, is_static
from .prefetch import COLD_WEIGHTS, prefetch_next_panel

__all__ = ["Conv2dBlocked", "DepthwiseBlocked", "Tile", "choose_columns", "choose_tile"]

# Accumulators that hide the latency of two FMA units.
ENOUGH_ACCUMULATORS = 10
# From here on rows are worth splitting; below, weights outweigh activations.
ROWS_PER_SPLIT = 28


@dataclass(frozen=True)
class Tile:
    """Accumulators: ``vectors`` of output channels by ``columns`` of pixels in a row."""

    vectors: int
    columns: int

    @property
    def accumulators(self) -> int:
        return self.vectors * self.columns

    def rate(self, width: int) -> float:
        """Useful FMAs relative to the peak, in a row of ``width`` pixels."""
        latency = min(1.0, self.accumulators / ENOUGH_ACCUMULATORS)
        loads = (self.vectors + self.columns) / self.accumulators
        useful = width / (-(-width // self.columns) * self.columns)
        return latency * min(1.0, 0.6 / loads) * useful


def choose_tile(target: Target, oc_blocks: int, width: int) -> Tile:
    """The best register tile for ``oc_blocks`` vectors of channels on rows of ``width`` pixels."""
    registers = Machine.of(target).registers
    tiles = [
        tile
        for vectors in divisors(oc_blocks, 6)
        for columns in range(1, min(width, 28) + 1)
        if (tile := Tile(vectors, columns)).accumulators + vectors + 2 <= registers
    ]
    # Among equals the larger tile: fewer passes over the weights.
    return max(tiles, key=lambda tile: (round(tile.rate(width), 2), tile.accumulators))


def choose_columns(target: Target, width: int, taps: int) -> int:
    """Pixels of a row of ``width`` that one vector of channels is convolved at, ``taps`` wide.

    A row of taps stays in registers, too. What is left of a row costs addresses of its own.
    """
    most = max(1, Machine.of(target).registers - taps - 2)

    def cost(columns: int) -> tuple[float, int]:
        done = -(-width // columns) * columns * (1.0 if width % columns == 0 else 1.2)
        return done * max(1.0, 4 / columns), -columns

    return min(range(1, min(width, most) + 1), key=cost)


@dataclass(frozen=True)
class _Kernel:
    """A convolution taken apart: [pad,] contraction, and the block that writes the result."""

    sch: s_tir.Schedule
    pads: list
    contraction: object
    output: object
    image: tuple[int, ...]  # the shapes of the blocked input and of the packed weights
    weight: tuple[int, ...]
    item: int  # bytes of an element of the input

    @property
    def weight_bytes(self) -> int:
        return self.item * prod(self.weight)


def _take_apart(func: tirx.PrimFunc, reduction: str) -> _Kernel | None:
    """The kernel if it is one tiled contraction between a pad and element-wise blocks."""
    if not isinstance(func, tirx.PrimFunc) or not is_static(func):
        return None
    sch = s_tir.Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    kinds = [axis_kinds(sch.get(block)) for block in blocks]
    contraction = "SSSSSS" + reduction
    if kinds.count(contraction) != 1 or set(kinds) - {contraction, "SSSSS"}:
        return None
    at = kinds.index(contraction)
    operands = _operands(sch.get(blocks[at]), func, len(reduction) + 2)
    if at > 2 or at == len(blocks) - 1 or operands is None:
        return None
    for block in (*blocks[: max(at - 1, 0)], *blocks[at + 1 : -1]):
        sch.compute_inline(block)
    return _Kernel(sch, blocks[max(at - 1, 0) : at], blocks[at], blocks[-1], *operands)


def _operands(block: SBlock, func: tirx.PrimFunc, weight_rank: int) -> list | None:
    """The shapes of the image and of the weights, a parameter of ``weight_rank``, and bytes."""
    reads = [region.source for region in block.reads]
    shapes = [tuple(int(d) for d in buffer.ty.shape) for buffer in reads]
    if len(reads) != 2 or len(shapes[0]) != 5 or len(shapes[1]) != weight_rank:
        return None
    item = DataType(str(reads[0].ty.dtype.dtype)).itemsize
    return [*shapes, item] if reads[1] in set(func.params) else None


class Conv2dBlocked(dl.base.ScheduleRule):
    """[pad,] dense or grouped convolution with packed weights, and its epilogue.

    float32[1, 64, 56, 56], 64 3x3 kernels, two Zen 4 cores: 230 GFLOP/s of a peak of 232.
    """

    reduction = "RRRR"

    def register_tile(self, sch, contraction, unrolled, lane) -> list:
        """Accumulate the tile in registers; the serial loops of the reduction.

        ``unrolled`` and ``lane`` are the loops of the block that writes the tile.
        """
        return _register_tile(sch, contraction, unrolled, lane)

    def apply(self, func, target, _tunable):
        kernel = _take_apart(func, self.reduction)
        if kernel is None:
            return None
        sch, machine = kernel.sch, Machine.of(target)
        columns, lanes = (int(a.dom.extent) for a in sch.get(kernel.contraction).iter_vars[4:6])
        vectors = kernel.weight[5] // lanes
        n, o, h, w, lane = sch.get_loops(kernel.output)
        batch, oc_blocks, rows = (int(sch.get(loop).extent) for loop in (n, o, h))
        tiles = oc_blocks // vectors

        oo, oi = sch.split(o, [None, vectors])
        wo, wi = sch.split(w, [None, columns])
        block = _row_block(kernel, machine, rows)
        hb, hi = sch.split(h, [None, block])
        split = _who_splits(machine.cores, batch, rows, rows // block, tiles, kernel.weight_bytes)
        if split == "channels":
            sch.reorder(oo, n, hb, hi, wo, oi, wi, lane)
            outer, panels = oo, [oo]
            if tiles % machine.cores == 0:
                panels = outer, oo = sch.split(oo, [machine.cores, None])
                sch.reorder(outer, n, hb, oo, hi)
        else:
            sch.reorder(n, hb, oo, hi, wo, oi, wi, lane)
            outer, panels = n if split == "batch" else sch.fuse(n, hb), [oo]
        if machine.cores > 1:
            sch.parallel(outer)
        sch.set_scope(kernel.contraction, 0, "local")
        sch.compute_at(kernel.contraction, wo, preserve_unit_loops=True)
        for pad in kernel.pads:
            if kernel.weight[2] == 1 and split != "channels":  # each row is read by one core
                sch.compute_at(pad, outer, preserve_unit_loops=True)
                sch.vectorize(sch.get_loops(pad)[-1])
                continue
            *image, _, pad_lane = sch.get_loops(pad)
            sch.parallel(sch.fuse(*image))
            sch.vectorize(pad_lane)
        depth = self.register_tile(sch, kernel.contraction, (oi, wi), lane)
        if kernel.weight_bytes < COLD_WEIGHTS:
            return sch
        return prefetch_next_panel(sch, panels, [hi, wo, *depth])


class DepthwiseBlocked(dl.base.ScheduleRule):
    """[pad,] depthwise convolution of blocked channels, and its epilogue.

    Threads split rows where they can: so do the convolutions before and after.

    float32[1, 240, 28, 28], 5x5 windows and SiLU, two Zen 4 cores: 86 us.
    """

    def apply(self, func, target, _tunable):
        kernel = _take_apart(func, "RR")
        if kernel is None:
            return None
        sch, machine = kernel.sch, Machine.of(target)
        columns = int(sch.get(kernel.contraction).iter_vars[4].dom.extent)
        n, o, h, w, lane = sch.get_loops(kernel.output)
        batch, rows = (int(sch.get(loop).extent) for loop in (n, h))
        parts = 1 if batch % machine.cores == 0 or rows % machine.cores else machine.cores
        part, h = sch.split(h, [parts, None])
        block, hi = sch.split(h, [None, _padded_rows(kernel, machine, rows, rows // parts)])
        wo, wi = sch.split(w, [None, columns])
        sch.reorder(n, part, o, block, hi, wo, wi, lane)
        task = [n, part] if batch * parts % machine.cores == 0 else [n, part, o]
        if machine.cores > 1:
            sch.parallel(sch.fuse(*task))
        _register_row(sch, kernel.contraction, wo)
        sch.unroll(wi)
        sch.vectorize(lane)
        for pad in kernel.pads:
            sch.compute_at(pad, block, preserve_unit_loops=True)
            sch.vectorize(sch.get_loops(pad)[-1])
        return sch


def _padded_rows(kernel: _Kernel, machine: Machine, rows: int, part: int) -> int:
    """Of the ``part`` of all ``rows`` that a task has, those whose input takes a quarter of L2.

    All of it where only much smaller blocks divide it: rows that windows share are padded twice.
    """
    if not kernel.pads:
        return part
    shape = kernel.sch.get(kernel.pads[0]).writes[0].source.ty.shape
    _, _, height, width, lanes = map(int, shape)
    fitting = machine.l2_bytes // 4 // (4 * width * lanes) * rows // height
    block = divisors(part, max(1, fitting))[-1]
    return block if 4 * block >= min(fitting, part) else part


def _register_row(sch, contraction, at) -> None:
    """Accumulate pixels of one row under loop ``at`` in registers, a row of the window at a time.

    The taps of a pixel follow each other: few of the inputs that it shares with the next are live.
    """
    sch.set_scope(contraction, 0, "local")
    sch.compute_at(contraction, at, preserve_unit_loops=True)
    column, lane, tap_row, tap = sch.get_loops(contraction)[-4:]
    sch.reorder(tap_row, column, tap, lane)
    for loop in (column, tap):
        sch.unroll(loop)
    sch.vectorize(lane)
    *_, column, lane = sch.get_loops(sch.decompose_reduction(contraction, tap_row))
    sch.unroll(column)
    sch.vectorize(lane)


def _row_block(kernel: _Kernel, machine: Machine, rows: int) -> int:
    """Rows to sweep under one tile of weights: as many as half of L2 holds of the input."""
    if kernel.weight_bytes <= machine.l2_bytes // 4:
        return 1
    row_bytes = kernel.item * prod(kernel.image[1:]) // kernel.image[2]
    return divisors(rows, max(1, machine.l2_bytes // 2 // row_bytes))[-1]


def _who_splits(
    cores: int, batch: int, rows: int, row_blocks: int, tiles: int, weight_bytes: int
) -> str:
    """What threads share: "batch", "rows" or "channels"."""
    if batch % cores == 0:
        return "batch"
    rows_even = batch * row_blocks % cores == 0 or batch * row_blocks >= 8 * cores
    if rows_even and (rows >= ROWS_PER_SPLIT or weight_bytes < 1 << 18):
        return "rows"
    tiles_even = tiles % cores == 0 or tiles >= 8 * cores
    return "channels" if tiles >= cores and (tiles_even or not rows_even) else "rows"


def _register_tile(sch, contraction, unrolled, lane) -> list:
    """Accumulate the tile in registers, channels in vector lanes.

    Returns the serial loops of the reduction.
    """
    vectors, _, _, columns, vector, *reduction = sch.get_loops(contraction)[-9:]
    serial, steps = split_steps(sch, reduction)
    accumulate(sch, contraction, (columns, vectors, vector), serial, steps)
    for loop in unrolled:
        sch.unroll(loop)
    sch.vectorize(lane)
    return serial


def split_steps(sch, reduction) -> tuple[list, list]:
    """Serial and unrolled loops of a reduction: of the last axis a few steps are unrolled."""
    *others, channels = reduction
    steps = divisors(int(sch.get(channels).extent), 4)[-1]
    outer, inner = sch.split(channels, [None, steps])
    return [*others, outer], [inner]


def accumulate(sch, contraction, tile, serial, unrolled) -> None:
    """Accumulate a register ``tile`` (columns, vectors of channels, lanes) over its reduction."""
    sch.reorder(*serial, *unrolled, *tile)
    sch.vectorize(tile[-1])
    for loop in (*unrolled, *tile[:-1]):
        sch.unroll(loop)
    init = sch.decompose_reduction(contraction, (*serial, *unrolled)[0])
    *loops, lane = sch.get_loops(init)[-5:]
    sch.vectorize(lane)
    for loop in loops:
        sch.unroll(loop)
