"""Winograd convolution in NCHW[x]c of images whose rows or columns are symbolic.

As :mod:`.winograd`, in groups of a fixed number of tiles, the last of which overlaps the one
before it: see :mod:`.overlapping`. Each group belongs to one core.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir import Range, TensorLoad
from tvm.ir.expr import TensorRegion
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl

from ..machine import Machine
from ..numbers import number
from ..statements import rescheduled
from .contraction import axis_kinds, is_static, split_steps
from .conv2d import Tile, accumulate
from .overlapping import Choice, Spread, choose, in_tiles
from .prefetch import is_cold, prefetch_next_panel
from .register_tiles import int64, same
from .winograd import place_of_panel

__all__ = ["Conv2dWinogradSymbolic"]

# Windows, half and whole input transform, products in registers and in memory, half and whole
# output transform: their axes, and which of these numbers the tiles.
_BODY = ["SSSSS", "SSSSS", "SSSS", "SSSSRR", "SSSS", "SSSSS", "SSSSS"]
_TILES = [1, 1, 2, 2, 2, 1, 1]
# Tiles in a group where there are not many: of 7 x 7 pixels by 2 x 2, two groups, for two cores.
_FEW = 8


@dataclass(frozen=True)
class Conv2dWinogradSymbolic(dl.base.ScheduleRule):
    """Windows, transforms and products of tiles along one symbolic axis, epilogue.

    float32[1, 64, h, w] of 256 x 256, 64 filters, two Zen 5 cores: 4.2 ms (direct 11.1 ms).

    Attributes:
        room: what the transformed inputs and products of a group may take, in L2s.
    """

    room: float = number(2.0, 0.25, 8.0)

    def apply(self, func, target, _tunable):
        taken = _take_apart(func)
        if taken is None:
            return None
        sch, blocks = taken
        machine = Machine.of(target)
        inputs, summed = sch.get(blocks[2]), sch.get(blocks[3])
        lanes = int(summed.iter_vars[3].dom.extent)
        vectors = int(summed.reads[-1].source.ty.shape[-1]) // lanes
        bytes_per_tile = 4 * sum(_volume(block, 2) for block in (inputs, summed))
        func, tiles = sch.mod["main"], summed.iter_vars[2].dom.extent
        columns = (machine.registers - vectors - 2) // vectors
        fitting = int(self.room * machine.l2_bytes) // (bytes_per_tile * columns)
        wide = columns * max(1, min(2, fitting))
        few = min(columns, _FEW)
        choices = []
        for most, tile in {wide: columns, few: few, 1: 1}.items():
            own = in_tiles(func, _TILES, most, _places)
            if own is None:
                return None
            made = _scheduled(rescheduled(own), tile, vectors, machine)
            choices.append(Choice(most, Tile(vectors, tile).rate(tile), made))
        return choose(tiles, choices)


def _scheduled(sch: s_tir.Schedule, columns: int, vectors: int, machine: Machine) -> s_tir.Schedule:
    """Groups of tiles, each transformed, multiplied and transformed back by one core."""
    windows, half_in, inputs, summed, products, half_out, outputs, result = sch.get_child_blocks(
        sch.get_sblock("root")
    )
    group, _, place, *_, lane = sch.get_loops(result)
    if machine.cores > 1:
        sch.parallel(group)
    sch.vectorize(lane)
    for block in (outputs, half_out):
        sch.set_scope(block, 0, "local")
        sch.compute_at(block, place, preserve_unit_loops=True)
        _unroll(sch, sch.get_loops(block)[-3:])
    sch.compute_at(products, group, preserve_unit_loops=True)
    point, channel, _, tile, lane = sch.get_loops(products)[-5:]
    panel, vector = sch.split(channel, [None, vectors])
    tile, column = sch.split(tile, [None, columns])
    sch.reorder(point, panel, tile, vector, column, lane)
    sch.set_scope(summed, 0, "local")
    sch.compute_at(summed, tile, preserve_unit_loops=True)
    _, own_vector, _, own_column, own_lane, ro, ri = sch.get_loops(summed)[-7:]
    turns, steps = split_steps(sch, ri, (own_column, own_vector))
    accumulate(sch, summed, (own_column, own_vector, own_lane), [ro, turns], [steps])
    _unroll(sch, (vector, column, lane))
    sch.compute_at(inputs, group, preserve_unit_loops=True)
    own_point, channel, _, own_place, lane = sch.get_loops(inputs)[-5:]
    sch.reorder(channel, own_place, own_point, lane)
    _unroll(sch, (own_point, lane))
    for block in (half_in, windows):
        sch.set_scope(block, 0, "local")
        sch.compute_at(block, own_place, preserve_unit_loops=True)
    _unroll(sch, sch.get_loops(half_in)[-3:])
    sch.vectorize(sch.get_loops(windows)[-1])
    # A single tile does so little with a line that the core loads far ahead by itself.
    block = sch.get(summed)
    weights = block.reads[-1].source
    if columns == 1 or not is_cold(weights):
        return sch
    stored = prod(map(int, weights.ty.shape[:2]))
    place_of = partial(place_of_panel, block, 0)
    return prefetch_next_panel(sch, [point, panel], [tile, ro, turns], stored, place_of)


def _unroll(sch: s_tir.Schedule, loops) -> None:
    """All loops but the last, which becomes vector lanes."""
    *outer, lane = loops
    for loop in outer:
        sch.unroll(loop)
    sch.vectorize(lane)


def _volume(block: SBlock, without: int) -> int:
    axes = [axis for k, axis in enumerate(block.iter_vars[:4]) if k != without]
    return prod(int(axis.dom.extent) for axis in axes)


def _take_apart(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, list] | None:
    """The schedule and the blocks of ``_BODY`` and the last one, if these are all but a pad."""
    if not isinstance(func, tirx.PrimFunc) or is_static(func):
        return None
    sch = rescheduled(_reading_all_tiles(func))
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    kinds = [axis_kinds(sch.get(block)) for block in blocks]
    end = len(_BODY)
    if kinds[:end] != _BODY or set(kinds[end:]) not in ({"SSSS"}, {"SSSSS"}):
        return None
    for block in blocks[end:-1]:
        sch.compute_inline(block)
    found = [*blocks[:end], blocks[-1]]
    return None if _tiling(sch.get(found[-1])) is None else (sch, found)


def _reading_all_tiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, of which the block that reads tiles pixel by pixel says that it reads all of them:
    of a single signal TVM does not see that it does."""

    def whole(region: TensorRegion) -> TensorRegion:
        return tirx.BufferRegion(
            region.source, [Range(int64(0), size) for size in region.source.ty.shape]
        )

    def block(node: SBlock) -> SBlock:
        if len(node.iter_vars) not in (4, 5) or _tiling(node) is None:
            return node
        return SBlock(
            node.iter_vars,
            list(map(whole, node.reads)),
            node.writes,
            node.name_hint,
            node.body,
            node.init,
            node.alloc_buffers,
            node.match_buffers,
            node.annotations,
        )

    return tvm_ffi.structural_map(func, (SBlock, block))


def _places(block: SBlock, tile: tirx.IterVar, place: tirx.IterVar, number: ir.Expr) -> Spread:
    """The pixels of a tile, by its ``number`` among those of all images."""
    image, channel, *rows, column, lane = block.iter_vars
    tiling = _tiling(block)
    assert tiling is not None
    sides, (high, wide), by_columns = tiling
    down, across = _tiles_of(block, sides, (high, wide))
    ranges = (tirx.Var(name, "int64") for name in ("i", "j"))
    i, j = (
        tirx.IterVar(Range(int64(0), int64(m)), v, tirx.IterVar.DataPar)
        for m, v in zip(sides, ranges, strict=True)
    )
    phase = tirx.floordiv(number, down * across)
    inner, outer = (down, across) if by_columns else (across, down)
    places = tirx.floormod(tirx.floordiv(number, inner), outer), tirx.floormod(number, inner)
    tile_row, tile_column = places[::-1] if by_columns else places
    own_phase = tirx.floormod(tirx.floordiv(phase, wide), high)
    at_row = (tile_row * sides[0] + i.var) * high + own_phase
    at_column = (tile_column * sides[1] + j.var) * wide + tirx.floormod(phase, wide)
    guards = [at_row < row.dom.extent for row in rows]
    return Spread(
        [tile, channel, place, i, j, lane],
        {image.var: tirx.floordiv(phase, high * wide), column.var: at_column}
        | {row.var: at_row for row in rows},
        tirx.all(*guards, at_column < column.dom.extent),
        lambda former: [former[0], tile.var, place.var, i.var, j.var, former[4]],
    )


def _tiling(block: SBlock) -> tuple[tuple[int, int], tuple[int, int], bool] | None:
    """The sides of the tiles of which ``block`` reads pixel by pixel, the phases of an image along
    each, and whether tiles are numbered down the columns.

    None where it does not.
    """
    image, _, *rows, column, _ = (axis.var for axis in block.iter_vars)
    row = rows[0] if rows else int64(0)
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(block.body, (TensorLoad, loads.append))
    for node in loads:
        shape = node.source.ty.shape
        if len(shape) != 5 or not all(isinstance(side, tirx.IntImm) for side in shape[2:4]):
            continue
        sides = int(shape[2]), int(shape[3])
        for high, wide in product(*map(_numbers, node.indices[2:4])):
            down, across = _tiles_of(block, sides, (high, wide))
            phase = image * high + tirx.floormod(row, high)
            phase = phase * wide + tirx.floormod(column, wide)
            places = tirx.floordiv(row, high), tirx.floordiv(column, wide)
            inside = map(tirx.floormod, places, map(int64, sides))
            if not all(map(same, node.indices[2:4], inside)):
                continue
            at_row, at_column = map(tirx.floordiv, places, map(int64, sides))
            if same(node.indices[1], (phase * down + at_row) * across + at_column):
                return sides, (high, wide), False
            if same(node.indices[1], (phase * across + at_column) * down + at_row):
                return sides, (high, wide), True
    return None


def _tiles_of(block: SBlock, sides: tuple[int, int], phases: tuple[int, int]) -> list[ir.Expr]:
    """How many tiles each phase has down and across; a signal has one row."""
    extents = [axis.dom.extent for axis in block.iter_vars[2:-1]]
    extents = [int64(1), *extents][-2:]
    return [
        tirx.floordiv(extent + (side * phase - 1), side * phase)
        for extent, side, phase in zip(extents, sides, phases, strict=True)
    ]


def _numbers(index: ir.Expr) -> list[int]:
    """1, and the other numbers above 0 in ``index``."""
    found = {1}
    tvm_ffi.structural_walk(index, (tirx.IntImm, lambda node: found.add(int(node))))
    return sorted(n for n in found if n > 0)
