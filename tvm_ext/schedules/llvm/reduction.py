"""Reductions: partial results in vector lanes, folded by a tree, shared among the cores.

LLVM does not reorder floating-point sums, so one chain of additions stays one. Here ``rfactor``
makes independent chains: a contiguous reduction axis becomes vector lanes.
"""

from dataclasses import dataclass
from math import prod

from tvm import DataType, ir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.s_tir.schedule import LoopRV, SBlockRV

from ..machine import Machine
from .access import Walk, volume
from .loops import (
    CHEAP,
    PARALLEL_WORK,
    Axis,
    attempt,
    axes,
    collapse,
    equal,
    fit,
    hint_partition,
    is_clipped,
    shareable,
    shared,
    shares_evenly,
    uses,
    vectorize,
    walk,
)

__all__ = ["schedule_reduction", "schedule_rows"]

# Independent accumulators that hide the latency of an addition; and how many at most leave
# registers for what is added.
ACCUMULATORS, MOST_ACCUMULATORS = 4, 8

# A window of at most so many elements is unrolled.
UNROLLED = 16

# Rows of memory that are added up in registers before their sum goes to that of the rows so far,
# in L1, and the bytes of it: one long read of each row, where columns would be many short ones.
ROWS_AT_ONCE, SUMS_BYTES = 8, 8 << 10

# What a temporary of one row needs to stay on the stack: scope "local" and at most STACK_BYTES;
# the compiler puts the smallest there in any scope but "local".
MIN_LOCAL_BYTES, STACK_BYTES = 1 << 10, 16 << 10


def schedule_reduction(sch: Schedule, block: SBlockRV, machine: Machine) -> None:
    """Schedule a reduction in normal form by itself."""
    work = walk(sch, block).work
    collapse(sch, block)
    part = _cut_among_cores(sch, block, work, machine)
    if part is not None:
        conclude(sch, block, arrange(sch, block, 0, machine))
        block = part
    found = axes(sch, block)
    lane = lane_axis(found, walk(sch, block), machine)
    rows = [axis for axis in found if axis.kind == "S" and axis is not lane]
    if rows:
        rows.sort(key=lambda axis: not shares_evenly([axis.size], machine))
        put_first(sch, block, [axis.loop for axis in rows])
        schedule_rows(sch, [block], [axis.size for axis in rows], work, machine)
    elif (
        lane is not None
        and lane.kind == "S"
        and work >= PARALLEL_WORK
        and (lane.size >= 64 * machine.cores > 64)
    ):
        share = -(-lane.extent // machine.cores) if isinstance(lane.extent, int) else 64
        chunk, _ = sch.split(lane.loop, [None, -(-share // 16) * 16])
        arranged = arrange(sch, block, 1, machine)
        sch.parallel(chunk)
        conclude(sch, block, arranged)
    else:
        for each in [*factor(sch, block, 0, machine), block]:
            conclude(sch, each, arrange(sch, each, 0, machine))


def put_first(sch: Schedule, block: SBlockRV, loops: list[LoopRV]) -> None:
    """Move ``loops`` before the others of a block."""
    moved = [sch.get(loop) for loop in loops]
    others = [
        loop
        for loop in sch.get_loops(block)
        if not any(sch.get(loop).same_as(stmt) for stmt in moved)
    ]
    sch.reorder(*loops, *others)


def schedule_rows(
    sch: Schedule, blocks: list[SBlockRV], rows: list[int], work: int, machine: Machine
) -> None:
    """Run ``blocks``, whose first loops are the same rows (of these sizes), row by row."""
    depth = len(rows)
    chain: list[SBlockRV] = []
    for block in blocks:
        reduces = "R" in walk(sch, block).kinds
        parts = [*(factor(sch, block, depth, machine) if reduces else []), block]
        keep_on_stack(sch, parts, prod(rows))
        # One after the other, all of it: once a neighbour has changed, the bindings of a block
        # with a tail no longer count as affine.
        for part in parts:
            conclude(sch, part, arrange(sch, part, depth, machine))
        chain += parts
    # Not compute_at: it forgets the predicate of a block, and the tails of rows depend on it.
    if len(chain) > 1:
        sch.merge(*(sch.get_loops(block)[depth - 1] for block in chain))
    if shared(rows[0], work, machine):
        outer = sch.get_loops(chain[0])[:depth]
        used = shareable(sch, outer, machine)
        _run_in_parallel(sch, sch.fuse(*outer[:used]) if used > 1 else outer[0])


def _run_in_parallel(sch: Schedule, loop: LoopRV) -> None:
    """As ``Schedule.parallel``, which refuses a loop around an init that stands apart."""
    stmt = sch.get(loop)
    sch.state.replace(
        sch.get_sref(loop),
        tirx.For(stmt.loop_var, stmt.min, stmt.extent, tirx.ForKind.PARALLEL, stmt.body),
    )


def keep_on_stack(sch: Schedule, blocks: list[SBlockRV], rows: int) -> None:
    """Make temporaries local whose part of one row is small."""
    outputs = [param for param in sch.mod["main"].params if tirx.is_buffer_var(param)]
    for block in blocks:
        for k, buffer in enumerate(walk(sch, block).written):
            size = (
                volume(buffer.ty.shape)
                * DataType(str(buffer.ty.dtype.dtype)).itemsize
                // max(rows, 1)
            )
            inside = not any(buffer.same_as(output) for output in outputs)
            if inside and MIN_LOCAL_BYTES < size <= STACK_BYTES:
                sch.set_scope(block, k, "local")


def lane_axis(found: list[Axis], facts: Walk, machine: Machine) -> Axis | None:
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
        contiguous = sum(isinstance(s, int) and s == 1 for s in loads)
        return smooth(axis, facts), contiguous, axis.kind == "S", axis.size

    candidates = [
        axis
        for axis in found
        if not axis.guarded
        and (
            axis.size >= lanes and any(isinstance(s, int) and s == 1 for s in steps(axis, False))
            if axis.kind == "R"
            else axis.size >= 4 and all(isinstance(s, int) and s == 1 for s in steps(axis, True))
        )
    ]
    return max(candidates, key=rank, default=None)


def smooth(axis: Axis, facts: Walk) -> bool:
    """Whether all that a block reads along ``axis`` is contiguous or stays in place."""
    return all(
        isinstance(step, int) and step in (0, 1)
        for step, access in zip(axis.strides, facts.accesses, strict=True)
        if not access.is_store
    )


def factor(sch: Schedule, block: SBlockRV, skip: int, machine: Machine) -> list[SBlockRV]:
    """Split a reduction into partial results in lanes and a tree that folds them.

    Returns the new blocks in order of execution; ``block`` reads the last. There are none where
    the lanes are spatial and wide enough, or where the operation may not be reordered.
    """
    facts = walk(sch, block)
    found = axes(sch, block, skip)
    lane = lane_axis(found, facts, machine)
    inner = next((axis for axis in reversed(found) if axis.kind == "R"), None)
    if lane is None or inner is None or not _reorderable(facts):
        return []
    lanes = machine.lanes(*facts.dtypes)
    if lane.kind == "S":
        vectors = lane.size // fit(lane.extent, lanes)
        few = vectors < ACCUMULATORS and inner.size >= 8 * ACCUMULATORS
        return _factor_once(sch, inner.loop, ACCUMULATORS, -2) if few else []
    lanes = fit(lane.extent, lanes)
    # What a symbolic number of elements leaves over is summed in memory: it is less of two vectors.
    widths = (ACCUMULATORS, 2, 1) if isinstance(lane.extent, int) else (2, 1)
    width = lanes * next(
        n for n in widths if n == 1 or lane.size >= 16 * n * lanes or lane.size % (n * lanes) == 0
    )
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


def _cut_among_cores(
    sch: Schedule, block: SBlockRV, work: int, machine: Machine
) -> SBlockRV | None:
    """Where the kept axes are too few to share: partial results of equal parts; their block."""
    facts = walk(sch, block)
    found = axes(sch, block)
    kept = prod(axis.size for axis in found if axis.kind == "S")
    longest = max((axis for axis in found if axis.kind == "R"), key=lambda axis: axis.size)
    enough = 2 * machine.lanes(*facts.dtypes) * machine.cores
    if (
        machine.cores == 1
        or work < 2 * PARALLEL_WORK
        or not _reorderable(facts)
        or kept >= enough
        or (kept > 1 and kept % machine.cores == 0)
    ):
        return None
    # Parts of unequal length would need a predicate that outlives the split.
    parts = next(
        (
            n
            for n in range(machine.cores, 8 * machine.cores)
            if equal(longest.extent % n, 0) and shares_evenly([n], machine)
        ),
        None,
    )
    if parts is None:
        return None
    # TVM cannot prove that equal parts of a symbolic length end where the whole does.
    part, _ = sch.split(longest.loop, [parts, None], disable_predication=True)
    made: list[SBlockRV] = []
    attempt(lambda: made.append(sch.rfactor(part, 0)))
    return made[0] if made else None


@dataclass
class Arranged:
    """What is left to do to a block whose loops are in order, as positions of its loops.

    ``init`` is where its init goes, ``tails`` may have a tail, ``vector`` says that the last
    loop is one, ``unrolled`` that the one around it is few.
    """

    init: int | None = None
    tails: tuple[int, ...] = ()
    vector: bool = False
    unrolled: bool = False


def arrange(sch: Schedule, block: SBlockRV, skip: int, machine: Machine) -> Arranged:
    """Order the loops after the first ``skip`` and vectorise them, accumulators unrolled.

    Before loops are merged: a tail makes the bindings under a merged loop too hard to analyse.
    """
    facts = walk(sch, block)
    found = axes(sch, block, skip)
    lane = lane_axis(found, facts, machine)
    lanes = machine.lanes(*facts.dtypes)
    reduced = [axis.loop for axis in found if axis.kind == "R"]
    if not reduced:
        if found and not found[-1].guarded:
            vectorize(sch, found[-1].loop, lanes)
        return Arranged()
    # Vectors of a clipped extent would keep a guard on each element: LLVM's inner loop has none.
    vector = lane is not None and smooth(lane, facts) and not is_clipped(lane.extent)
    if not vector and _leave_to_llvm(sch, found, facts):
        return Arranged()
    if lane is None or lane.kind == "R" or not vector:
        first, *_ = tails = _positions(sch, block, reduced)
        return Arranged(first, tails)
    others = [axis for axis in found if axis.kind == "S" and axis is not lane]
    lanes = fit(lane.extent, lanes)
    count = _accumulators(lane, lanes, facts)
    rows_at_once = _rows_at_once(found, lane, count * lanes, facts)
    if rows_at_once > 1:
        return _stream(sch, block, found, lane, lanes, rows_at_once)
    outer, unrolled, inner = sch.split(lane.loop, [None, count, lanes])
    # A few results beside the lane's stay in registers as well, as independent chains.
    chains = [axis.loop for axis in others[-1:] if count * axis.size <= ACCUMULATORS]
    rows = [axis.loop for axis in others[: len(others) - len(chains)]]
    sch.reorder(*rows, outer, *reduced, *chains, unrolled, inner)
    for loop in (*chains, unrolled):
        sch.unroll(loop)
    sch.vectorize(inner)
    _, first, *_ = tails = _positions(sch, block, [outer, *reduced])
    return Arranged(first, tails, vector=True, unrolled=True)


def _accumulators(lane: Axis, lanes: int, facts: Walk) -> int:
    """How many vectors along ``lane`` to sum side by side: all, where these are few."""
    most = MOST_ACCUMULATORS if facts.cost <= CHEAP and len(facts.written) == 1 else ACCUMULATORS
    if isinstance(lane.extent, int) and lane.size % lanes == 0 and lane.size // lanes <= most:
        return lane.size // lanes
    return next(n for n in (ACCUMULATORS, 2, 1) if n == 1 or lane.size % (n * lanes) == 0)


def _rows_at_once(found: list[Axis], lane: Axis, width: int, facts: Walk) -> int:
    """How many steps of the last reduced axis to take per load of the sums; 1: they stay put.

    Sums in registers want one pass over all rows per ``width`` columns. Of a symbolic number of
    columns what is left of a part in L1 would be summed element by element.
    """
    *_, last = (axis for axis in found if axis.kind == "R")
    if (
        not isinstance(last.extent, int)
        or not isinstance(lane.extent, int)
        or last.extent < 2 * ROWS_AT_ONCE
        or lane.size <= width
        or facts.cost > CHEAP
        or len(facts.written) > 1
    ):
        return 1
    counts = range(ROWS_AT_ONCE, ROWS_AT_ONCE // 2 - 1, -1)
    return next((n for n in counts if last.extent % n == 0), ROWS_AT_ONCE)


def _stream(
    sch: Schedule, block: SBlockRV, found: list[Axis], lane: Axis, lanes: int, rows_at_once: int
) -> Arranged:
    """Walk along rows, several at once, and keep the sums of a part of them in L1."""
    (dtype,) = {str(buffer.ty.dtype.dtype) for buffer in walk(sch, block).written}
    most = SUMS_BYTES // (DataType(dtype).itemsize * lanes)
    vectors = -(-lane.size // lanes)
    chunk, vector, inner = sch.split(lane.loop, [None, -(-vectors // -(-vectors // most)), lanes])
    *reduced, last = (axis.loop for axis in found if axis.kind == "R")
    step, row = sch.split(last, [None, rows_at_once])
    others = [axis.loop for axis in found if axis.kind == "S" and axis is not lane]
    sch.reorder(*others, chunk, *reduced, step, vector, row, inner)
    sch.unroll(row)
    sch.vectorize(inner)
    _, first, *_ = tails = _positions(sch, block, [chunk, *reduced, step, vector])
    return Arranged(first, tails, vector=True)


def _leave_to_llvm(sch: Schedule, found: list[Axis], facts: Walk) -> bool:
    """Make a contiguous result LLVM's inner loop: it masks guards and shuffles strided loads.

    Whether the whole reduction has been unrolled for that, its init included.
    """
    stores = [k for k, access in enumerate(facts.accesses) if access.is_store]
    along = [
        axis
        for axis in found
        if axis.kind == "S" and axis.size >= 8 and all(axis.strides[k] == 1 for k in stores)
    ]
    if not along or len(stores) > 1:
        return False
    reduced = [axis for axis in found if axis.kind == "R"]
    others = [axis.loop for axis in found if axis.kind == "S" and axis is not along[0]]
    if prod(axis.size for axis in reduced) <= UNROLLED:
        sch.reorder(*others, along[0].loop, *(axis.loop for axis in reduced))
        for axis in reduced:
            sch.unroll(axis.loop)
        return True
    sch.reorder(*others, *(axis.loop for axis in reduced), along[0].loop)
    return False


def _positions(sch: Schedule, block: SBlockRV, loops: list[LoopRV]) -> tuple[int, ...]:
    stmts = [sch.get(loop) for loop in sch.get_loops(block)]
    return tuple(
        next(k for k, stmt in enumerate(stmts) if stmt.same_as(sch.get(loop))) for loop in loops
    )


def conclude(sch: Schedule, block: SBlockRV, arranged: Arranged) -> None:
    """Part the init from the updates, and cut the loops where a tail begins."""
    if arranged.init is None:
        return
    every = axes(sch, block, drop_units=False)
    # Of several axes TVM wants all within, those of one step as well.
    first = next(k for k, axis in enumerate(every) if k == arranged.init or axis.kind == "R")
    start = sch.decompose_reduction(block, every[first].loop)
    if arranged.vector:
        *_, around, inner = sch.get_loops(start)
        sch.vectorize(inner)
        if arranged.unrolled:
            sch.unroll(around)
        elif uses(get_sblockrealize(sch, start).predicate, sch.get(around).loop_var):
            hint_partition(sch, around)
    predicate = get_sblockrealize(sch, block).predicate
    loops = sch.get_loops(block)
    for loop in (loops[k] for k in arranged.tails):
        if uses(predicate, sch.get(loop).loop_var):
            hint_partition(sch, loop)
