"""Chains of blocks over common rows: normalisations, softmax, pooling of a padded input."""

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from ..machine import Machine
from .access import Walk, nominal, volume
from .loops import PARALLEL_WORK, collapse, equal, shares_evenly, uses, walk
from .reduction import schedule_rows
from .rule import LoopNestRule

__all__ = ["RowNorm"]


class RowNorm(LoopNestRule):
    """Row reductions and the writes that depend on them: one task per row, all in its cache.

    instance_norm, layer_norm, group norm, rms norm, softmax and log_softmax with what is fused
    to them, and windows over a padded plane. Declines where the rows cannot be shared evenly:
    then each block by itself uses all cores.
    """

    def schedule(
        self, func: tirx.PrimFunc, sch: Schedule, blocks: list[SBlockRV], machine: Machine
    ) -> Schedule | None:
        facts = [walk(sch, block) for block in blocks]
        depth = without_lane(facts, common_rows(facts))
        if len(blocks) < 2 or not depth or all("R" not in f.kinds for f in facts):
            return None
        work = sum(f.work for f in facts)
        rows = volume(facts[-1].extents[:depth])
        even = shares_evenly([rows], machine) or rows >= 3 * machine.cores
        if work >= 4 * PARALLEL_WORK and not even:
            return None
        for block in blocks:
            loops = collapse(sch, block, depth)
        sizes = [rows] if loops == 1 else [nominal(e) for e in facts[-1].extents[:depth]]
        schedule_rows(sch, blocks, sizes, work, machine)
        return sch


def common_rows(blocks: list[Walk]) -> int:
    """How many leading loops all blocks share, such that no row reads what another row wrote."""
    depth = min(len(facts.kinds) - len(facts.kinds.lstrip("S")) for facts in blocks)
    first = blocks[0].extents
    depth = next(
        (k for k in range(depth) if not all(equal(first[k], facts.extents[k]) for facts in blocks)),
        depth,
    )
    for writer in blocks:
        for store in writer.stores:
            for reader in blocks:
                for load in reader.accesses:
                    if load.buffer.same_as(store.buffer):
                        depth = min(depth, _aligned(writer, store.indices, reader, load.indices))
    return depth


def without_lane(blocks: list[Walk], depth: int) -> int:
    """``depth`` without a last axis along which reductions read memory: that one is for lanes.

    What other reductions gave is one element of a row.
    """
    folded = [buffer for facts in blocks if "R" in facts.kinds for buffer in facts.written]
    for facts in blocks:
        if depth and "R" in facts.kinds:
            lane = facts.variables[depth - 1]
            loads = [a for a in facts.inputs if not any(a.buffer.same_as(b) for b in folded)]
            if any(len(a.indices) > 1 and uses(a.indices[-1], lane) for a in loads):
                return depth - 1
    return depth


def _aligned(writer: Walk, stored: tuple, reader: Walk, loaded: tuple) -> int:
    """The number of leading variables that index the same dimension of a buffer in both blocks."""
    count = 0
    for own, other in zip(writer.variables, reader.variables, strict=False):
        if not any(
            own.same_as(s) and other.same_as(t) for s, t in zip(stored, loaded, strict=True)
        ):
            break
        count += 1
    return count
