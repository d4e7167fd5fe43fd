"""Winograd convolution in NCHW[x]c: transform windows, multiply point by point, transform back.

Tiles are taken in groups. A group whose transformed inputs and products fit L2 belongs to one
core, and nothing moves between cores; of a larger one, cores share the points and channels. The
choice between direct, m = 2 and m = 4 is a small model of the three costs there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from tvm import DataType, s_tir, tirx
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl
from tvm.target import Target

from ..machine import Machine
from ..numbers import NEVER, number
from ..statements import substituted
from .contraction import axis_kinds, divisors, is_batched, size, split_steps
from .conv2d import Tile, accumulate, choose_tile, run_by_itself
from .prefetch import COLD_WEIGHTS, prefetch_next_panel

__all__ = ["Conv2dWinograd", "Convolution", "WinogradModel", "WinogradPlan", "place_of_panel"]


# Numbers in a cache line of 64 bytes; points this far apart, or a multiple of it, share the ways of
# four sets of L1. 256 channels in 8 groups at 14 x 14, m = 4, two Zen 5 cores: 57 us, with a line
# more between points 37.
_LINE, _FEW_SETS = 16, 256
# Tiles of a long row that count as one of several: few, so that groups of rows fit a cache.
_PART = 16


@dataclass(frozen=True)
class Convolution:
    """A convolution: what goes in, what comes out (channels in whole blocks).

    ``height``, ``width``: of the result. ``phases``: the dilation along each. ``groups``: of
    channels, in whole blocks. ``window``: its taps along each; ``taps``: those of a part of it. Of
    one, nothing is transformed.
    """

    images: int
    inputs: int
    outputs: int
    height: int
    width: int
    in_lanes: int
    out_lanes: int
    stride: int = 1
    phases: tuple[int, int] = (1, 1)
    groups: int = 1
    window: tuple[int, int] = (3, 3)
    taps: tuple[int, int] = (3, 3)

    @property
    def parts(self) -> int:
        """Of the window, which are summed over."""
        return -(-max(self.window) // max(self.taps))

    @property
    def apart(self) -> Convolution:
        """The same with the phases of a dilation as images of their own."""
        down, across = self.phases
        height, width = -(-self.height // down), -(-self.width // across)
        images = self.images * prod(self.phases)
        return replace(self, images=images, height=height, width=width, phases=(1, 1))

    @property
    def of_one_row(self) -> bool:
        """Whether tiles lie in one row, which is long."""
        return self.height == self.taps[0] == 1

    def tile(self, m: int) -> tuple[int, int]:
        """The outputs of a tile, down and across."""
        down, across = (m if taps > 1 else 1 for taps in self.taps)
        return down, across

    @property
    def pairs(self) -> int:
        """Pairs of an input and an output channel."""
        return self.inputs * self.outputs // self.groups

    @property
    def blocks(self) -> int:
        """Blocks of outputs that share their inputs."""
        return self.outputs // self.out_lanes // self.groups


@dataclass(frozen=True)
class WinogradPlan:
    """Tiles of m x m outputs, grouped by ``images`` times ``rows`` of tiles; a register tile.

    ``readers``: the cores that read all weights, each for groups of its own. ``across``: so many
    tiles of an image of one row count as a row.
    """

    m: int
    images: int
    rows: int
    register: Tile
    readers: int = 1
    across: int | None = None

    @property
    def group(self) -> tuple[int, ...]:
        """What is transformed together, as the operator takes it."""
        own = (self.images, self.rows)
        return own if self.across is None else (*own, self.across)


@dataclass(frozen=True)
class WinogradModel:
    """Costs, in multiply-adds of a whole vector.

    Attributes:
        transform: of a point of a tile in one block of channels, there or back. 64 channels at
            56 x 56, two Zen 5 cores: 55 of 179 us.
        store: of a point of a tile in one block of the result, beside its products. Groups of 16
            channels have 16 of these: m = 2 of 384 channels at 7 x 7 takes 36 us, direct 33.
        weight_byte: of a byte of weights, which within a whole network come from memory. More than
            fetching it behind products takes (16.8 MB at 7 x 7, m = 2: 0.30 ms by itself, 0.39
            cold), for it takes memory, too: m = 4 at 14 x 14 makes ResNet-50 26 MB larger and 1 %
            faster.
        read_again: the part of that which weights cost each further core that reads them. 432
            channels in 9 groups at 14 x 14, m = 4, two Emerald Rapids cores: 0.38 ms where both
            read 3 MB, 0.27 ms where they share them.
        gain: the part of the direct cost that is worth the larger error and weights.
        own_weights: weights that a core may read again for each group of its own, in L2s (they
            come from L3). 128 channels at 56 x 56, m = 4: 0.67 ms, shared 1.0 ms or more; 256
            channels: the other way round.
        shared: what a group that all cores share may take of their caches, in L2s.
        direct: of the direct kernel relative to one of float32; its weights are as much smaller.
        added: the bytes that the weights of a convolution may grow by. 1024 to 512 channels at
            28 x 28: m = 4 adds 57 MB, m = 2 15 MB.
        sizes: the m to choose from.
        added_apart: a product and its sum are two instructions.
    """

    transform: float = 12.0
    store: float = 4.0
    weight_byte: float = 0.2
    read_again: float = 0.5
    gain: float = 0.85
    own_weights: float = 3.0
    shared: float = 4.0
    direct: float = 1.0
    added: int = 32 << 20
    sizes: tuple[int, ...] = (2, 4)
    added_apart: bool = False

    def choose(self, conv: Convolution, target: Target) -> WinogradPlan | None:
        """The plan of least cost; None where the direct kernel costs about as little, or weights
        would grow by too much."""
        plain = 4 * prod(conv.window) * conv.pairs * self.direct
        sizes = [m for m in self.sizes if _weight_bytes(conv, m) - plain <= self.added]
        plans = [self.plan(conv.apart, m, target) for m in sizes]
        if not plans:
            return None
        costs = [self.cost(conv.apart, plan) for plan in plans]
        least = min(costs)
        pays = least <= self.gain * self.direct_cost(conv, target)
        return plans[costs.index(least)] if pays else None

    def cost(self, conv: Convolution, plan: WinogradPlan) -> float:
        """Products, transforms, and weights to fetch."""
        bands, tiles = _bands_and_tiles(conv, plan)
        blocks = conv.parts * conv.inputs / conv.in_lanes + conv.outputs / conv.out_lanes
        rate = plan.register.rate(tiles, self.added_apart)
        products = conv.parts * conv.pairs / conv.out_lanes / rate
        products += conv.outputs / conv.out_lanes * self.store
        transform = self.transform * sum(taps > 1 for taps in conv.taps) / 2
        work = conv.images // plan.images * bands * tiles * (products + blocks * transform)
        fetched = _weight_bytes(conv, plan.m) * (1 + (plan.readers - 1) * self.read_again)
        return _points(conv, plan.m) * work + fetched * self.weight_byte

    def direct_cost(self, conv: Convolution, target: Target) -> float:
        """The same of the direct kernel."""
        tile = choose_tile(target, conv.blocks, conv.width, added_apart=self.added_apart)
        pixels = conv.images * conv.height * conv.width / conv.out_lanes
        rate = tile.rate(conv.width, self.added_apart)
        cost = prod(conv.window) * conv.pairs * (pixels / rate + 4 * self.weight_byte)
        return self.direct * cost

    def plan(self, conv: Convolution, m: int, target: Target) -> WinogradPlan:
        """The groups for one m: each core its own, unless one that all share wastes less."""
        machine = Machine.of(target)
        shared = self._shared(conv, m, target, machine)
        own = list(self._own(conv, m, target, machine))
        best = min(own, key=lambda plan: (self.cost(conv, plan), plan.rows), default=shared)
        slack = 1.05 * self.cost(conv, shared)
        return best if self.cost(conv, best) <= slack else shared

    def _own(
        self, conv: Convolution, m: int, target: Target, machine: Machine
    ) -> Iterator[WinogradPlan]:
        """Groups within L2, of one image, that cores can take evenly."""
        if _weight_bytes(conv, m) > self.own_weights * machine.l2_bytes:
            return
        all_rows = _all_rows(conv, m)
        for rows in range(1, min(all_rows, machine.l2_bytes // _row_bytes(conv, m)) + 1):
            if _even(conv.images * -(-all_rows // rows), machine.cores):
                yield replace(self._grouped(conv, m, 1, rows, target), readers=machine.cores)

    def _shared(self, conv: Convolution, m: int, target: Target, machine: Machine) -> WinogradPlan:
        """Whole images, or parts of one, that fit the caches together."""
        all_rows = _all_rows(conv, m)
        room = int(self.shared * machine.l2_bytes * machine.cores / _row_bytes(conv, m))
        if room >= all_rows:
            images = divisors(conv.images, room // all_rows)[-1]
            return self._grouped(conv, m, images, all_rows, target)
        bands = -(-all_rows // max(1, room))
        return self._grouped(conv, m, 1, -(-all_rows // bands), target)

    def _grouped(
        self, conv: Convolution, m: int, images: int, rows: int, target: Target
    ) -> WinogradPlan:
        across = _across(conv, m)
        tiles = images * rows * across
        tile = choose_tile(target, conv.blocks, tiles, added_apart=self.added_apart)
        return WinogradPlan(m, images, rows, tile, across=across if conv.of_one_row else None)


def _points(conv: Convolution, m: int) -> int:
    """Multiplications of a tile, for each pair of channels."""
    sides = zip(conv.tile(m), conv.taps, strict=True)
    return prod((side - 1) * conv.stride + taps for side, taps in sides)


def _weight_bytes(conv: Convolution, m: int) -> int:
    sides = zip(conv.tile(m), conv.taps, strict=True)
    return 4 * prod(side + taps - 1 for side, taps in sides) * conv.parts * conv.pairs


def _across(conv: Convolution, m: int) -> int:
    """Tiles in a row, or in a part of the only one."""
    tiles = -(-conv.width // conv.tile(m)[1])
    return -(-tiles // -(-tiles // _PART)) if conv.of_one_row else tiles


def _all_rows(conv: Convolution, m: int) -> int:
    """Rows of tiles."""
    down, across = conv.tile(m)
    if conv.of_one_row:
        return -(-conv.width // (across * _across(conv, m)))
    return -(-conv.height // down)


def _row_bytes(conv: Convolution, m: int) -> int:
    """Transformed inputs and products of a row of tiles."""
    channels = conv.parts * conv.inputs + conv.outputs
    return 4 * _points(conv, m) * channels * _across(conv, m)


def _bands_and_tiles(conv: Convolution, plan: WinogradPlan) -> tuple[int, int]:
    """Groups per set of images, and the tiles in each."""
    bands = -(-_all_rows(conv, plan.m) // plan.rows)
    return bands, plan.images * plan.rows * _across(conv, plan.m)


def _even(groups: int, cores: int) -> bool:
    return groups % cores == 0 or groups >= 8 * cores


@dataclass(frozen=True)
class Conv2dWinograd(dl.base.ScheduleRule):
    """[pad,] half and whole input transform, products, half and whole output transform, epilogue.

    float32[1, 64, 56, 56], 64 filters, two Zen 5 cores: 0.18 ms (direct 0.52 ms).

    Attributes:
        own: the part of L2 up to which a group of tiles belongs to one core.
        cold: bytes of weights from which on the next panel is prefetched.
    """

    own: float = number(1.0, 0.0, 4.0)
    cold: int = number(COLD_WEIGHTS, 0, NEVER)

    def apply(self, func, target, _tunable):
        kernel = _take_apart(func)
        if kernel is None:
            return None
        sch, machine = kernel.sch, Machine.of(target)
        group, row, tile, pixel = _output_loops(kernel)
        batches, bands = kernel.extents(kernel.outputs)[:2]
        fits = kernel.group_bytes <= self.own * machine.l2_bytes
        own = fits and _even(batches * bands, machine.cores)
        shared = machine.cores > 1 and not own
        if machine.cores > 1:
            sch.parallel(group if own else row)
        _transform(sch, kernel.outputs, kernel.half_out, tile)
        _unroll(sch, pixel)
        panels, turns = _products(kernel, group, shared)
        _inputs(kernel, group, shared)
        for block in (kernel.inputs, kernel.products):
            _spread_points(kernel, block)
        if kernel.joined is not None:
            run_by_itself(sch, kernel.joined)
            sch.vectorize(sch.get_loops(kernel.joined)[-1])
        if kernel.weight_bytes < self.cold:
            return sch
        stored = prod(kernel.weight_shape[:2])
        return prefetch_next_panel(sch, panels, turns, stored, kernel.place_of_panel)


@dataclass(frozen=True)
class _Kernel:
    """The blocks of a Winograd convolution."""

    sch: s_tir.Schedule
    pads: list
    result: object
    half_in: object
    inputs: object
    tiled: object
    products: object
    half_out: object
    outputs: object
    joined: object = None  # the result where that before is of the phases of a dilation

    def extents(self, block) -> list[int]:
        return [size(axis.dom.extent) for axis in self.sch.get(block).iter_vars]

    @property
    def group_bytes(self) -> int:
        """Transformed inputs and products of one group of tiles."""
        _, _, points, in_blocks, tiles, in_lanes = self.extents(self.inputs)
        out_blocks, _, out_lanes = self.extents(self.products)[3:]
        own, summed = (
            DataType(str(self.sch.get(block).writes[0].source.ty.dtype.dtype)).itemsize
            for block in (self.inputs, self.products)
        )
        return points * tiles * (own * in_blocks * in_lanes + summed * out_blocks * out_lanes)

    @property
    def weight_shape(self) -> list[int]:
        """Of weights by points, panels of channels of the result, channels of the input."""
        return [int(d) for d in self.sch.get(self.tiled).reads[-1].source.ty.shape]

    @property
    def weight_bytes(self) -> int:
        return 4 * prod(self.weight_shape)

    def place_of_panel(self, number: tirx.Expr) -> tirx.Expr:
        """Where the panel of that ``number`` lies."""
        return place_of_panel(self.sch.get(self.tiled), 2, number)


def place_of_panel(product: SBlock, axis: int, number: tirx.Expr) -> tirx.Expr:
    """Where the panel of that ``number`` lies: several points, along ``axis``, may have the same
    weights."""
    region = product.reads[-1]
    panels = int(region.source.ty.shape[1])
    point = substituted(region.region[0].min, {product.iter_vars[axis].var: number // panels})
    return point * panels + number % panels


# The annotation of products: the images, and the rows of tiles in each, that go together; of images
# of one row also how many of its tiles count as one of several.
_GROUP = "group"

# Half and whole input transform, products in register tiles and plain, half and whole output
# transform.
_BODY = ["S" * 7, "S" * 6, "S" * 7 + "RR", "S" * 6, "S" * 7, "S" * 7]


def _take_apart(func: tirx.PrimFunc) -> _Kernel | None:
    """The kernel if it has the blocks of ``_BODY`` between a pad and element-wise ones."""
    if not isinstance(func, tirx.PrimFunc) or not is_batched(func):
        return None
    sch = s_tir.Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    kinds = [axis_kinds(sch.get(block)) for block in blocks]
    first = kinds.index(_BODY[0]) if _BODY[0] in kinds else len(kinds)
    end = first + len(_BODY)
    if first > 2 or kinds[first:end] != _BODY or len(kinds) == end:
        return None
    # Signals, images, or volumes whose frames are convolved.
    if set(kinds[:first] + kinds[end:]) not in ({"S" * 4}, {"S" * 5}, {"S" * 6}):
        return None
    pads = blocks[:first][-1:]
    for block in blocks[:first]:
        if block not in pads:  # what pads copy
            sch.compute_inline(block)
    result, *others = blocks[end:]
    joins = bool(others) and sch.get(others[0]).name_hint == "joined"
    *inlined, last = others if joins else blocks[end:]
    for block in inlined:
        sch.compute_inline(block)
    joined = last if joins else None
    result = result if joins else last
    half_in, inputs, tiled, products, half_out, outputs = blocks[first:end]
    return _Kernel(sch, pads, result, half_in, inputs, tiled, products, half_out, outputs, joined)


def _spread_points(kernel: _Kernel, block) -> None:
    """Have the points of a tile lie in different sets of L1: one cache line more between them."""
    *_, blocks, tiles, lanes = kernel.extents(block)
    if blocks * tiles * lanes % _FEW_SETS == 0:
        kernel.sch.storage_align(block, 0, axis=2, factor=_FEW_SETS, offset=_LINE)


def _output_loops(kernel: _Kernel):
    """Loops of the result: over groups, over what threads may share in one, tiles, pixels."""
    sch = kernel.sch
    down, along = kernel.extents(kernel.outputs)[4:6]
    images, rows, *in_row = map(int, sch.get(kernel.tiled).annotations[_GROUP])
    n, o, *frames, w, lane = sch.get_loops(kernel.result)
    h = frames.pop() if frames else sch.add_unit_loop(w)  # a signal has no rows
    if frames:
        sch.reorder(n, *frames, o, h, w, lane)
        n = sch.fuse(n, *frames)
    batch, image = sch.split(n, [None, images])
    if in_row:
        band, row, tile, wi = sch.split(w, [None, rows, *in_row, along])
        hi = h
    else:
        band, row, hi = sch.split(h, [None, rows, down])
        tile, wi = sch.split(w, [None, along])
    sch.reorder(batch, band, o, image, row, tile, hi, wi, lane)
    return sch.fuse(batch, band), sch.fuse(o, image, row), tile, (hi, wi, lane)


def _transform(sch, whole, half, tile) -> None:
    """Both halves of a transform in registers, under the loop over tiles."""
    for block in (whole, half):
        sch.set_scope(block, 0, "local")
        sch.compute_at(block, tile, preserve_unit_loops=True)
        _unroll(sch, sch.get_loops(block)[-3:])


def _unroll(sch, loops) -> None:
    """All loops but the last, which becomes vector lanes."""
    *outer, lane = loops
    for loop in outer:
        sch.unroll(loop)
    sch.vectorize(lane)


def _products(kernel: _Kernel, group, shared: bool) -> tuple[list, list]:
    """A matrix product per point; a panel of its weights is swept over all tiles of the group.

    Returns the loops over panels, and those that use one.
    """
    sch = kernel.sch
    columns, lanes = kernel.extents(kernel.tiled)[5:7]
    sch.compute_at(kernel.products, group, preserve_unit_loops=True)
    point, o, t, lane = sch.get_loops(kernel.products)[-4:]
    panel, oi = sch.split(o, [None, kernel.weight_shape[-1] // lanes])
    tile, ti = sch.split(t, [None, columns])
    sch.reorder(point, panel, tile, oi, ti, lane)
    panels = [point, panel]
    if shared:
        panels = [sch.fuse(point, panel)]
        sch.parallel(*panels)
    sch.set_scope(kernel.tiled, 0, "local")
    sch.compute_at(kernel.tiled, tile, preserve_unit_loops=True)
    *_, vector, _, column, vector_lane, ro, ri = sch.get_loops(kernel.tiled)
    turns, steps = split_steps(sch, ri, (column, vector))
    accumulate(sch, kernel.tiled, (column, vector, vector_lane), [ro, turns], [steps])
    _unroll(sch, (oi, ti, lane))
    return panels, [tile, ro, turns]


def _inputs(kernel: _Kernel, group, shared: bool) -> None:
    """Pad and transform the windows of the group."""
    sch = kernel.sch
    sch.compute_at(kernel.inputs, group, preserve_unit_loops=True)
    point, o, tile, lane = sch.get_loops(kernel.inputs)[-4:]
    sch.reorder(o, tile, point, lane)
    if shared:
        tile = sch.fuse(o, tile)
        sch.parallel(tile)
    _unroll(sch, (point, lane))
    sch.set_scope(kernel.half_in, 0, "local")
    sch.compute_at(kernel.half_in, tile, preserve_unit_loops=True)
    _unroll(sch, sch.get_loops(kernel.half_in)[-3:])
    for pad in kernel.pads:
        if len(sch.get_loops(pad)) > 5:  # a frame serves several: all are padded once
            run_by_itself(sch, pad)
        else:
            sch.compute_at(pad, group, preserve_unit_loops=True)
            if shared:
                sch.parallel(sch.fuse(*sch.get_loops(pad)[1:4]))
        sch.vectorize(sch.get_loops(pad)[-1])
