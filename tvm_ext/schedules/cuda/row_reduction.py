"""One block of threads per row: softmax, layer norm, instance norm, sums, arg-max."""

from math import prod
from re import fullmatch

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.analysis.common_analysis import collect_vars_used_in_prim_expr
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from .blocks import blocks_of

__all__ = ["RowReduction", "row_axes"]


class RowReduction(GPUScheduleRule):
    """Takes reductions "S..SR..R" of the same rows, then possibly a write "S..SS..S" of them.

    The axes of a row are the trailing ones; no row axis at all means one row. Every reduction
    ends in warp shuffles, its result lies in shared memory, and the write (with the activation
    and residual that fused into it) is spread over the same threads. Rows shorter than
    ``least`` are left to a thread each.
    """

    def __init__(self, *, least: int = 32, most_threads: int = 512):
        self.least = least
        self.most_threads = most_threads

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> s_tir.Schedule | None:
        """The schedule, or None where ``func`` has another structure."""
        if not self.is_target_available(target):
            return None
        sch = s_tir.Schedule(func)
        blocks = blocks_of(sch)
        rows = row_axes(sch, blocks)
        if rows is None:
            return None
        threads = self._threads(blocks, rows)
        if threads is None:
            return None

        *inner, last = (block.block_rv for block in blocks)
        loops = sch.get_loops(last)
        row = sch.fuse(*loops[:rows]) if rows else sch.add_unit_loop(loops[0] if loops else last)
        _spread(sch, _inner(sch, last, loops[rows:]), threads)
        sch.bind(row, "blockIdx.x")
        for block in reversed(inner):
            for k in range(len(sch.get(block).writes)):
                sch.set_scope(block, k, "shared")
            sch.compute_at(block, row, preserve_unit_loops=True)
            _spread(sch, _inner(sch, block, sch.get_loops(block)[1 + rows :]), threads)
        return sch

    def _threads(self, blocks: list[SBlockInfo], rows: int) -> int | None:
        """About four elements of the longest row to a thread, in whole warps."""
        lengths = [block.dom()[rows:] for block in blocks]
        if not all(isinstance(extent, int) for dom in lengths for extent in dom):
            return self.most_threads // 2
        longest = max(map(prod, lengths))
        if longest < self.least:
            return None
        threads = 32
        while threads < self.most_threads and threads * 4 < longest:
            threads *= 2
        return threads


def row_axes(sch: s_tir.Schedule, blocks: list[SBlockInfo]) -> int | None:
    """How many leading axes number the rows, None where ``blocks`` is not row work."""
    reductions = [block for block in blocks if "R" in block.dom_kind()]
    if not all(_reads_along_rows(sch.get(block.block_rv)) for block in reductions):
        return None
    if not reductions:
        return None
    rows = reductions[0].dom_kind().count("S")
    domain = reductions[0].dom()[:rows]
    alike = all(
        fullmatch(f"S{{{rows}}}(R+|S*)", block.dom_kind()) and block.dom()[:rows] == domain
        for block in blocks
    )
    return rows if alike else None


def _reads_along_rows(block: s_tir.SBlock) -> bool:
    """Do neighbouring threads read neighbouring elements, in every tensor of the row?"""
    *_, last = block.iter_vars
    regions = [[axis.min for axis in read.region] for read in block.reads]
    return all(
        last.var in collect_vars_used_in_prim_expr(region[-1])
        for region in regions
        if any(last.var in collect_vars_used_in_prim_expr(index) for index in region)
    )


def _inner(sch: s_tir.Schedule, block: SBlockRV, loops: list[LoopRV]) -> LoopRV:
    """The innermost ``loops`` of ``block`` as one; a loop of one trip where there are none."""
    return sch.fuse(*loops) if loops else sch.add_unit_loop(block)


def _spread(sch: s_tir.Schedule, loop: LoopRV, threads: int) -> None:
    """Neighbouring iterations of ``loop`` to neighbouring threads."""
    serial, thread = sch.split(loop, [None, threads])
    sch.reorder(thread, serial)
    sch.bind(thread, "threadIdx.x")
