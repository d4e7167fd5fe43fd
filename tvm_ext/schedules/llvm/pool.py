"""Maxima over windows of blocked channels: nothing around the image, and no key, is stored.

The kernel of ``max_pool`` compares integers in the order of numbers (see ``tvm_ext.ops.ordering``).
"""

from dataclasses import dataclass

from tvm.s_tir import Schedule
from tvm.s_tir import dlight as dl

from ..machine import Machine
from .contraction import axis_kinds, divisors, is_batched, size
from .padded_taps import guarded, guards, is_padded, sees_image

__all__ = ["PoolBlocked"]

# Pixels of a row whose maxima are found together. Few rows have no such divisor.
FEWEST = 4


@dataclass(frozen=True)
class PoolBlocked(dl.base.ScheduleRule):
    """Keys between pads, their maxima over windows, back to numbers, an epilogue.

    Windows lie along two axes, or three.

    A row of the window at a time: its keys, and the maxima of neighbouring pixels, are in
    registers or on the stack. Threads split rows where they can: so do convolutions.

    float32[1, 64, 112, 112], 3x3 windows at strides of 2, two Zen 5 cores: 33 us.
    """

    def apply(self, func, target, _tunable):
        if not is_batched(func):
            return None
        sch, machine = Schedule(func), Machine.of(target)
        blocks = sch.get_child_blocks(sch.get_sblock("root"))
        kinds = [axis_kinds(sch.get(block)) for block in blocks]
        if len(kinds) < 3:
            return None
        spatial = len(kinds[0]) - 3
        image = "S" * (spatial + 3)
        # A window of one frame of a volume sums nothing along the first axis.
        taken = {image + taps for taps in ("RR", "RRR", "SRR") if len(taps) == spatial}
        if kinds[0] != image or kinds[1] not in taken or set(kinds[2:]) != {image}:
            return None
        keys, maxima, *epilogue, result = blocks
        if not is_padded(sch, maxima) or not sees_image(sch, maxima):
            return None
        for block in epilogue:
            sch.compute_inline(block)
        n, o, outer, *inner, w, lane = sch.get_loops(result)
        batch, rows, width, lanes = (size(sch.get(loop).extent) for loop in (n, outer, w, lane))
        columns = divisors(width, machine.registers // 2)[-1]
        if columns < min(FEWEST, width) or lanes > machine.lanes("int32"):
            return None
        parts = 1 if batch % machine.cores == 0 or rows % machine.cores else machine.cores
        part, outer = sch.split(outer, [parts, None])
        w, column = sch.split(w, [None, columns])
        sch.reorder(n, part, o, outer, *inner, w, column, lane)
        task = [n, part] if batch * parts % machine.cores == 0 else [n, part, o]
        if machine.cores > 1:
            sch.parallel(sch.fuse(*task))
        _in_vectors(sch, (column, lane))
        sch.set_scope(maxima, 0, "local")
        sch.compute_at(maxima, sch.fuse(outer, *inner, w), preserve_unit_loops=True)
        column, lane, *rows_of_taps, tap = sch.get_loops(maxima)[-spatial - 2 :]
        sch.reorder(*rows_of_taps, column, tap, lane)
        _in_vectors(sch, (column, tap, lane))
        first = rows_of_taps[kinds[1].count("S") - len(image)]
        _in_vectors(sch, sch.get_loops(sch.decompose_reduction(maxima, first))[-2:])
        sch.set_scope(keys, 0, "local")
        sch.compute_at(keys, rows_of_taps[-1], preserve_unit_loops=True)
        _in_vectors(sch, sch.get_loops(keys)[-2:])
        return guarded(sch, guards(sch, maxima, rows_of_taps, least=0.0))


def _in_vectors(sch, loops) -> None:
    """All loops but the last, which becomes vector lanes, without a loop."""
    *outer, lane = loops
    for loop in outer:
        sch.unroll(loop)
    sch.vectorize(lane)
