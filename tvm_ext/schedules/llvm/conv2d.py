"""Direct convolution in NC..[x]c: a register tile of output channels and pixels.

The tile's accumulators stay in registers over the whole reduction; bias, residual and activation
are applied before the tile is stored. Threads split the batch, rows or output channels, always
the same way along a chain so that activations stay in the core that made them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import tvm_ffi
from tvm import DataType, s_tir, tirx
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl
from tvm.target import Target
from tvm_ffi import structural_equal

from ..machine import Machine
from ..numbers import NEVER, number
from ..statements import rescheduled
from .access import Walk
from .contraction import (
    axis_kinds,
    divisors,
    feeds,
    is_batched,
    is_number,
    shared_block,
    size,
    split_steps,
)
from .loops import hint_partition, moves, walk, with_simple_quotients
from .padded_taps import copies, guarded, guards, is_padded, pads_rows_alone, rows_seen
from .prefetch import COLD_WEIGHTS, prefetch_next_panel

__all__ = [
    "Conv2dBlocked",
    "DepthwiseBlocked",
    "Tile",
    "accumulate",
    "accumulate_row",
    "accumulate_tile",
    "choose_columns",
    "choose_tile",
    "holds_taps",
    "registers_for_pixels",
    "run_by_itself",
]

# Accumulators that hide the latency of two FMA units.
ENOUGH_ACCUMULATORS = 10
# Loads that an FMA bears. Zen 5: a tile of 2x8 (0.625) runs at the peak, 2x7 (0.643) at 97 % of it.
BEARABLE_LOADS = 0.63
# The same of a product and a sum apart, fewer of which fit a cycle. Zen 3, pairs of 16 bits:
# 64 channels to 64 at 56 x 56, tiles of 4x2 121 Gop/s of one core, 1x7 95.
BEARABLE_LOADS_APART = 0.8
# The part of all registers that a row of taps must leave to pixels, to be held in some.
LEFT_TO_PIXELS = 0.2
# As tvm_ext.ops.conv2d_blocked has it.
_IN_REGISTERS = "in_registers"
# The axes of what is computed for each pixel of an image.
_IMAGE = "SSSSS"
# From here on rows are worth splitting; below, weights outweigh activations.
ROWS_PER_SPLIT = 28
# Rows that a task pads for itself, where they divide those of the image; neighbours pad the rows
# that both see, each its own. 64 channels to 64 at 56 x 56, stride 2, between two small 1x1
# convolutions, two Emerald Rapids cores: 0.22 ms, padded before 0.26 ms.
_PADDED_ROWS = 4
# How often tasks may pad what is padded once for all of them.
_SEEN_TWICE = 2.0


@dataclass(frozen=True)
class Tile:
    """Accumulators: ``vectors`` of output channels by ``columns`` of pixels in a row."""

    vectors: int
    columns: int

    @property
    def accumulators(self) -> int:
        return self.vectors * self.columns

    def rate(self, width: int, added_apart: bool = False) -> float:
        """Useful FMAs relative to the peak, in a row of ``width`` pixels.

        ``added_apart``: a product and its sum are two instructions, the latter of one cycle.
        """
        enough = ENOUGH_ACCUMULATORS / (3 if added_apart else 1)
        latency = min(1.0, self.accumulators / enough)
        loads = (self.vectors + self.columns) / self.accumulators
        bearable = BEARABLE_LOADS_APART if added_apart else BEARABLE_LOADS
        useful = width / (-(-width // self.columns) * self.columns)
        return latency * min(1.0, bearable / loads) * useful


def choose_tile(
    target: Target, oc_blocks: int, width: int, paired: bool = False, added_apart: bool = False
) -> Tile:
    """The best register tile for ``oc_blocks`` vectors of channels on rows of ``width`` pixels.

    ``paired``: what is stored are pairs of vectors, if a tile that holds such is about as good.
    ``added_apart``: see :meth:`Tile.rate`; a product takes a register of its own then.
    """
    registers = Machine.of(target).registers - added_apart

    def worth(tile: Tile) -> tuple[float, int, int]:
        halves = paired and tile.vectors % 2 == 1
        # Among equals the larger tile, then the wider: fewer passes over the weights, which come
        # from L2. 512 channels at 7 x 7 by Winograd's method: 4x4 0.45-0.55 ms, 2x8 0.39.
        rate = round(tile.rate(width, added_apart) * (0.9 if halves else 1.0), 2)
        if added_apart:  # more channels: fewer passes over pixels, whose blocks lie apart
            return rate, tile.vectors, tile.columns
        return rate, tile.accumulators, tile.columns

    tiles = [
        tile
        for vectors in divisors(oc_blocks, 6)
        for columns in range(1, min(width, 28) + 1)
        if (tile := Tile(vectors, columns)).accumulators + vectors + 2 <= registers
    ]
    return max(tiles, key=worth)


def choose_columns(target: Target, width: int, taps: int) -> int:
    """Pixels of a row of ``width`` that one vector of channels is convolved at, ``taps`` wide.

    What is left of a row costs addresses of its own.
    """
    most = registers_for_pixels(Machine.of(target).registers, taps)

    def cost(columns: int) -> tuple[float, int]:
        done = -(-width // columns) * columns * (1.0 if width % columns == 0 else 1.2)
        return done * max(1.0, 4 / columns), -columns

    return min(range(1, min(width, most) + 1), key=cost)


def holds_taps(registers: int, taps: int) -> bool:
    """Whether a row of ``taps`` stays in registers, and leaves some to the sums of pixels.

    A longer one is read tap by tap, each for many pixels.
    """
    return registers - taps - 2 >= LEFT_TO_PIXELS * registers


def registers_for_pixels(registers: int, taps: int) -> int:
    """The registers that are left to the sums of a depthwise convolution, ``taps`` wide."""
    return registers - 2 - (taps if holds_taps(registers, taps) else 1)


@dataclass(frozen=True)
class _Kernel:
    """A convolution taken apart: [pad,] contraction, and the block that writes the result."""

    sch: s_tir.Schedule
    pads: list
    contraction: object
    output: object
    spatial: int  # how many axes of the image the window moves along
    image: tuple[int, ...]  # the shapes of the blocked input, N as 1 where it is symbolic,
    # and of the packed weights
    weight: tuple[int, ...]
    item: int  # bytes of an element of the input
    flat_rows: int | None = None  # of an image, where all of them are one

    @property
    def tile(self) -> tuple[int, int]:
        """Columns, and channels summed side by side, of a register tile."""
        columns, vector = self.sch.get(self.contraction).iter_vars[self.spatial + 2 :][:2]
        return int(columns.dom.extent), int(vector.dom.extent)

    @property
    def held(self) -> int:
        """Sums of different channels that become one element of the result."""
        (summed,) = (region.source for region in self.sch.get(self.contraction).writes)
        reads = self.sch.get(self.output).reads
        return max(int(read.region[1].extent) for read in reads if read.source.same_as(summed))

    @property
    def weight_bytes(self) -> int:
        return self.item * prod(self.weight)


def _take_apart(func: tirx.PrimFunc, summed: int) -> _Kernel | None:
    """The kernel if it is one tiled contraction between a pad and element-wise blocks.

    ``summed`` axes beside those of the window.
    """
    if not isinstance(func, tirx.PrimFunc) or not is_batched(func):
        return None
    sch = s_tir.Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    kinds = [axis_kinds(sch.get(block)) for block in blocks]
    # Numbers, products of scales, say, become part of each element of the result.
    tensors = {kinds[k] for k, block in enumerate(blocks) if not is_number(sch.get(block))}
    for spatial in (1, 2, 3):
        contraction = "S" * (spatial + 4) + "R" * (spatial + summed)
        known = {contraction, "S" * (spatial + 3), *([_IMAGE] if spatial == 1 else [])}
        if kinds.count(contraction) == 1 and tensors <= known:
            break
    else:
        return None
    at = kinds.index(contraction)
    operands = _operands(sch.get(blocks[at]), func, spatial, spatial + summed + 2)
    before = [block for block in blocks[:at] if feeds(sch, block, blocks[at])]
    if len(before) > 2 or at == len(blocks) - 1 or operands is None:
        return None
    flat = spatial == 1 and kinds[-1] == _IMAGE
    stored = [block for block in before if _IN_REGISTERS not in sch.get(block).annotations]
    pads = [block for block in stored[-1:] if not (flat and _is_reshape(walk(sch, block)))]
    for block in blocks[:-1]:
        if block not in (*pads, blocks[at]):
            sch.compute_inline(block)
    kernel = _Kernel(sch, pads, blocks[at], blocks[-1], spatial, *operands)
    if kernel.held > 1 or _names_values(sch.get(kernel.output)):
        kernel = _with_own_names(kernel)
    return _rows_as_one(kernel) if flat else kernel


def _names_values(block: SBlock) -> bool:
    """Whether a formula of ``block`` names a value; inlined twice, it defines the name twice."""
    names: list[tirx.Let] = []
    tvm_ffi.structural_walk(block.body, (tirx.Let, names.append))
    return bool(names)


def _is_reshape(facts: Walk) -> bool:
    """Whether a block only stores what it loads, and all of it."""
    if not moves(facts):
        return False
    store = facts.block.body
    written, read = (prod(map(size, b.ty.shape)) for b in (store.buffer, store.value.source))
    return written == read


def _rows_as_one(kernel: _Kernel) -> _Kernel | None:
    """``kernel``, of which the block that writes runs over pixels of an image by their numbers.

    None where tiles of the contraction are not of these.
    """
    sch = kernel.sch
    *_, height, width, _ = sch.get(kernel.output).iter_vars
    columns = width.dom.extent
    sch.transform_block_layout(
        kernel.output, lambda n, o, i, j, lane: (n, o, i * columns + j, lane)
    )
    sch = with_simple_quotients(sch, kernel.output)
    *pads, contraction, output = sch.get_child_blocks(sch.get_sblock("root"))
    (summed,) = (region.source for region in sch.get(contraction).writes)
    (read,) = (region for region in sch.get(output).reads if region.source.same_as(summed))
    tile, pixel = size(summed.ty.shape[3]), sch.get(output).iter_vars[2].var
    if not structural_equal(read.region[2].min, tirx.floordiv(pixel, tile), map_free_vars=True):
        return None
    rows = size(height.dom.extent)
    return replace(
        kernel, sch=sch, pads=pads, contraction=contraction, output=output, flat_rows=rows
    )


def _with_own_names(kernel: _Kernel) -> _Kernel:
    """``kernel``, where formulas that were inlined several times name values of their own."""
    sch = rescheduled(kernel.sch.mod["main"])
    *pads, contraction, output = sch.get_child_blocks(sch.get_sblock("root"))
    return replace(kernel, sch=sch, pads=pads, contraction=contraction, output=output)


def _operands(block: SBlock, func: tirx.PrimFunc, spatial: int, weight_rank: int) -> list | None:
    """The shapes of the image and of the weights, a parameter of ``weight_rank``, and bytes."""
    reads = [region.source for region in block.reads]
    shapes = [tuple(map(size, buffer.ty.shape)) for buffer in reads]
    if len(reads) != 2 or len(shapes[0]) != spatial + 3 or len(shapes[1]) != weight_rank:
        return None
    item = DataType(str(reads[0].ty.dtype.dtype)).itemsize
    return [*shapes, item] if reads[1] in set(func.params) else None


@dataclass(frozen=True)
class Conv2dBlocked(dl.base.ScheduleRule):
    """[pad,] dense or grouped convolution with packed weights, and its epilogue.

    float32[1, 64, 56, 56], 64 3x3 kernels, two Zen 4 cores: 230 GFLOP/s of a peak of 232.

    Attributes:
        cached: the part of L2 for the input rows that one tile of weights is swept over.
        cold: bytes of weights from which on the next panel is prefetched.
    """

    cached: float = number(0.5, 0.125, 2.0)
    cold: int = number(COLD_WEIGHTS, 0, NEVER)

    #: The axes of the reduction beside those of the window.
    summed: ClassVar[int] = 2
    #: Whether a step may read the image, under a condition, and need no pads.
    reads_image: ClassVar[bool] = True

    def register_tile(self, sch, contraction, unrolled, lane) -> list:
        """Accumulate the tile in registers; the serial loops of the reduction.

        ``unrolled`` and ``lane`` are the loops of the block that writes the tile.
        """
        return accumulate_tile(sch, contraction, unrolled, lane)

    def apply(self, func, target, _tunable):
        kernel = _take_apart(func, self.summed)
        if kernel is None:
            return None
        sch, machine = kernel.sch, Machine.of(target)
        padded = is_padded(sch, kernel.contraction)  # a rule may put another block in its place
        bare = self.reads_image and pads_rows_alone(sch, kernel.contraction, kernel.pads)
        if bare:
            for pad in kernel.pads:
                sch.compute_inline(pad)
            kernel = replace(kernel, pads=[])
        columns, _ = kernel.tile
        n, o, h, wo, wi, lane = _loops(kernel, columns)
        batch, oc_blocks, rows, lanes = (size(sch.get(loop).extent) for loop in (n, o, h, lane))
        # A vector of channels may be several blocks, of which the last has some too many; an
        # element of the result may hold two channels.
        blocks = kernel.weight[kernel.spatial + 3] // (lanes * kernel.held)
        tiles = -(-oc_blocks // blocks)

        oo, oi = sch.split(o, [None, blocks])
        block = _row_block(kernel, int(self.cached * machine.l2_bytes), machine, rows)
        image_rows, weights = kernel.flat_rows or rows, kernel.weight_bytes
        split = _who_splits(machine.cores, batch, image_rows, rows // block, tiles, weights)
        own_pads = bool(kernel.pads) and kernel.spatial == 2 and split != "channels"
        if own_pads:
            block = divisors(rows, max(block, _PADDED_ROWS))[-1]
        if split != "batch":
            sharing = {"rows": batch, "channels": tiles}[split]
            block = shared_block(machine.cores, sharing, rows, block)
        if own_pads and kernel.weight[2] > 1:  # else each row is read by one task
            own_pads = rows_seen(sch, kernel.contraction, block) <= _SEEN_TWICE
        hb, hi = sch.split(h, [None, block])
        sch.reorder(n, hb, oo, hi, wo, oi, wi, lane)
        task, panels, parts = _tasks(sch, split, machine.cores, n, hb, oo)
        if machine.cores > 1:
            sch.parallel(task)
        sch.set_scope(kernel.contraction, 0, "local")
        sch.compute_at(kernel.contraction, wo, preserve_unit_loops=True)
        for pad in kernel.pads:
            if own_pads:
                sch.compute_at(pad, hb if split == "batch" else task, preserve_unit_loops=True)
            else:
                run_by_itself(sch, pad)
            sch.vectorize(sch.get_loops(pad)[-1])
        depth = self.register_tile(sch, kernel.contraction, (oi, wi), lane)
        taps = depth[1 : 1 + kernel.spatial]
        seen = guards(sch, kernel.contraction, taps) if padded else {}
        if bare:
            seen |= guards(sch, kernel.contraction, taps[:-1], least=0.0)
        if kernel.weight_bytes >= self.cold:
            sch = prefetch_next_panel(sch, panels, [hi, wo, *depth], parts=parts)
        return guarded(sch, seen)


@dataclass(frozen=True)
class DepthwiseBlocked(dl.base.ScheduleRule):
    """[pad,] depthwise convolution of blocked channels, and its epilogue.

    Threads split rows where they can: so do the convolutions before and after.

    Rows of taps that registers do not hold are read tap by tap, each for many pixels of padded rows
    in L1.

    float32[1, 240, 28, 28], 5x5 windows and SiLU, two Zen 4 cores: 86 us.

    Attributes:
        cached: the part of L2 for the padded rows of a task, where pads are stored.
    """

    cached: float = number(0.25, 0.0625, 1.0)

    def apply(self, func, target, _tunable):
        kernel = _take_apart(func, 0)
        if kernel is None:
            return None
        sch, machine = kernel.sch, Machine.of(target)
        columns, _ = kernel.tile
        width = size(sch.get(sch.get_loops(kernel.output)[-2]).extent)
        n, o, h, wo, wi, lane = _loops(kernel, columns)
        batch, rows = (size(sch.get(loop).extent) for loop in (n, h))
        parts = 1 if batch % machine.cores == 0 or rows % machine.cores else machine.cores
        # Zeros around the image are not stored but left out, unless each tap would compute what
        # pads copy once, or ask in each turn whether it sees one.
        held = holds_taps(machine.registers, kernel.weight[kernel.spatial])
        plain = all(copies(sch, pad) for pad in kernel.pads)
        zeros = held and plain and is_padded(sch, kernel.contraction)
        near = kernel.spatial == 2 or (kernel.spatial == 1 and not held)
        if kernel.spatial == 1 and not held and width % columns:
            parts = 1  # what the last tile repeats is in one part with it
        room = int(self.cached * machine.l2_bytes)
        own = rows // parts
        part, h = sch.split(h, [parts, None])
        block, hi = sch.split(h, [None, own if zeros else _padded_rows(kernel, room, rows, own)])
        sch.reorder(n, part, o, block, hi, wo, wi, lane)
        task = [n, part] if batch * parts % machine.cores == 0 else [n, part, o]
        if machine.cores > 1:
            sch.parallel(sch.fuse(*task))
        if zeros:
            for pad in kernel.pads:
                sch.compute_inline(pad)
        sch.set_scope(kernel.contraction, 0, "local")
        # One loop of many turns: of a few LLVM would make straight code, each with its own edges.
        sch.compute_at(kernel.contraction, sch.fuse(hi, wo), preserve_unit_loops=True)
        rows_of_taps = accumulate_row(sch, kernel.contraction, kernel.spatial, machine.registers)
        sch.unroll(wi)
        sch.vectorize(lane)
        if zeros:
            return guarded(sch, guards(sch, kernel.contraction, rows_of_taps, least=0.0))
        for pad in kernel.pads:
            if near:
                sch.compute_at(pad, block, preserve_unit_loops=True)
            else:
                run_by_itself(sch, pad)
            *_, column, last = sch.get_loops(pad)
            sch.vectorize(last)
            hint_partition(sch, column)  # between the pads of a row
        return sch


def _loops(kernel: _Kernel, columns: int) -> tuple:
    """Batch, channels, rows, tiles of columns, columns and lanes of the block that writes.

    Over one spatial axis a tile of columns counts as a row; of three, the first two are one.
    """
    sch = kernel.sch
    n, o, *rows, w, lane = sch.get_loops(kernel.output)
    wo, wi = sch.split(w, [None, columns])
    window = kernel.weight[2 : 2 + kernel.spatial]
    if kernel.spatial == 3 and window[0] > 1 == window[1]:
        rows.reverse()  # neighbours see the same pixels, which stay in L2
        sch.reorder(*rows)
    if rows:
        return n, o, sch.fuse(*rows), wo, wi, lane
    return n, o, wo, sch.add_unit_loop(wi), wi, lane


def run_by_itself(sch, pad) -> None:
    """Pad before all else, rows shared."""
    *image, _, _ = sch.get_loops(pad)
    sch.parallel(sch.fuse(*image))


def _padded_rows(kernel: _Kernel, room: int, rows: int, part: int) -> int:
    """Of the ``part`` of all ``rows`` that a task has, those whose input takes ``room`` bytes.

    All of it where only much smaller blocks divide it: rows that windows share are padded twice.
    """
    if not kernel.pads or kernel.spatial != 2:
        return part
    shape = kernel.sch.get(kernel.pads[0]).writes[0].source.ty.shape
    _, _, height, width, lanes = map(size, shape)
    fitting = room // (4 * width * lanes) * rows // height
    block = divisors(part, max(1, fitting))[-1]
    return block if 4 * block >= min(fitting, part) else part


def accumulate_row(sch, contraction, spatial: int, registers: int) -> list:
    """Accumulate pixels of one row in registers, a row of the window at a time: the loops over it.

    The taps of a pixel follow each other: few of the inputs that it shares with the next are live.
    Of a row that registers do not hold, each tap meets all pixels before the next one.
    """
    block, *_ = sch.get_loops(contraction)[-2 * spatial - 3 :]
    column, lane, *tap_rows, tap = sch.get_loops(contraction)[-spatial - 2 :]
    held = holds_taps(registers, int(sch.get(tap).extent))
    turns = [*tap_rows, column, tap] if held else [*tap_rows, tap, column]
    sch.reorder(*turns, lane)
    for loop in (block, *turns[-1 - held :]):
        sch.unroll(loop)
    sch.vectorize(lane)
    first = turns[0]
    *_, column, lane = sch.get_loops(sch.decompose_reduction(contraction, first))
    sch.unroll(column)
    sch.vectorize(lane)
    return tap_rows


def _row_block(kernel: _Kernel, room: int, machine: Machine, rows: int) -> int:
    """Rows to sweep under one tile of weights: those whose input takes ``room`` bytes."""
    if kernel.weight_bytes <= machine.l2_bytes // 4:
        return 1
    image_rows = prod(kernel.image[2:-2]) if kernel.spatial > 1 else rows
    row_bytes = max(1, kernel.item * prod(kernel.image[1:]) // image_rows)
    return divisors(rows, max(1, room // row_bytes))[-1]


def _who_splits(
    cores: int, batch: int, rows: int, row_blocks: int, tiles: int, weight_bytes: int
) -> str:
    """What threads share: "batch", "rows" or "channels"."""
    if batch % cores == 0:
        return "batch"
    rows_even = batch * row_blocks % cores == 0 or batch * row_blocks >= 8 * cores
    if rows_even and (rows >= ROWS_PER_SPLIT or weight_bytes < 1 << 18):
        return "rows"
    return "channels" if tiles >= cores else "rows"


def _tasks(sch, split: str, cores: int, n, hb, oo) -> tuple:
    """The loop that threads share, the loops over panels, and in how many parts one is used.

    ``n``, ``hb``, ``oo``: the outermost loops, over images, blocks of rows and tiles of channels.
    """
    if split != "channels":
        return n if split == "batch" else sch.fuse(n, hb), [oo], 1
    if int(sch.get(oo).extent) % cores == 0:
        task, oo = sch.split(oo, [cores, None])
        sch.reorder(task, n, hb, oo)
        return task, [task, oo], 1
    # The rows of some tiles are shared, too. Images, of which the number may be symbolic, are not.
    sch.reorder(oo, hb, n)
    parts = int(sch.get(hb).extent)
    task = sch.fuse(oo, hb)
    return task, [task], parts


def accumulate_tile(sch, contraction, unrolled, lane) -> list:
    """Accumulate the tile in registers, channels in vector lanes.

    Returns the serial loops of the reduction.
    """
    spatial = axis_kinds(sch.get(contraction)).count("S") - 4
    vectors, *_, columns, vector = sch.get_loops(contraction)[-2 * spatial - 5 : -spatial - 2]
    *others, channels = sch.get_loops(contraction)[-spatial - 2 :]
    turns, steps = split_steps(sch, channels, (columns, vectors))
    serial = [*others, turns]
    accumulate(sch, contraction, (columns, vectors, vector), serial, [steps], spatial + 3)
    for loop in unrolled:
        sch.unroll(loop)
    sch.vectorize(lane)
    return serial


def accumulate(sch, contraction, tile, serial, unrolled, depth: int = 5) -> None:
    """Accumulate a register ``tile`` (columns, vectors of channels, lanes) over its reduction.

    The last ``depth`` loops of its init are those of the tile, some of them of one turn.
    """
    sch.reorder(*serial, *unrolled, *tile)
    sch.vectorize(tile[-1])
    for loop in (*unrolled, *tile[:-1]):
        sch.unroll(loop)
    init = sch.decompose_reduction(contraction, (*serial, *unrolled)[0])
    *loops, lane = sch.get_loops(init)[-depth:]
    sch.vectorize(lane)
    for loop in loops:
        sch.unroll(loop)
