"""Attention of symbolic sizes, or of few queries, by blocks of keys: softmax as it goes along.

Before: the products, the masks, the parts of a softmax and the result, a block each
After, where there are few queries::

    for n in T.parallel(B * H):
        for s in range(S):
            for t in range(0, T, 128):             # keys
                score[0..127] = sum(q[n, s, :] * k[n, t + (0..127), :])     # lanes along the depth
                high = max(high, score);  factor = exp(high before - high)
                weight = exp(score - high);  total = total * factor + sum(weight)
                y[:] = y[:] * factor + sum(weight * v[n, t + (0..127), :])
            result[n, s, :] = y / total

Else a task is as many queries as a vector has lanes: in these they are multiplied with the keys,
and squares of scores are turned in registers. Either way keys and values are read as they lie in
memory, keys beyond the last take no part, and a block of keys that masks hide from all queries of a
task is passed over: by -inf, or by -2**26 and as much below the highest score yet, so that their
weights are 0 within the error bound. What it holds, be it NaN, does not matter then.
"""

from __future__ import annotations

from math import inf, prod

from tvm import tirx
from tvm.s_tir import dlight as dl
from tvm.target import Target

from ..machine import Machine
from ..statements import if_any
from .attention_blocks import ByLanes, ByRow, Sizes
from .attention_formulas import FLOAT, Attention, taken_apart
from .contraction import blocks_of
from .matmul import PARALLEL_WORK
from .matmul_loops import shared
from .register_tiles import scheduled, var

__all__ = ["AttentionSymbolic", "are_few"]


def are_few(queries: tirx.Expr | int, lanes: int) -> tirx.Expr | bool:
    """Whether queries are taken one by one: to turn or to pack the keys takes longer then."""
    return queries * 4 <= lanes


class AttentionSymbolic(dl.base.ScheduleRule):
    """Scores, masks, softmax and the product with the values; any sizes but those of a head.

    12 heads of 64, a mask, one Zen 5 core: one query over 900 keys 76 us (a kernel each for the
    transpose of the keys, the products and the softmax: 189 us), 512 queries of as many 5.0 ms
    (5.5 ms), 64 of 64 107 us (98 us).
    """

    def apply(self, func, target, _tunable):
        found = blocks_of(func)
        if found is None:
            return None
        sch, blocks = found
        attention = taken_apart([sch.get(block) for block in blocks])
        return None if attention is None else scheduled(sch.mod["main"], _loops(attention, target))


def _loops(attention: Attention, target: Target) -> tirx.Stmt:
    """The whole kernel."""
    machine = Machine.of(target)
    lanes = machine.lanes(FLOAT)
    *batch, rows, keys, depth = attention.scores.iter_vars
    length, width = rows.dom.extent, int(attention.mixed.iter_vars[-2].dom.extent)
    sizes = Sizes(length, keys.dom.extent, int(depth.dom.extent), width, lanes)
    extents = [axis.dom.extent for axis in batch]
    names = [axis.var.name for axis in batch]

    static = all(isinstance(n, tirx.IntImm) for n in (*extents, length, sizes.keys))
    work = prod(map(int, (*extents, length, sizes.keys))) * (sizes.depth + width) if static else inf
    share = tirx.ForKind.PARALLEL if work > PARALLEL_WORK else tirx.ForKind.SERIAL

    def tasks(kind: type[ByRow | ByLanes]) -> tirx.Stmt:
        kernel = kind(attention, [*map(var, names)], machine, sizes)
        loops = [*kernel.names, kernel.number]
        return shared([*extents, kernel.count], loops, kernel.body(), share)

    few = if_any(are_few(length, lanes))
    if isinstance(few, tirx.IntImm):
        return tasks(ByRow if int(few) else ByLanes)
    return tirx.IfThenElse(few, tasks(ByRow), tasks(ByLanes))
