"""Matrix product in register tiles, columns in vector lanes.

A panel of packed weights (K by the tile's columns) stays in L2 while all row tiles of a block are
swept over it; the rows stream from the last-level cache, and the next panel is fetched meanwhile.
Threads split columns (each reads its own part of the weights) or rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target
from tvm.tirx import IndexMap

from ..machine import Machine
from ..numbers import NEVER, number
from ..statements import rescheduled
from .contraction import (
    axis_kinds,
    divisors,
    excess,
    feeds,
    is_static,
    shared_block,
    split_steps,
)
from .prefetch import is_cold, prefetch_ahead, prefetch_next_panel

__all__ = ["MatmulTile", "MatmulTiled", "choose_matmul_tile", "register_tile"]

# Multiply-adds below which a parallel region costs more than it saves.
PARALLEL_WORK = 1 << 15
# Rows of a register tile at most: more rows sweep the panel of weights several times.
_TALLEST = 14
# The ways of L1, and the bytes of one: rows a multiple of it apart are in the same few lines.
_WAYS, _WAY = 8, 4096


@dataclass(frozen=True)
class MatmulTile:
    """``rows`` by ``vectors * lanes`` accumulators."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def choose_matmul_tile(
    target: Target,
    rows: int,
    columns: int,
    dtype: str,
    row_bytes: int,
    added_apart: bool = False,
) -> MatmulTile:
    """The register tile for a product of ``[rows, K]``, rows of so many bytes, and
    ``[K, columns]``.

    ``added_apart``: a product takes a register of its own, before it is added.
    """
    machine = Machine.of(target)
    lanes = machine.lanes(dtype)
    vectors = -(-columns // lanes)

    def cost(tile: MatmulTile) -> tuple[float, int]:
        done = -(-rows // tile.rows) * tile.rows * -(-vectors // tile.vectors) * tile.vectors
        accumulators = tile.rows * tile.vectors
        latency = max(1.0, 10 / accumulators) if rows > 1 else max(1.0, 4 / accumulators)
        loads = max(1.0, (tile.rows + tile.vectors) / accumulators / 0.6) if rows > 1 else 1.0
        tiles = -(-rows // tile.rows), -(-vectors // tile.vectors)
        uneven = _uneven(machine.cores, *tiles)
        # A step reads the panel's vectors from L2 and a number per row: 6x4 is slower than 8x3.
        reads = 1.0 + 1.0 / tile.rows + 0.3 / tile.vectors if rows > _TALLEST else 1.0
        collide = 1.15 if tile.rows > _WAYS and row_bytes % _WAY == 0 else 1.0
        factors = latency, loads, uneven, reads, collide
        return round(done / (rows * vectors) * prod(factors), 3), -accumulators

    tiles = [
        MatmulTile(r, v, lanes)
        for r in range(1, min(rows, _TALLEST) + 1)
        for v in range(1, min(vectors, 8) + 1)
        # The last ones spill.
        if r * v + v + 1 + added_apart <= machine.registers - machine.registers // 16
    ]
    return min(tiles, key=cost)


@dataclass(frozen=True)
class MatmulTiled(dl.base.ScheduleRule):
    """[pack,] accumulate ``[.., rows, columns]`` tiles over one reduction axis, epilogue.

    float32[128, 768] times cold weights [768, 3072], two Sapphire Rapids cores: 320 GFLOP/s of a
    peak of 400.

    Attributes:
        cached: the rows that a panel of weights is swept over, in L2s.
        steps: of the reduction, how many are unrolled at most.
        fetch: sweeps over a panel from which on the next one is prefetched.
    """

    cached: float = number(4.0, 0.5, 32.0)
    steps: int = number(4, 1, 2, 8)
    fetch: int = number(4, 1, NEVER)

    kinds: ClassVar[tuple[str, ...]] = ("SSSSR", "SSSSSR")

    def takes(self, product: SBlock) -> bool:
        """Whether the step of ``product`` is what :meth:`register_tile` makes registers of."""
        return True

    def register_tile(self, sch, product, at, lanes: int) -> LoopRV:
        """Accumulate under loop ``at``; the loop around the steps that are unrolled."""
        return register_tile(sch, product, at, lanes, self.steps)

    def apply(self, func, target, _tunable):
        if not isinstance(func, tirx.PrimFunc) or not is_static(func):
            return None
        sch = s_tir.Schedule(func)
        blocks = sch.get_child_blocks(sch.get_sblock("root"))
        kinds = [axis_kinds(sch.get(block)) for block in blocks]
        at = next((k for k, kind in enumerate(kinds) if "R" in kind), None)
        if at is None or kinds[at] not in self.kinds or len(kinds) < at + 2:
            return None
        if any(set(kind) != {"S"} for k, kind in enumerate(kinds) if k != at):
            return None
        spatial = kinds[at].count("S")
        product = sch.get(blocks[at])
        if not _is_tiled(product, sch.get(blocks[at + 1]), spatial) or not self.takes(product):
            return None
        scalars = [block for block in blocks[:at] if not sch.get_loops(block)]
        others = [block for block in blocks[:at] if block not in scalars]
        packs = [block for block in others if feeds(sch, block, blocks[at])]
        if len(packs) > 1:
            return None
        for block in (*scalars, *blocks[at + 1 : -1], *(b for b in others if b not in packs)):
            sch.compute_inline(block)
        if spatial == 4:
            sch = _with_one_row_axis(sch, blocks[-1])
        *packs, product, output = sch.get_child_blocks(sch.get_sblock("root"))
        return _schedule(sch, packs, product, output, Machine.of(target), spatial, self)


def _with_one_row_axis(sch: s_tir.Schedule, output: SBlockRV) -> s_tir.Schedule:
    """All axes of ``output`` but the last as one, and indices in terms of it.

    Fused loops alone would hide from the allocation of the accumulators that they are one tile.
    """
    *leading, _ = extents = [int(axis.dom.extent) for axis in sch.get(output).iter_vars]
    if len(leading) < 2:
        return sch

    def flat(*index):
        row = index[0]
        for i, extent in zip(index[1:-1], leading[1:], strict=True):
            row = row * extent + i
        return row, index[-1]

    dtype = str(sch.get(output).iter_vars[0].var.ty.dtype)
    sch.transform_block_layout(output, IndexMap.from_func(flat, len(extents), index_dtype=dtype))
    analyzer = sym.Analyzer()
    for axis in sch.get(output).iter_vars:
        analyzer.bind(axis.var, axis.dom)
    divisions = (tirx.FloorDiv, tirx.FloorMod)
    return rescheduled(tvm_ffi.structural_map(sch.mod["main"], (divisions, analyzer.simplify)))


def _schedule(
    sch, packs, product, output, machine: Machine, spatial: int, rule: MatmulTiled
) -> s_tir.Schedule:
    extents = [int(axis.dom.extent) for axis in sch.get(product).iter_vars]
    *outer, rows, columns = extents[:spatial]
    depth = prod(extents[spatial:])
    summed = str(sch.get(product).writes[0].source.ty.dtype.dtype)
    lanes = divisors(columns, machine.lanes(summed))[-1]
    batch, row, column = _three_loops(sch, output, batched=len(outer) == 3)
    height, width = (int(sch.get(loop).extent) for loop in (row, column))
    row_tiles, column_tiles = -(-height // rows), -(-width // columns)
    by_rows = _shares_rows(machine.cores, row_tiles, column_tiles)
    # Each block reads all weights again, from memory where they are cold: few large blocks.
    most = max(1, int(rule.cached * machine.l2_bytes) // (rows * depth * 4))
    block = shared_block(machine.cores if by_rows else 1, 1, row_tiles, most)

    io, ii = sch.split(row, [None, rows])
    ib, io = sch.split(io, [None, block])
    jo, ji = sch.split(column, [None, columns])
    jv, lane = sch.split(ji, [None, lanes])
    sch.reorder(*batch, ib, jo, io, ii, jv, lane)
    task, panels = _tasks(sch, machine.cores, batch, ib, jo, by_rows)
    if machine.cores > 1 and height * width * depth > PARALLEL_WORK:
        sch.parallel(task)
    weights = sch.get(product).reads[-1].source  # a rule may put other blocks in the place of it
    steps = rule.register_tile(sch, product, io, lanes)
    sch.vectorize(lane)
    for loop in (jv, ii):
        sch.unroll(loop)
    for pack in packs:
        _pack(sch, pack, batch, lanes)
    if weights not in set(sch.mod["main"].params):
        return sch
    if block >= rule.fetch:
        return prefetch_next_panel(sch, panels, [io, steps])
    once = row_tiles == 1 and not batch
    return prefetch_ahead(sch, [*panels, steps]) if once and is_cold(weights) else sch


def _three_loops(sch, output, batched: bool):
    """([batch] or [], rows, columns) of the block that writes the result."""
    *leading, column = sch.get_loops(output)
    if batched:
        *leading, row = leading
        return [sch.fuse(*leading)] if leading else [], row, column
    return [], sch.fuse(*leading) if leading else sch.add_unit_loop(column), column


def _uneven(cores: int, row_tiles: int, column_tiles: int) -> float:
    """What it costs to share tiles; rows of tiles that cores do not divide go one by one."""
    if row_tiles % cores == 0 or column_tiles % cores == 0:
        return 1.0
    return 0.05 + min(excess(cores, row_tiles), excess(cores, column_tiles))


def _shares_rows(cores: int, row_tiles: int, column_tiles: int) -> bool:
    """Whether threads share rows: columns are too few to share evenly."""
    if column_tiles % cores == 0 or column_tiles >= 8 * cores:
        return False
    return excess(cores, row_tiles) < excess(cores, column_tiles)


def _tasks(sch, cores: int, batch, ib, jo, by_rows: bool) -> tuple:
    """The loop that threads share, moved outermost, and the loops over panels."""
    if batch and int(sch.get(batch[0]).extent) >= cores:
        return batch[0], [jo]
    if by_rows:
        return ib, [jo]
    if int(sch.get(jo).extent) % cores == 0:
        outer, inner = sch.split(jo, [cores, None])
        sch.reorder(outer, ib, inner)
        return outer, [outer, inner]
    sch.reorder(jo, ib)
    return jo, [jo]


def register_tile(sch, product, at, lanes: int, most: int = 4) -> LoopRV:
    """Accumulate under loop ``at`` in registers; the loop around the steps that are unrolled.

    These are ``most`` at most.
    """
    sch.set_scope(product, 0, "local")
    sch.compute_at(product, at, preserve_unit_loops=True)
    rows, columns, depth = sch.get_loops(product)[-3:]
    vectors, lane = sch.split(columns, [None, lanes])
    outer, inner = split_steps(sch, depth, (rows, vectors), most)
    sch.reorder(outer, inner, rows, vectors, lane)
    sch.vectorize(lane)
    for loop in (inner, rows, vectors):
        sch.unroll(loop)
    init = sch.decompose_reduction(product, outer)
    *tile, lane = sch.get_loops(init)[-3:]
    sch.vectorize(lane)
    for loop in tile:
        sch.unroll(loop)
    return outer


def _pack(sch, pack, batch, lanes: int) -> None:
    if batch:
        sch.compute_at(pack, batch[0], preserve_unit_loops=True)
    else:
        sch.parallel(sch.get_loops(pack)[0])
    last = sch.get_loops(pack)[-1]
    if int(sch.get(last).extent) % lanes == 0:
        sch.vectorize(sch.split(last, [None, lanes])[1])


def _is_tiled(product: SBlock, consumer: SBlock, spatial: int) -> bool:
    """Whether the consumer untiles ``[.., row tiles, column tiles, rows, columns]``."""
    sources = [region.source for region in consumer.reads]
    tile = [int(v.dom.extent) for v in product.iter_vars[spatial - 2 : spatial]]
    return (
        # A maximum and its place are written together.
        [region.source in sources for region in product.writes] == [True]
        and len(consumer.iter_vars) < spatial + 3
        and len(product.reads) == 2
        and tile[0] <= 16
        and prod(tile) <= 32 * 64
        and not _is_read_as_it_lies(product, consumer)
    )


def _is_read_as_it_lies(product: SBlock, consumer: SBlock) -> bool:
    """Whether the axes of ``product`` are the consumer's: its last two are no register tile."""
    written = product.writes[0].source
    regions = [region.region for region in consumer.reads if region.source.same_as(written)]
    return all(isinstance(axis.min, tirx.Var) for region in regions for axis in region)
