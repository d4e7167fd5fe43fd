"""Transposition: a block per tile, which passes through shared memory."""

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule
from tvm.target import Target

from .blocks import blocks_of, extent

__all__ = ["TiledTranspose"]


class TiledTranspose(GPUScheduleRule):
    """Takes ``y[i, ..., j] = f(x[permuted])`` where another axis than ``j`` is contiguous in x.

    Threads walk along the contiguous axis of ``x`` where they load a tile, along that of ``y``
    where they store it: both accesses are coalesced. ``f`` may read more, say a bias. Axes shorter
    than ``least`` would leave most of a tile empty.
    """

    def __init__(self, *, tile: int = 32, threads: int = 256, least: int = 16):
        self.tile = tile
        self.threads = threads
        self.least = least

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> s_tir.Schedule | None:
        """The schedule, or None where ``func`` has another structure."""
        if not self.is_target_available(target):
            return None
        sch = s_tir.Schedule(func)
        blocks = blocks_of(sch)
        if len(blocks) != 1 or not blocks[0].is_injective():
            return None
        block = blocks[0].block_rv
        found = _transposed(sch.get(block))
        if found is None:
            return None
        read, axes = found
        loops = sch.get_loops(block)
        along_y, along_x = loops[-1], loops[axes[-1]]
        if any((extent(sch, loop) or self.least) < self.least for loop in (along_x, along_y)):
            return None

        x_tile, x_inner = sch.split(along_x, [None, self.tile])
        y_tile, y_inner = sch.split(along_y, [None, self.tile])
        outer = [loop for k, loop in enumerate(loops[:-1]) if k != axes[-1]]
        sch.reorder(*outer, x_tile, y_tile, x_inner, y_inner)
        tiles = sch.fuse(*outer, x_tile, y_tile)
        sch.bind(tiles, "blockIdx.x")
        copy = sch.cache_read(block, read, "shared")
        sch.compute_at(copy, tiles, preserve_unit_loops=True)
        # An odd pitch: threads that walk along either axis meet different banks.
        sch.storage_align(copy, 0, axis=axes.index(len(axes) - 1), factor=2, offset=1)
        for inner in ([x_inner, y_inner], sch.get_loops(copy)[1:]):
            _, lane = sch.split(sch.fuse(*inner), [None, self.threads])
            sch.bind(lane, "threadIdx.x")
        return sch


def _transposed(block: s_tir.SBlock) -> tuple[int, list[int]] | None:
    """Which read of ``block`` is transposed, and for each of its axes that of the result."""
    variables = [axis.var for axis in block.iter_vars]
    if not isinstance(block.body, tirx.BufferStore) or list(block.body.indices) != variables:
        return None
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(block.body.value, (TensorLoad, loads.append), order="pre")
    for load in loads:
        indices = list(load.indices)
        if len(indices) == len(variables) and set(indices) == set(variables):
            axes = [variables.index(index) for index in indices]
            sources = [read.source for read in block.reads]
            if axes[-1] != len(axes) - 1 and sources.count(load.source) == 1:
                return sources.index(load.source), axes
    return None
