"""What the rules share: the blocks of a kernel and the binding of loops to threads."""

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func
from tvm.s_tir.dlight.base import try_inline_contiguous_spatial
from tvm.s_tir.schedule import LoopRV, SBlockRV

__all__ = [
    "SHARED_BYTES",
    "bind_elements",
    "blocks_of",
    "extent",
    "feeds",
    "loops_of",
    "reduces",
]

#: What a block may use of shared memory on every GPU since sm_50 without asking for more.
SHARED_BYTES = 48 << 10


def blocks_of(sch: s_tir.Schedule, inline: bool = True) -> list[SBlockInfo]:
    """The blocks of a kernel in order, one loop per axis; element-wise neighbours inlined.

    An empty list where the kernel is not a sequence of such blocks.
    """
    blocks = normalize_prim_func(sch) or []
    if any(kind == "O" for block in blocks for kind in block.dom_kind()):
        return []
    return try_inline_contiguous_spatial(sch, blocks) if inline else blocks


def extent(sch: s_tir.Schedule, loop: LoopRV) -> int | None:
    """The trip count of a loop, None where it is symbolic."""
    value = sch.get(loop).extent
    return int(value) if isinstance(value, tirx.IntImm) else None


def bind_elements(sch: s_tir.Schedule, loop: LoopRV, threads: int) -> LoopRV:
    """Give each iteration of ``loop`` a thread, ``threads`` to a block; returns the thread loop.

    An empty tensor gets one block of idle threads, for a launch of no block is an error. A single
    element gets one thread: TVM would not keep others from what moves into its loop.
    """
    elements = extent(sch, loop)
    factors = [1 if elements == 0 else None, 1 if elements == 1 else threads]
    block, thread = sch.split(loop, factors)
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return thread


def loops_of(sch: s_tir.Schedule, block: SBlockRV) -> tuple[list[LoopRV], list[LoopRV]]:
    """The spatial and the reduction loops of ``block``, one per axis, innermost in the nest."""
    loops = sch.get_loops(block)
    kinds = [axis.iter_type for axis in sch.get(block).iter_vars]
    own = list(zip(loops[-len(kinds) :], kinds, strict=True)) if loops else []  # a scalar has none
    summed = tirx.IterVar.CommReduce
    return [v for v, kind in own if kind != summed], [v for v, kind in own if kind == summed]


def reduces(block: SBlockInfo) -> bool:
    """Has ``block`` a reduction axis?"""
    return "R" in block.dom_kind()


def feeds(sch: s_tir.Schedule, block: SBlockInfo, behind: SBlockInfo) -> bool:
    """Is ``block`` a reduction to one value that only ``behind`` reads, element by element?"""
    elements = [axis.dom for axis in block.iters if axis.kind == "S"]
    consumers = sch.get_consumers(block.block_rv)
    return (
        reduces(block)
        and len(sch.get(block.block_rv).writes) == 1
        and len(consumers) == 1
        and sch.get(consumers[0]).same_as(sch.get(behind.block_rv))
        and elements == behind.dom()
    )
