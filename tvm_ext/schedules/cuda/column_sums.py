"""Long sums of few elements that lie side by side: products of one row, sums over leading axes."""

from math import prod

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.analysis.common_analysis import collect_vars_used_in_prim_expr
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from .blocks import blocks_of, feeds, loops_of, reduces

__all__ = ["ColumnSums"]

# Terms that a thread adds up at least, and those whose loads it has in flight at a time.
TERMS = 16
IN_FLIGHT = 32


class ColumnSums(GPUScheduleRule):
    """Takes ``y[.., j] += f(a[.., k, j], ..)``, and an injective block behind it.

    A block of threads has some neighbouring elements, so that it reads whole sectors of memory,
    and for each of them groups of threads, which share the terms and add up their sums in shared
    memory. A kernel of at most ``few`` elements gets narrow blocks, the first of ``columns``, to
    reach all multiprocessors.
    """

    def __init__(self, *, threads: int = 512, columns: tuple[int, int] = (8, 32), few: int = 2048):
        self.threads = threads
        self.columns = columns
        self.few = few

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> s_tir.Schedule | None:
        """The schedule, or None where ``func`` has another structure."""
        if not self.is_target_available(target):
            return None
        sch = s_tir.Schedule(func)
        blocks = blocks_of(sch)
        if not 1 <= len(blocks) <= 2 or not reduces(blocks[0]):
            return None
        summed, *behind = blocks
        if behind and not feeds(sch, summed, behind[0]):
            return None
        elements, terms = (
            [axis.dom for axis in summed.iters if axis.kind == kind] for kind in ("S", "R")
        )
        static = all(isinstance(extent, int) for extent in (*elements, *terms))
        if not static or not elements or not _reads_columns(sch.get(summed.block_rv)):
            return None
        self._schedule(sch, summed.block_rv, behind, prod(elements), prod(terms))
        return sch

    def _schedule(
        self,
        sch: s_tir.Schedule,
        block: SBlockRV,
        behind: list[SBlockInfo],
        elements: int,
        terms: int,
    ) -> None:
        """Bind ``block``, which adds up so many terms for each of so many elements."""
        columns = self.columns[0 if elements <= self.few else 1]
        groups = 1
        while groups * columns < self.threads and groups * TERMS < terms:
            groups *= 2
        spatial, reduction = loops_of(sch, block)
        sch.reorder(*spatial, *reduction)
        place, column = sch.split(sch.fuse(*spatial), [None, columns])
        turn, together, group = sch.split(
            sch.fuse(*reduction), [None, min(-(-terms // groups), IN_FLIGHT), groups]
        )
        sch.reorder(place, column, group, turn, together)
        sch.unroll(together)
        sch.bind(place, "blockIdx.x")
        sch.bind(column, "threadIdx.x")
        sch.bind(group, "threadIdx.y")
        if behind:
            sch.set_scope(block, 0, "local")
            sch.reverse_compute_at(behind[0].block_rv, column, preserve_unit_loops=True)


def _reads_columns(block: s_tir.SBlock) -> bool:
    """Whether neighbouring elements read neighbours in a tensor that all the terms are read of."""
    summed = tirx.IterVar.CommReduce
    spatial = [axis.var for axis in block.iter_vars if axis.iter_type != summed]
    terms = [axis.var for axis in block.iter_vars if axis.iter_type == summed]
    for read in block.reads:
        indices = [collect_vars_used_in_prim_expr(axis.min) for axis in read.region]
        if spatial[-1] in indices[-1] and all(any(k in used for used in indices) for k in terms):
            return True
    return False
