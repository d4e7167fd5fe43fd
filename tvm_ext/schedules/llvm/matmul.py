"""Matrix product in register tiles, columns in vector lanes.

A panel of packed weights (K by the tile's columns) is swept over all row tiles of a block that
fits L2. Threads split columns (each reads its own part of the weights) or rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm import s_tir, tirx
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl
from tvm.target import Target

from ..machine import Machine
from .contraction import axis_kinds, divisors, is_static

__all__ = ["MatmulTiled", "MatmulTile", "choose_matmul_tile"]


@dataclass(frozen=True)
class MatmulTile:
    """``rows`` by ``vectors * lanes`` accumulators."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def choose_matmul_tile(target: Target, rows: int, columns: int, dtype: str) -> MatmulTile:
    """The register tile for a product of ``[rows, K]`` and ``[K, columns]``."""
    machine = Machine.of(target)
    lanes = machine.lanes(dtype)
    vectors = -(-columns // lanes)

    def cost(tile: MatmulTile) -> tuple[float, int]:
        done = -(-rows // tile.rows) * tile.rows * -(-vectors // tile.vectors) * tile.vectors
        accumulators = tile.rows * tile.vectors
        latency = max(1.0, 10 / accumulators) if rows > 1 else max(1.0, 4 / accumulators)
        loads = max(1.0, (tile.rows + tile.vectors) / accumulators / 0.6) if rows > 1 else 1.0
        uneven = 1.0 if -(-vectors // tile.vectors) % machine.cores == 0 or rows > 64 else 1.1
        return round(done / (rows * vectors) * latency * loads * uneven, 3), -accumulators

    tiles = [
        MatmulTile(r, v, lanes)
        for r in range(1, min(rows, 14) + 1)
        for v in range(1, min(vectors, 8) + 1)
        if r * v + v + 1 <= machine.registers
    ]
    return min(tiles, key=cost)


class MatmulTiled(dl.base.ScheduleRule):
    """[pack,] accumulate ``[.., rows, columns]`` tiles over one reduction axis, epilogue."""

    def apply(self, func, target, _tunable):
        if not isinstance(func, tirx.PrimFunc) or not is_static(func):
            return None
        sch = s_tir.Schedule(func)
        blocks = sch.get_child_blocks(sch.get_sblock("root"))
        kinds = [axis_kinds(sch.get(block)) for block in blocks]
        at = next((k for k, kind in enumerate(kinds) if "R" in kind), None)
        if at is None or at > 1 or kinds[at] not in ("SSSSR", "SSSSSR") or len(kinds) < at + 2:
            return None
        if any(set(kind) != {"S"} for k, kind in enumerate(kinds) if k != at):
            return None
        if not _is_tiled(sch.get(blocks[at]), sch.get(blocks[at + 1])):
            return None
        return self._schedule(sch, blocks[:at], blocks[at], blocks[at + 1:], Machine.of(target))

    def _schedule(self, sch, packs, product, epilogue, machine):
        rows, columns = (int(v.dom.extent) for v in sch.get(product).iter_vars[-3:-1])
        lanes = _lanes(columns, machine)
        for block in epilogue[:-1]:
            sch.compute_inline(block)
        output = epilogue[-1]
        depth = int(sch.get(product).iter_vars[-1].dom.extent)

        batched = len(sch.get(product).iter_vars) == 6
        *leading, column = sch.get_loops(output)
        width = int(sch.get(column).extent)
        if batched:
            *leading, row = leading
            batch = sch.fuse(*leading) if leading else None
        else:
            batch, row = None, sch.fuse(*leading) if leading else None
        if row is None:
            row = sch.add_unit_loop(column)
        height = int(sch.get(row).extent)
        io, ii = sch.split(row, [None, rows])
        jo, ji = sch.split(column, [None, columns])
        jv, lane = sch.split(ji, [None, lanes])
        row_tiles, column_tiles = -(-height // rows), -(-width // columns)
        block = divisors(row_tiles, max(1, machine.l2_bytes // 2 // (rows * depth * 4)))[-1]
        ib, io = sch.split(io, [None, block])
        sch.reorder(*([batch] if batch is not None else []), ib, jo, io, ii, jv, lane)
        outer = self._split_work(sch, machine, batch, ib, jo, row_tiles // block, column_tiles)
        if machine.cores > 1 and height * width * depth > 1 << 15:
            sch.parallel(outer)

        sch.set_scope(product, 0, "local")
        sch.compute_at(product, io, preserve_unit_loops=True)
        ci, cj, ck = sch.get_loops(product)[-3:]
        cv, cl = sch.split(cj, [None, lanes])
        steps = next(s for s in (4, 3, 2, 1) if depth % s == 0)
        ko, ki = sch.split(ck, [None, steps])
        sch.reorder(ko, ki, ci, cv, cl)
        sch.vectorize(cl)
        for loop in (ki, ci, cv):
            sch.unroll(loop)
        init = sch.decompose_reduction(product, ko)
        zi, zj, zl = sch.get_loops(init)[-3:]
        sch.vectorize(zl)
        sch.unroll(zj)
        sch.unroll(zi)
        sch.vectorize(lane)
        sch.unroll(jv)
        sch.unroll(ii)
        for pack in packs:
            self._pack(sch, pack, batch, lanes)
        return sch

    @staticmethod
    def _split_work(sch, machine, batch, ib, jo, row_blocks: int, column_tiles: int):
        """The loop that threads share, moved outermost."""
        if batch is not None and int(sch.get(batch).extent) >= machine.cores:
            return batch
        cores = machine.cores
        if column_tiles % cores == 0 or column_tiles >= 8 * cores or row_blocks < cores:
            if column_tiles % cores == 0:
                outer, inner = sch.split(jo, [cores, None])
                sch.reorder(outer, ib, inner)
                return outer
            sch.reorder(jo, ib)
            return jo
        return ib

    @staticmethod
    def _pack(sch, pack, batch, lanes: int) -> None:
        if batch is not None:
            sch.compute_at(pack, batch, preserve_unit_loops=True)
        loops = sch.get_loops(pack)
        extent = int(sch.get(loops[-1]).extent)
        if extent % lanes == 0:
            _, vector = sch.split(loops[-1], [None, lanes])
            sch.vectorize(vector)
        if batch is None:
            sch.parallel(loops[0])


def _is_tiled(product: SBlock, consumer: SBlock) -> bool:
    """Whether the consumer untiles an accumulator ``[.., row tiles, column tiles, rows, columns]``."""
    (written,) = product.writes
    sources = [region.source for region in consumer.reads]
    extents = [int(v.dom.extent) for v in product.iter_vars]
    return (
        written.source in sources
        and len(consumer.iter_vars) < len(product.iter_vars) + 2
        and len(product.reads) == 2
        and extents[-3] <= 16
        and prod(extents[-3:-1]) <= 32 * 64
    )


def _lanes(columns: int, machine: Machine) -> int:
    return next(d for d in range(min(columns, machine.lanes("float32")), 0, -1) if columns % d == 0)
