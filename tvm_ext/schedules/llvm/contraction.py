"""What the rules for convolutions and matrix products ask of a kernel."""

from collections.abc import Sequence
from math import prod

from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.s_tir import SBlock
from tvm.s_tir.schedule import LoopRV, SBlockRV

__all__ = [
    "axis_kinds",
    "blocks_of",
    "divisors",
    "excess",
    "feeds",
    "is_batched",
    "is_number",
    "is_static",
    "shared_block",
    "size",
    "split_steps",
]

# Multiply-adds of vectors that a loop over steps of a reduction is worth.
_ENOUGH_WORK = 24


def divisors(extent: int, limit: int) -> list[int]:
    """The divisors of ``extent`` up to ``limit``, ascending."""
    return [d for d in range(1, min(extent, limit) + 1) if extent % d == 0]


def split_steps(sch, depth: LoopRV, tile: Sequence[LoopRV], most: int = 4) -> list[LoopRV]:
    """The loop ``depth`` of a reduction in two: of turns, and of steps to unroll in each.

    ``tile`` are the loops over accumulators. LLVM loads ahead across the steps that it sees, and
    spills some accumulators where these fill the registers: ResNet-50 in AVX2 code takes 61.4 ms
    on one Zen 4 core of four steps everywhere, 59.6 ms of these.
    """
    accumulators = prod(int(sch.get(loop).extent) for loop in tile)
    limit = min(most, max(1, _ENOUGH_WORK // accumulators))
    return sch.split(depth, [None, divisors(int(sch.get(depth).extent), limit)[-1]])


def excess(cores: int, tasks: int) -> float:
    """How much longer the core with most of ``tasks`` takes than if all had as many."""
    return -(-tasks // cores) * cores / tasks


def shared_block(cores: int, batch: int, rows: int, most: int) -> int:
    """The most rows, up to ``most``, in blocks that ``cores`` share about as evenly as any."""
    blocks = divisors(rows, most)
    least = min(excess(cores, batch * rows // block) for block in blocks)
    return max(b for b in blocks if excess(cores, batch * rows // b) <= 1.05 * least)


def axis_kinds(block: SBlock) -> str:
    """A letter per iteration axis: S(patial), R(eduction), O(ther)."""
    letters = {tirx.IterVar.DataPar: "S", tirx.IterVar.CommReduce: "R"}
    return "".join(letters.get(axis.iter_type, "O") for axis in block.iter_vars)


def is_number(block: SBlock) -> bool:
    """Whether ``block`` writes one element, and sums nothing."""
    extents = [axis.dom.extent for axis in block.iter_vars]
    ones = all(isinstance(extent, tirx.IntImm) and int(extent) == 1 for extent in extents)
    return ones and len(extents) < 2 and set(axis_kinds(block)) <= {"S"}


def blocks_of(func: object) -> tuple[s_tir.Schedule, list[SBlockRV]] | None:
    """A schedule of a kernel and its blocks in order; None of what is no kernel of blocks.

    None also where another block than the last one writes a result: the rules that ask keep what
    these write in registers.
    """
    if not isinstance(func, tirx.PrimFunc) or not hasattr(func.body, "block"):
        return None
    sch = s_tir.Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock(func.body.block.name_hint))
    written = [region.source for block in blocks[:-1] for region in sch.get(block).writes]
    if any(param.same_as(buffer) for param in func.params for buffer in written):
        return None
    return sch, blocks


def is_static(func: tirx.PrimFunc) -> bool:
    """Whether all parameters are buffers of static, non-zero shape."""
    return all(
        tirx.is_buffer_var(param)
        and all(isinstance(d, tirx.IntImm) and int(d) > 0 for d in param.ty.shape)
        for param in func.params
    )


def is_batched(func: tirx.PrimFunc) -> bool:
    """As :func:`is_static`, but for the first dim of parameters: it may be symbolic.

    Behind these there may be scalars, of which dims are formulas.
    """
    buffers = list(filter(tirx.is_buffer_var, func.params))
    return bool(buffers) and all(
        all(isinstance(d, tirx.IntImm) and int(d) > 0 for d in param.ty.shape[1:])
        and not any(isinstance(d, tirx.IntImm) and int(d) == 0 for d in param.ty.shape[:1])
        for param in buffers
    )


def size(extent: Expr | int) -> int:
    """``extent``; 1 stands for a symbolic one, of images: each is then worth sharing by itself."""
    return int(extent) if isinstance(extent, int | tirx.IntImm) else 1


def feeds(sch: s_tir.Schedule, block: SBlockRV, contraction: SBlockRV) -> bool:
    """Whether ``contraction`` depends on ``block``; else its epilogue does, on a residual, say."""
    reader = sch.get(contraction)
    return any(
        sch.get(consumer).same_as(reader) or feeds(sch, consumer, contraction)
        for consumer in sch.get_consumers(block)
    )
