"""Any kernel as loops that people read and C compilers vectorise: no tiles, no packing."""

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ..llvm.access import Walk, volume
from ..llvm.loops import PARALLEL_WORK, attempt, normal_form, walk
from ..llvm.row_norm import common_rows
from ..reshapes import is_reshape

__all__ = ["PlainLoops"]

# Rows of a reduction's results are cut where they are longer, so that they stay in the L1 cache and
# on the stack; not into pieces below the second number.
ROW, SHORT_ROW = 256, 32

# The longest step between the elements that neighbouring lanes read: gathered at little cost.
STEP = 4


class PlainLoops(ScheduleRule):
    """Producers inlined; each reduction walks rows of its result, or keeps a sum in a variable.

    What reads a reduction's result and nothing else is computed with it, row by row; so is a whole
    kernel where each row needs its own sums only (softmax, layer norm). The outermost loop of a
    nest is marked parallel where its work pays for threads.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> Schedule | None:
        """The scheduled kernel; one that has no normal form stays as it is."""
        if target.kind.name != "c" or not hasattr(func.body, "block"):
            return None
        # The executors turn a reshape into a view; they look for the pattern as it is.
        form = None if is_reshape(func) else normal_form(func, keep=_feeds_a_reduction)
        if form is None:
            return Schedule(func)
        sch, blocks = form
        if _row_by_row(sch, blocks):
            return sch
        for place, block in enumerate(blocks):
            if "R" in walk(sch, block).kinds:
                _reduce(sch, block, blocks[place + 1 : place + 2])
            else:
                _share(sch, block, sch.get_loops(block))
        return sch


def _feeds_a_reduction(sch: Schedule, block: SBlockRV) -> bool:
    """Whether a reduction reads the block at indices that it checks (padding), so that the check
    inlined would keep the reduction from being vectorised."""
    producer = walk(sch, block)
    return bool(producer.guarded) and any(
        "R" in walk(sch, reader).kinds for reader in sch.get_consumers(block)
    )


def _row_by_row(sch: Schedule, blocks: list[SBlockRV]) -> bool:
    """Compute everything that a row of the result needs in one loop over rows, where the sums are
    over whole rows and all of it fits on the stack."""
    facts = [walk(sch, block) for block in blocks]
    sums = [f.kinds for f in facts if "R" in f.kinds]
    depth = common_rows(facts)
    whole = all(kinds == "S" * depth + "R" * kinds.count("R") for kinds in sums)
    rows = volume(facts[-1].extents[:depth])
    made = [volume(f.extents[: f.kinds.count("S")]) for f in facts[:-1]]
    if not (sums and depth and whole) or "R" in facts[-1].kinds or max(made) > ROW * rows:
        return False
    loops = sch.get_loops(blocks[-1])
    if sum(f.work for f in facts) >= PARALLEL_WORK:
        attempt(sch.parallel, loops[0])
    for block in reversed(blocks[:-1]):
        sch.compute_at(block, loops[depth - 1])
    for block, block_facts in zip(blocks, facts, strict=True):
        if "R" in block_facts.kinds:
            sch.decompose_reduction(block, sch.get_loops(block)[depth])
    return True


def _reduce(sch: Schedule, block: SBlockRV, following: list[SBlockRV]) -> None:
    """Order the loops of a reduction, and finish its results where they are made."""
    facts, loops = walk(sch, block), sch.get_loops(block)
    if len(loops) != len(facts.kinds) or len(facts.stores) != 1:
        return
    rows, sums = loops[: facts.kinds.count("S")], loops[facts.kinds.count("S") :]
    row = rows.pop() if rows and _along_rows(facts, len(rows) - 1) else None
    if row is not None:
        *cut, row = _cut(sch, row)
        rows += cut
        sch.reorder(*rows, *sums, row)
    _share(sch, block, rows)
    finish = _finishing(sch, block, following)
    if finish is None and row is None and rows:
        finish = sch.cache_write(block, 0, "local")
    if finish is not None and rows:
        attempt(sch.reverse_compute_at, finish, rows[-1])
    sch.decompose_reduction(block, sums[0])


def _along_rows(facts: Walk, lane: int) -> bool:
    """Whether the results that neighbour each other come from neighbours in all operands."""
    if not isinstance(facts.extents[lane], tirx.IntImm) or int(facts.extents[lane]) < 2:
        return False
    if facts.stores[0].strides[lane] != 1:
        return False
    steps = [access.strides[lane] for access in facts.inputs]
    return any(steps) and all(isinstance(s, int) and 0 <= s <= STEP for s in steps)


def _cut(sch: Schedule, row: LoopRV) -> list[LoopRV]:
    """The loops over a row: two where it is long and divides into pieces of one length."""
    extent = int(sch.get(row).extent)
    if extent <= ROW:
        return [row]
    lengths = (length for length in range(ROW, SHORT_ROW - 1, -1) if extent % length == 0)
    length = next(lengths, extent)
    return [row] if length == extent else sch.split(row, [None, length])


def _finishing(sch: Schedule, block: SBlockRV, following: list[SBlockRV]) -> SBlockRV | None:
    """The block that alone reads the results, each where it is made."""
    readers = sch.get_consumers(block)
    if len(readers) != 1 or not following:
        return None
    reader, made = walk(sch, following[0]), walk(sch, block)
    if "R" in reader.kinds or not sch.get(readers[0]).same_as(sch.get(following[0])):
        return None
    spatial = made.extents[: made.kinds.count("S")]
    reads = [access for access in reader.inputs if access.buffer.same_as(made.written[0])]
    same = all(access.strides == reader.stores[0].strides for access in reads)
    return following[0] if same and volume(spatial) == volume(reader.extents) else None


def _share(sch: Schedule, block: SBlockRV, rows: list[LoopRV]) -> None:
    """Mark the outermost loop of a nest as parallel where the work pays for threads."""
    if rows and walk(sch, block).work >= PARALLEL_WORK:
        attempt(sch.parallel, rows[0])
