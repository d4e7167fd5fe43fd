"""Element-wise kernels and data movement: every output element by itself."""

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from ..machine import Machine
from ..reshapes import is_reshape
from .loops import Axis, axes, collapse, parallelise, partition, share, vectorize, walk
from .pieces import in_pieces
from .rule import LoopNestRule
from .turned import in_squares

__all__ = ["Elementwise", "schedule_spatial"]

# A cache line holds 16 floats: a tile of 16 x 16 uses each line of both sides whole.
TILE = 16


class Elementwise(LoopNestRule):
    """Spatial blocks only: broadcast, transpose, concat, slice, pad, gather, resize, casts.

    Producers are inlined; what remains (one block per output) is vectorised and shared. What a
    single block transposes goes through registers.
    """

    def schedule(
        self, func: tirx.PrimFunc, sch: Schedule, blocks: list[SBlockRV], machine: Machine
    ) -> Schedule | None:
        if any("R" in walk(sch, block).kinds for block in blocks):
            return None
        if is_reshape(func):
            # The executors turn it into a view; they look for the pattern as it is.
            return Schedule(func)
        for attempt in (in_squares, in_pieces) if len(blocks) == 1 else ():
            made = attempt(sch, blocks[0], machine)
            if made is not None:
                return made
        for block in blocks:
            schedule_spatial(sch, block, machine)
        return sch


def schedule_spatial(sch: Schedule, block: SBlockRV, machine: Machine) -> None:
    """Vectorise a spatial block in normal form and share it among the cores."""
    facts = walk(sch, block)
    collapse(sch, block)
    found = axes(sch, block)
    if not found:
        return
    lanes = machine.lanes(*facts.dtypes)
    column = _transposed(found)
    if column is None:
        *outer, inner = found
        share(sch, outer, inner, lanes, facts.work, machine)
    else:
        _tile(sch, found, column, facts.work, machine)


def _transposed(found: list[Axis]) -> int | None:
    """The axis along which some access is contiguous that jumps along the last axis."""
    last = found[-1]
    for k, axis in enumerate(found[:-1]):
        for step, last_step in zip(axis.strides, last.strides, strict=True):
            jumps = not isinstance(last_step, int) or last_step > 1
            if step == 1 and jumps and axis.size > 1 and not (axis.guarded or last.guarded):
                return k
    return None


def _tile(sch: Schedule, found: list[Axis], column: int, work: int, machine: Machine) -> None:
    """Walk the two contiguous axes in square tiles, so that both sides stay in L1."""
    outer = [axis for k, axis in enumerate(found[:-1]) if k != column]
    sizes = [min(TILE, axis.size) for axis in (found[column], found[-1])]
    (row_tiles, row), (column_tiles, col) = (
        sch.split(axis.loop, [None, size])
        for axis, size in zip((found[column], found[-1]), sizes, strict=True)
    )
    loops = [*(axis.loop for axis in outer), row_tiles, column_tiles]
    sch.reorder(*loops, row, col)
    vectorize(sch, col, TILE)
    if parallelise(sch, loops[:-1], work, machine) is None:
        parallelise(sch, loops[-1:], work, machine)
    partition(sch, column_tiles, found[-1].extent, TILE)
