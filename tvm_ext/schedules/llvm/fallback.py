"""Any kernel: block by block where it has a normal form, else what is legal."""

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.cpu.base import CPUScheduleRule
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from ..machine import Machine
from .elementwise import schedule_spatial
from .loops import attempt, walk
from .reduction import schedule_reduction
from .rule import LoopNestRule

__all__ = ["BlockByBlock", "OuterParallel"]


class BlockByBlock(LoopNestRule):
    """Each block a loop nest of its own: reductions in lanes, the rest vectorised, all shared."""

    def schedule(
        self, func: tirx.PrimFunc, sch: Schedule, blocks: list[SBlockRV], machine: Machine
    ) -> Schedule | None:
        for block in blocks:
            if not sch.get_loops(block):
                sch.add_unit_loop(block)  # TVM's rfactor breaks beside a block in no loop
        for block in blocks:
            if "R" in walk(sch, block).kinds:
                schedule_reduction(sch, block, machine)
            else:
                schedule_spatial(sch, block, machine)
        return sch


class OuterParallel(CPUScheduleRule):
    """Kernels with no normal form (scan, sort, nested or opaque blocks): parallel where legal."""

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> Schedule | None:
        if not self.is_target_available(target) or not _has_root_block(func):
            return None
        sch = Schedule(func, debug_mask="none")
        root = sch.get_sblock(func.body.block.name_hint)
        for block in sch.get_child_blocks(root):
            _parallel_where_legal(sch, block)
        return sch


def _has_root_block(func: tirx.PrimFunc) -> bool:
    return hasattr(func.body, "block")


def _parallel_where_legal(sch: Schedule, block: SBlockRV) -> None:
    loops = sch.get_loops(block)
    if loops:
        attempt(sch.parallel, loops[0])
