"""Reductions: partial results in vector lanes, folded by a tree, shared among the cores.

LLVM does not reorder floating-point sums, so one chain of additions stays one. Here ``rfactor``
makes independent chains: a contiguous reduction axis becomes vector lanes.
"""

from tvm import ir
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.s_tir.schedule import LoopRV, SBlockRV

from ..machine import Machine
from .access import Walk
from .loops import (
    PARALLEL_WORK,
    Axis,
    attempt,
    collapse,
    fit,
    hint_partition,
    parallelise,
    shares_evenly,
    uses,
    vectorize,
    walk,
)

__all__ = ["factor", "finish", "schedule_reduction"]

# Independent accumulators that hide the latency of an addition.
ACCUMULATORS = 4


def schedule_reduction(sch: Schedule, block: SBlockRV, machine: Machine) -> LoopRV | None:
    """Schedule a reduction in normal form by itself; returns the loop over its rows, if any."""
    work = walk(sch, block).work
    part = _cut_among_cores(sch, block, work, machine)
    if part is not None:
        finish(sch, block, 0, machine)
        block = part
    axes = collapse(sch, block)
    lane = lane_axis(axes, walk(sch, block), machine)
    rows = [axis for axis in axes if axis.kind == "S" and axis is not lane]
    if not rows:
        return _without_rows(sch, block, lane, work, machine)
    fuse_first(sch, block, [axis.loop for axis in rows])
    blocks = [*factor(sch, block, 1, machine), block]
    row = merge_rows(sch, blocks)
    parallelise(sch, [row], [size_of(rows)], work, machine, uneven=True)
    for each in blocks:
        finish(sch, each, 1, machine)
    return row


def _without_rows(sch: Schedule, block: SBlockRV, lane: Axis | None, work: int,
                  machine: Machine) -> LoopRV | None:
    if lane is not None and lane.kind == "S" and work >= PARALLEL_WORK and machine.cores > 1 and (
            lane.size >= 64 * machine.cores):
        share = -(-lane.extent // machine.cores) if isinstance(lane.extent, int) else 64
        chunk, _ = sch.split(lane.loop, [None, -(-share // 16) * 16])
        sch.parallel(chunk)
        finish(sch, block, 1, machine)
        return chunk
    for each in [*factor(sch, block, 0, machine), block]:
        finish(sch, each, 0, machine)
    return None


def fuse_first(sch: Schedule, block: SBlockRV, loops: list[LoopRV]) -> LoopRV:
    """One loop, the first of the block, from ``loops``."""
    if loops:
        sch.reorder(*loops)
        row = sch.fuse(*loops)
    else:
        row = sch.add_unit_loop(block)
    others = [loop for loop in sch.get_loops(block) if not sch.get(loop).same_as(sch.get(row))]
    if others:
        sch.reorder(row, *others)
    return row


def merge_rows(sch: Schedule, blocks: list[SBlockRV]) -> LoopRV:
    """One loop over rows from the first loop of each block.

    Not compute_at: it forgets the predicate of a block, and the tails of rows depend on it.
    """
    loops = [sch.get_loops(block)[0] for block in blocks]
    return sch.merge(*loops) if len(loops) > 1 else loops[0]


def lane_axis(axes: list[Axis], facts: Walk, machine: Machine) -> Axis | None:
    """The axis to walk in vectors: contiguous in the loads, and in the store if it is spatial.

    A reduction axis must fill a vector; a spatial one may jump in the loads if nothing else is
    left (pooling with stride 2).
    """
    lanes = machine.lanes(*facts.dtypes)
    accumulators = [any(a.buffer.same_as(w) for w in facts.written) for a in facts.accesses]

    def steps(axis: Axis, own: bool) -> list[ir.Expr | int | None]:
        return [s for s, mine in zip(axis.strides, accumulators, strict=True) if mine is own]

    def rank(axis: Axis) -> tuple[bool, int, bool, int]:
        loads = steps(axis, False)
        smooth = all(isinstance(s, int) and s in (0, 1) for s in loads)
        return smooth, sum(isinstance(s, int) and s == 1 for s in loads), axis.kind == "S", axis.size

    candidates = [
        axis for axis in axes if not axis.guarded and (
            axis.size >= lanes and any(isinstance(s, int) and s == 1 for s in steps(axis, False))
            if axis.kind == "R" else
            axis.size >= 4 and all(isinstance(s, int) and s == 1 for s in steps(axis, True)))
    ]
    return max(candidates, key=rank, default=None)


def factor(sch: Schedule, block: SBlockRV, skip: int, machine: Machine) -> list[SBlockRV]:
    """Split a reduction into partial results in lanes and a tree that folds them.

    Returns the new blocks in order of execution; ``block`` reads the last. There are none where
    the lanes are spatial and wide enough, or where the operation may not be reordered.
    """
    facts = walk(sch, block)
    axes = collapse(sch, block, skip)
    lane = lane_axis(axes, facts, machine)
    inner = next((axis for axis in reversed(axes) if axis.kind == "R"), None)
    if lane is None or inner is None or not _reorderable(facts):
        return []
    lanes = machine.lanes(*facts.dtypes)
    if lane.kind == "S":
        few = lane.size < ACCUMULATORS * lanes and inner.size >= 8 * ACCUMULATORS
        return _factor_once(sch, inner.loop, ACCUMULATORS, -2) if few else []
    lanes = fit(lane.extent, lanes)
    width = lanes * next(
        n for n in (ACCUMULATORS, 2, 1)
        if n == 1 or lane.size >= 16 * n * lanes or lane.size % (n * lanes) == 0)
    blocks = _factor_once(sch, lane.loop, width)
    while blocks and width > 2:
        width = lanes if width > lanes else width // 2
        blocks += _factor_once(sch, sch.get_loops(block)[-1], width)
    return blocks


def _reorderable(facts: Walk) -> bool:
    # LLVM reorders integers by itself; results that come in pairs (argmax) stay in order.
    return len(facts.written) == 1 and "float" in str(facts.written[0].ty.dtype.dtype)


def _factor_once(sch: Schedule, loop: LoopRV, width: int, place: int = -1) -> list[SBlockRV]:
    _, lane = sch.split(loop, [None, width])
    made: list[SBlockRV] = []
    attempt(lambda: made.append(sch.rfactor(lane, place)))
    return made


def _cut_among_cores(sch: Schedule, block: SBlockRV, work: int,
                     machine: Machine) -> SBlockRV | None:
    """Where the kept axes are too few to share: partial results of equal parts; their block."""
    facts = walk(sch, block)
    axes = collapse(sch, block)
    kept = size_of([axis for axis in axes if axis.kind == "S"])
    longest = max((axis for axis in axes if axis.kind == "R"), key=lambda axis: axis.size)
    enough = 2 * machine.lanes(*facts.dtypes) * machine.cores
    if (machine.cores == 1 or work < 2 * PARALLEL_WORK or not _reorderable(facts)
            or kept >= enough or kept > 1 and kept % machine.cores == 0
            or not isinstance(longest.extent, int)):
        return None
    # Parts of unequal length would need a predicate that outlives the split.
    parts = next((n for n in range(machine.cores, 8 * machine.cores)
                  if longest.extent % n == 0 and shares_evenly([n], machine)), None)
    if parts is None:
        return None
    part, _ = sch.split(longest.loop, [parts, None])
    made: list[SBlockRV] = []
    attempt(lambda: made.append(sch.rfactor(part, 0)))
    return made[0] if made else None


def finish(sch: Schedule, block: SBlockRV, skip: int, machine: Machine) -> None:
    """Order the loops after the first ``skip`` and vectorise them, accumulators unrolled."""
    facts = walk(sch, block)
    axes = collapse(sch, block, skip)
    lane = lane_axis(axes, facts, machine)
    lanes = machine.lanes(*facts.dtypes)
    reduced = [axis.loop for axis in axes if axis.kind == "R"]
    if not reduced:
        if axes and not axes[-1].guarded:
            vectorize(sch, axes[-1].loop, lanes)
        return
    if lane is None or lane.kind == "R":
        sch.decompose_reduction(block, reduced[0])
        _cut_tails(sch, block, reduced)
        return
    others = [axis.loop for axis in axes if axis.kind == "S" and axis is not lane]
    lanes = fit(lane.extent, lanes)
    count = next(n for n in (ACCUMULATORS, 2, 1) if n == 1 or lane.size % (n * lanes) == 0)
    outer, unrolled, inner = sch.split(lane.loop, [None, count, lanes])
    sch.reorder(*others, outer, *reduced, unrolled, inner)
    sch.unroll(unrolled)
    sch.vectorize(inner)
    start = sch.decompose_reduction(block, reduced[0])
    *_, unrolled, inner = sch.get_loops(start)
    sch.unroll(unrolled)
    sch.vectorize(inner)
    _cut_tails(sch, block, [outer, *reduced])


def _cut_tails(sch: Schedule, block: SBlockRV, loops: list[LoopRV]) -> None:
    predicate = get_sblockrealize(sch, block).predicate
    for loop in loops:
        if uses(predicate, sch.get(loop).loop_var):
            hint_partition(sch, loop)


def size_of(axes: list[Axis]) -> int:
    """The nominal number of points of some axes."""
    size = 1
    for axis in axes:
        size *= axis.size
    return size
