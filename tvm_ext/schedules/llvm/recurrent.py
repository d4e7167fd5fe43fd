"""Recurrent layers: what does not depend on another is shared, panels are swept in registers.

Such a kernel steps through time for each group of sequences; in a step, each panel of hidden
units adds a matrix product and is updated. Groups are independent, panels are within a step. Where
the recurrent weights stay in a core's cache, or the work of a step is small, cores take groups;
else each takes its own part of the panels, so that its part of the weights stays with it.
"""

from math import prod

import tvm_ffi
from tvm import DataType, ir, s_tir, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.cpu.base import CPUScheduleRule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ..machine import Machine
from .contraction import axis_kinds, divisors
from .loops import equal, vectorize

__all__ = ["Recurrent"]

# The axes of the two blocks: a step and a panel of it; rows, depth, gates and units.
PANEL, PRODUCT = "OS", "SRSS"

# How far ahead weights are asked for: long enough for the third cache to answer.
PREFETCH_DEPTH = 8


class Recurrent(CPUScheduleRule):
    """Panels with a matrix product "SRSS", in a serial loop, in independent sequences.

    ``own_weights``: bytes of weights up to which a core keeps them all; if None, the second cache
    where groups share evenly, as two directions do, else half of it. ``step_work``: multiply-adds
    of a step below which its panels are not shared, for a parallel region takes some microseconds.
    ``sweeps``: how many times the second cache a core's weights may be for sweeping them back and
    forth, which finds the last of them there.

    LSTM, 512 units, batch 1, two Zen 5 cores: 22 us per step (one way, not prefetched: 27).
    """

    def __init__(self, own_weights: int | None = None, step_work: int = 1 << 17, sweeps: int = 4):
        self.own_weights = own_weights
        self.step_work = step_work
        self.sweeps = sweeps

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> Schedule | None:
        if not self.is_target_available(target) or not hasattr(func.body, "block"):
            return None
        sch = _unchecked(func)
        groups = _sequences(sch, sch.get_sblock(func.body.block.name_hint))
        machine = Machine.of(target)
        for number in range(len(groups)):
            # Found again: what shares the panels of others may have made another function.
            sequences = _sequences(sch, sch.get_sblock(func.body.block.name_hint))[number]
            sch = self._steps(sch, sequences, machine)
        return sch if groups else None

    def _steps(self, sch: Schedule, sequences: SBlockRV, machine: Machine) -> Schedule:
        children = sch.get_child_blocks(sequences)
        panels = [block for block in children if _is_panel(sch, block)]
        for block in children:
            if block in panels:
                _schedule_panel(sch, block, machine)
            else:
                _vectorize_last(sch, block, machine)
        return self._share(sch, sequences, panels, machine)

    def _share(self, sch: Schedule, sequences: SBlockRV, panels: list[SBlockRV],
               machine: Machine) -> Schedule:  # fmt: skip
        groups = sch.get_loops(sequences)
        count = [sch.get(loop).extent for loop in groups]
        weights, work = map(sum, zip(*(_size(sch, block) for block in panels), strict=True))
        cores = machine.cores
        own = self._own_weights(count, machine)
        if weights <= own or work < self.step_work:
            if cores > 1 and any(not equal(extent, 1) for extent in count):
                sch.parallel(sch.fuse(*groups))
            return sch
        loops = [sch.get_loops(block)[-1] for block in panels]
        if cores > 1:
            for k, loop in enumerate(loops):
                core, loops[k] = sch.split(loop, [cores, None])
                sch.parallel(core)
        own = weights // cores
        if own > self.sweeps * machine.l2_bytes:
            return sch
        panels = [sch.get(loop).loop_var for loop in loops]
        func = _swept_back_and_forth(sch, loops)
        if own > machine.l2_bytes:
            func = _prefetched(func, panels)
        return _unchecked(func)

    def _own_weights(self, count: list, machine: Machine) -> int:
        """Bytes of weights up to which a core keeps them all, of groups of such numbers."""
        if self.own_weights is not None:
            return self.own_weights
        static = all(isinstance(extent, tirx.IntImm) for extent in count)
        even = static and prod(map(int, count)) % machine.cores == 0
        return machine.l2_bytes if even else machine.l2_bytes // 2


def _unchecked(func: tirx.PrimFunc) -> Schedule:
    """A schedule for steps that depend on each other, which the checks take for conflicts."""
    return Schedule(func, debug_mask="none", enable_check=False)


def _sequences(sch: Schedule, block: SBlockRV) -> list[SBlockRV]:
    """The blocks around a serial loop: of groups of sequences, by their number."""
    inner = sch.get_child_blocks(block)
    if any(_is_panel(sch, child) for child in inner):
        return [block] if set(axis_kinds(sch.get(block))) == {"S"} else []
    return [found for child in inner for found in _sequences(sch, child)]


def _is_panel(sch: Schedule, block: SBlockRV) -> bool:
    return axis_kinds(sch.get(block)) == PANEL and len(_products(sch, block)) == 1


def _products(sch: Schedule, panel: SBlockRV) -> list[s_tir.SBlock]:
    blocks = [sch.get(block) for block in sch.get_child_blocks(panel)]
    return [block for block in blocks if axis_kinds(block) == PRODUCT]


def _size(sch: Schedule, panel: SBlockRV) -> tuple[int, int]:
    """Bytes of the weights of all panels, and multiply-adds of a step."""
    (product,) = _products(sch, panel)
    rows, *extents = (int(axis.dom.extent) for axis in product.iter_vars)
    weights = prod(extents) * int(sch.get(panel).iter_vars[1].dom.extent)
    item = DataType(str(product.reads[-1].source.ty.dtype.dtype)).itemsize
    return weights * item, rows * weights


def _dtype(block: s_tir.SBlock) -> str:
    return str(block.writes[0].source.ty.dtype.dtype)


def _schedule_panel(sch: Schedule, panel: SBlockRV, machine: Machine) -> None:
    for block in sch.get_child_blocks(panel):
        if _is_own(sch, panel, block):
            sch.set_scope(block, 0, "local")
        if axis_kinds(sch.get(block)) == PRODUCT:
            _register_tile(sch, block, machine)
        else:
            _vectorize_last(sch, block, machine)


def _is_own(sch: Schedule, panel: SBlockRV, block: SBlockRV) -> bool:
    """Whether ``block`` writes a buffer of the panel."""
    (written,) = sch.get(block).writes
    return any(written.source.same_as(buffer) and written.source.ty.storage_scope != "local"
               for buffer in sch.get(panel).alloc_buffers)  # fmt: skip


def _register_tile(sch: Schedule, product: SBlockRV, machine: Machine) -> None:
    """Some rows times all gates accumulate in registers."""
    block = sch.get(product)
    lanes = machine.lanes(_dtype(block))
    rows, depth, gates, units = (int(axis.dom.extent) for axis in block.iter_vars)
    vectors = gates * units // lanes
    tile = divisors(rows, max((machine.registers - vectors - 1) // vectors, 1))[-1]
    row, k, gate, unit = sch.get_loops(product)[-4:]
    block_of_rows, row = sch.split(row, [None, tile])
    outer, k = sch.split(k, [None, divisors(depth, 4)[-1]])
    vector, lane = sch.split(unit, [None, lanes])
    sch.reorder(block_of_rows, outer, k, row, gate, vector, lane)
    sch.vectorize(lane)
    for loop in (k, row, gate, vector):
        sch.unroll(loop)


def _vectorize_last(sch: Schedule, block: SBlockRV, machine: Machine) -> None:
    vectorize(sch, sch.get_loops(block)[-1], machine.lanes(_dtype(sch.get(block))))


def _swept_back_and_forth(sch: Schedule, loops: list[LoopRV]) -> tirx.PrimFunc:
    """Run ``loops`` over panels backwards in every other step: each begins where it last ended."""
    panels = [sch.get(loop) for loop in loops]

    def turned(realize: s_tir.SBlockRealize) -> s_tir.SBlockRealize:
        if axis_kinds(realize.block) != PANEL:
            return realize
        step = realize.iter_values[0]

        def index(var: tirx.Var) -> ir.Expr:
            for panel in panels:
                if var.same_as(panel.loop_var):
                    back = panel.extent - 1 - var
                    return tirx.Select(tirx.floormod(step, 2) == 0, var, back)
            return var

        values = [tvm_ffi.structural_map(value, (tirx.Var, index)) for value in realize.iter_values]
        predicate = tvm_ffi.structural_map(realize.predicate, (tirx.Var, index))
        return s_tir.SBlockRealize(values, predicate, realize.block)

    func = sch.mod["main"]
    return func.with_body(tvm_ffi.structural_map(func.body, (s_tir.SBlockRealize, turned)))


def _prefetched(func: tirx.PrimFunc, panels: list[tirx.Var]) -> tirx.PrimFunc:
    """Ask early for the weights of a product that uses each of them for one row only.

    ``panels`` are the variables of the loops around these products: others have no schedule yet.
    """

    def ahead(loop: tirx.For) -> tirx.Stmt:
        realize = loop.body
        if not isinstance(realize, s_tir.SBlockRealize) or axis_kinds(realize.block) != PRODUCT:
            return loop
        if not equal(realize.block.iter_vars[0].dom.extent, 1):
            return loop
        line = tirx.address_of(_weights_ahead(realize, loop.loop_var))
        read, near, data = (tirx.const(k, "int32") for k in (0, 3, 1))
        call = tirx.call_intrin("void", "tirx.prefetch", line, read, near, data)
        return tirx.SeqStmt([tirx.Evaluate(call), loop])

    def panel(loop: tirx.For) -> tirx.Stmt:
        if not any(loop.loop_var.same_as(var) for var in panels):
            return loop
        return tvm_ffi.structural_map(loop, (tirx.For, ahead))

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, panel)))


def _weights_ahead(realize: s_tir.SBlockRealize, lane: tirx.Var) -> ir.TensorLoad:
    """The first weight that a product in lanes reads some steps later, maybe past the panel."""
    loads: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(realize.block.body, (ir.TensorLoad, loads.append))
    weights = max(loads, key=lambda load: len(load.indices))
    values = list(realize.iter_values)
    values[1] = values[1] + PREFETCH_DEPTH
    bound = [(axis.var, value) for axis, value in zip(realize.block.iter_vars, values, strict=True)]

    def first(var: tirx.Var) -> ir.Expr:
        return tirx.const(0, var.ty) if var.same_as(lane) else var

    def value(var: tirx.Var) -> ir.Expr:
        value = next((value for own, value in bound if own.same_as(var)), var)
        return tvm_ffi.structural_map(value, (tirx.Var, first))

    indices = [tvm_ffi.structural_map(index, (tirx.Var, value)) for index in weights.indices]
    return tirx.BufferLoad(weights.source, indices)
