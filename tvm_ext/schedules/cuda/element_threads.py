"""One thread per output element: element-wise work, data movement, pooling, depthwise."""

from math import inf, prod

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from .blocks import bind_elements, blocks_of, extent, feeds, loops_of, reduces

__all__ = ["ElementThreads"]


class ElementThreads(GPUScheduleRule):
    """Takes any sequence of blocks "S*R*": injective ones and reductions, static or symbolic.

    Each thread computes one element and keeps its sum in a register; a window of small constant
    size is unrolled. An injective block behind a reduction, over the same elements, runs in the
    thread of the reduction. ``inline=False`` gives every block a launch of its own;
    ``longest`` declines reductions over more elements, which deserve several threads.
    """

    def __init__(
        self,
        *,
        inline: bool = True,
        longest: int | None = None,
        threads: int = 256,
        unroll: int = 64,
    ):
        self.inline = inline
        self.longest = longest
        self.threads = threads
        self.unroll = unroll

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> s_tir.Schedule | None:
        """The schedule, or None where ``func`` has another structure."""
        if not self.is_target_available(target):
            return None
        sch = s_tir.Schedule(func)
        blocks = blocks_of(sch, self.inline)
        if not blocks or (self.longest and max(map(_window, blocks)) > self.longest):
            return None
        while blocks:
            block = blocks.pop()
            if not reduces(block):
                if self.inline and blocks and feeds(sch, blocks[-1], block):
                    self._accumulate(sch, blocks.pop().block_rv, block.block_rv)
                else:
                    self._bind(sch, block.block_rv)
            elif self.inline and len(sch.get(block.block_rv).writes) == 1:
                copy = sch.cache_write(block.block_rv, 0, "local")
                self._accumulate(sch, block.block_rv, copy)
            else:
                _, window = loops_of(sch, block.block_rv)
                self._bind(sch, block.block_rv)
                sch.decompose_reduction(block.block_rv, window[0])
        return sch

    def _bind(self, sch: s_tir.Schedule, block: SBlockRV) -> LoopRV:
        """Spread the spatial loops of ``block`` over threads; returns the thread loop."""
        spatial, reduction = loops_of(sch, block)
        spatial = spatial or [sch.add_unit_loop(reduction[0] if reduction else block)]
        sch.reorder(*spatial, *reduction)
        return bind_elements(sch, sch.fuse(*spatial), self.threads)

    def _accumulate(self, sch: s_tir.Schedule, block: SBlockRV, behind: SBlockRV) -> None:
        """A thread per element of the reduction ``block``, whose sum ``behind`` has in a register.

        The sum stays and ``behind`` moves: TVM simplifies the indices of what moves, and of a
        reduction might not understand them any more.
        """
        _, window = loops_of(sch, block)
        sch.set_scope(block, 0, "local")
        sch.reverse_compute_at(behind, self._bind(sch, block), preserve_unit_loops=True)
        trips = 1
        for loop in reversed(window):
            trips *= extent(sch, loop) or self.unroll + 1
            if trips <= self.unroll:
                sch.unroll(loop)
        sch.decompose_reduction(block, window[0])


def _window(block: SBlockInfo) -> float:
    """How many elements ``block`` reduces to one; infinite where that is symbolic."""
    window = [axis.dom for axis in block.iters if axis.kind == "R"]
    return prod(window) if all(isinstance(dom, int) for dom in window) else inf
