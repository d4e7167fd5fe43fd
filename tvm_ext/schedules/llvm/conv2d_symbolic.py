"""Direct convolution in NC..[x]c of images whose rows or columns are symbolic.

As :mod:`.conv2d`, in overlapping tiles of several widths, of which the size decides at run time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tvm import DataType, ir, s_tir, tirx
from tvm.s_tir import dlight as dl
from tvm.s_tir.schedule import LoopRV

from ..machine import Machine
from ..numbers import number
from ..statements import rescheduled
from .contraction import axis_kinds, feeds, is_number, is_static, size
from .conv2d import (
    Tile,
    accumulate_row,
    accumulate_tile,
    holds_taps,
    registers_for_pixels,
    run_by_itself,
)
from .loops import equal
from .overlapping import Choice, choose, in_tiles
from .padded_taps import sees_zeros, without_zeros
from .prefetch import is_cold, prefetch_in_sweeps

__all__ = ["Conv2dSymbolic"]

# Tiles narrower than this part of the widest that registers hold are those of one column.
_PARTS = 1, 2, 4
_WIDEST = 28


@dataclass(frozen=True)
class _Kernel:
    """[pad,] contraction, and the block that writes the result; element-wise ones inlined."""

    sch: s_tir.Schedule
    spatial: int
    depthwise: bool
    weight: tuple[int, ...]
    item: int

    @property
    def blocks(self) -> list:
        return self.sch.get_child_blocks(self.sch.get_sblock("root"))

    @property
    def width(self) -> ir.Expr:
        """The columns of the result."""
        return self.sch.get(self.blocks[-1]).iter_vars[self.spatial + 1].dom.extent

    @property
    def vector(self) -> int:
        """Channels that are summed side by side."""
        return int(self.sch.get(self.blocks[-2]).iter_vars[self.spatial + 2].dom.extent)

    @property
    def vectors(self) -> int:
        """Vectors in a panel of weights."""
        return 1 if self.depthwise else self.weight[-1] // self.vector


@dataclass(frozen=True)
class Conv2dSymbolic(dl.base.ScheduleRule):
    """[pad,] convolution with packed weights, dense, grouped or depthwise, and its epilogue.

    float32[1, 64, h, w] of 256 x 256, 64 3x3 kernels, two Zen 5 cores: 435 GFLOP/s of 521.

    Attributes:
        shared: the part of L2 from which on threads share weights, not rows.
    """

    shared: float = number(0.5, 0.125, 8.0)

    def apply(self, func, target, _tunable):
        kernel = _take_apart(func)
        if kernel is None:
            return None
        machine = Machine.of(target)
        tiled = [
            (tile, in_tiles(kernel.sch.mod["main"], [kernel.spatial + 1] * 2, tile.columns))
            for tile in _tiles(kernel, machine)
        ]
        if any(func is None for _, func in tiled):
            return None
        choices = [
            Choice(
                tile.columns,
                tile.rate(tile.columns),
                self._scheduled(replace(kernel, sch=rescheduled(func)), machine),
            )
            for tile, func in tiled
        ]
        return choose(kernel.width, choices)

    def _scheduled(self, kernel: _Kernel, machine: Machine) -> s_tir.Schedule:
        """The kernel in tiles of one width."""
        if kernel.depthwise:
            return _depthwise(kernel, machine)
        sch = kernel.sch
        *pads, contraction, output = kernel.blocks
        n, o, *rows, tile, column, lane = sch.get_loops(output)
        one = _is_one(sch, rows)
        row = sch.fuse(*rows, tile) if one else sch.fuse(*rows)
        tile = sch.add_unit_loop(column) if one else tile
        lanes = int(sch.get(lane).extent)
        blocks = kernel.weight[-1] // lanes
        panel, vector = sch.split(o, [None, blocks])
        count = size(sch.get(panel).extent)
        weights = kernel.item * prod(kernel.weight)
        by_panel = weights >= self.shared * machine.l2_bytes and count >= machine.cores
        if by_panel:
            sch.reorder(panel, n, row, tile, vector, column, lane)
            outer = panel
        else:
            sch.reorder(n, row, panel, tile, vector, column, lane)
            outer = _images_of_rows(sch, n, row)
        if machine.cores > 1:
            sch.parallel(outer)
        for pad in pads:
            run_by_itself(sch, pad)
            (sch.unroll if _packs(sch, pad) else sch.vectorize)(sch.get_loops(pad)[-1])
        sch.set_scope(contraction, 0, "local")
        sch.compute_at(contraction, tile, preserve_unit_loops=True)
        depth = accumulate_tile(sch, contraction, (vector, column), lane)
        cold = by_panel and is_cold(sch.get(contraction).reads[-1].source)
        return prefetch_in_sweeps(sch, panel, [n, row, tile], depth) if cold else sch


def _depthwise(kernel: _Kernel, machine: Machine) -> s_tir.Schedule:
    """The kernel in tiles of one width: threads split rows, as convolutions before and after do."""
    sch = kernel.sch
    *pads, contraction, output = kernel.blocks
    seen = all(sees_zeros(sch, contraction, pad) for pad in pads) and holds_taps(
        machine.registers, kernel.weight[-2]
    )
    for pad in pads:
        if seen:
            sch.compute_inline(pad)
        else:
            run_by_itself(sch, pad)
            sch.vectorize(sch.get_loops(pad)[-1])
    n, o, *rows, tile, column, lane = sch.get_loops(output)
    if _is_one(sch, rows):
        sch.reorder(n, o, *rows, tile)
        tile, outer = sch.add_unit_loop(column), sch.fuse(n, o)
    elif len(rows) > 1:  # TVM cannot tell depth and height where cores share both unevenly
        sch.reorder(n, *rows, o)
        outer = _images_of_rows(sch, n, sch.fuse(*rows))
    else:
        part, row = sch.split(*rows, [machine.cores, None])
        sch.reorder(n, part, o, row)
        outer = sch.fuse(n, part)
    if machine.cores > 1:
        sch.parallel(outer)
    sch.set_scope(contraction, 0, "local")
    sch.compute_at(contraction, tile, preserve_unit_loops=True)
    rows_of_taps = accumulate_row(sch, contraction, kernel.spatial, machine.registers)
    sch.unroll(column)
    sch.vectorize(lane)
    return without_zeros(sch, contraction, rows_of_taps) if pads and seen else sch


def _images_of_rows(sch: s_tir.Schedule, image: LoopRV, row: LoopRV) -> LoopRV:
    """The loop that threads share: both as one, or that over rows, with all images inside.

    Twice a sum of sizes is another sum, in which TVM would not find images and rows again.
    """
    images, rows = (sch.get(loop).extent for loop in (image, row))
    if isinstance(rows, tirx.Add | tirx.Sub) and not equal(images, 1):
        sch.reorder(row, image)
        return row
    return sch.fuse(image, row)


def _is_one(sch: s_tir.Schedule, rows: list) -> bool:
    """Whether images have a single row, or are rows: no rows for threads to share."""
    extents = [sch.get(row).extent for row in rows]
    return all(isinstance(extent, tirx.IntImm) and int(extent) == 1 for extent in extents)


def _packs(sch: s_tir.Schedule, pad) -> bool:
    """Whether ``pad`` makes words of bytes: LLVM merges the loads of a word, not those of many."""
    block = sch.get(pad)
    (word,) = (_item(region) for region in block.writes)
    return word > 1 and any(_item(region) == 1 for region in block.reads)


def _item(region) -> int:
    return DataType(str(region.source.ty.dtype.dtype)).itemsize


def _tiles(kernel: _Kernel, machine: Machine) -> list[Tile]:
    """Register tiles from the widest to those of one column."""
    vectors = kernel.vectors
    if kernel.depthwise:
        free = registers_for_pixels(machine.registers, kernel.weight[-2])
    else:
        free = machine.registers - vectors - 2
    widest = min(_WIDEST, max(1, free // vectors))
    widths = {max(1, widest // part) for part in _PARTS} | {1}
    return [Tile(vectors, columns) for columns in sorted(widths, reverse=True)]


def _take_apart(func: tirx.PrimFunc) -> _Kernel | None:
    if not isinstance(func, tirx.PrimFunc) or is_static(func):
        return None
    sch = s_tir.Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    kinds = [axis_kinds(sch.get(block)) for block in blocks]
    # Numbers, products of scales, say, become part of each element of the result.
    tensors = {kinds[k] for k, block in enumerate(blocks) if not is_number(sch.get(block))}
    forms = [
        (spatial, summed)
        for spatial in (1, 2, 3)
        for summed in (0, 2)
        if kinds.count("S" * (spatial + 3) + "R" * (spatial + summed)) == 1
        and tensors == {"S" * (spatial + 3), "S" * (spatial + 3) + "R" * (spatial + summed)}
    ]
    if len(forms) != 1:
        return None
    ((spatial, summed),) = forms
    at = kinds.index("S" * (spatial + 3) + "R" * (spatial + summed))
    regions = sch.get(blocks[at]).reads
    reads = [region.source for region in regions]
    if len(reads) != 2 or reads[1] not in set(func.params) or at == len(blocks) - 1:
        return None
    weight = reads[1].ty.shape
    if len(weight) != spatial + summed + 2 or not all(isinstance(d, tirx.IntImm) for d in weight):
        return None
    pads = [block for block in blocks[:at] if feeds(sch, block, blocks[at])]
    for block in blocks[:-1]:
        if block not in (*pads[-1:], blocks[at]):
            sch.compute_inline(block)
    return _Kernel(sch, spatial, summed == 0, tuple(map(int, weight)), _item(regions[0]))
