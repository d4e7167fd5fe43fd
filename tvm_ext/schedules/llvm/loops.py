"""What every llvm rule does to loops: normal form, collapse, vectorise, share among cores."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.s_tir.schedule import LoopRV, SBlockRV

from ..machine import Machine
from .access import Walk, nominal, volume

__all__ = ["Axis", "attempt", "collapse", "fit", "hint_partition", "normal_form", "parallelise", "partition",
           "share", "uses", "vectorize", "walk"]

# A parallel region costs 1-3 us; below about 5 us of vectorised work it does not pay.
PARALLEL_WORK = 1 << 16

# Elements per task where the extent is symbolic; the rest, less than one chunk, runs as scalars.
SYMBOLIC_CHUNK = 1 << 10

# Inlining a producer of at most this cost is cheaper than a trip through memory.
CHEAP = 6

_ANALYZER = sym.Analyzer()


def attempt(primitive: Callable, *args: object, **options: object) -> bool:
    """Whether a schedule primitive applied; one that does not leaves the schedule as it was."""
    try:
        primitive(*args, **options)
    except ScheduleError:
        return False
    return True


def walk(sch: Schedule, block: SBlockRV) -> Walk:
    """The facts about a block as it is now."""
    return Walk(sch.get(block))


def normal_form(func: tirx.PrimFunc) -> tuple[Schedule, list[SBlockRV]] | None:
    """A schedule of ``func`` with producers inlined, and the blocks that are left, in order.

    Each block has one loop per iteration variable, spatial before reduction, without unit loops.
    None where the function has no such form (opaque or nested blocks, no loops).
    """
    sch = Schedule(func, debug_mask="none")
    infos = normalize_prim_func(sch)
    if not infos or any("O" in info.dom_kind() for info in infos):
        return None
    blocks = [info.block_rv for info in infos]
    for block in reversed(blocks[:-1]):
        if _worth_inlining(sch, block) and attempt(sch.compute_inline, block):
            blocks.remove(block)
    return sch, blocks


def _worth_inlining(sch: Schedule, block: SBlockRV) -> bool:
    producer = walk(sch, block)
    if "R" in producer.kinds:
        return False
    if producer.cost <= CHEAP:
        return True
    readers = [walk(sch, consumer) for consumer in sch.get_consumers(block)]
    loads = sum(
        volume(reader.extents)
        for reader in readers
        for access in reader.inputs
        if access.buffer.same_as(producer.written[0])
    )
    return loads <= volume(producer.extents)


@dataclass
class Axis:
    """A loop, with the facts of the iteration variables it runs over.

    ``strides[k]`` is the step of access k; None where it is not constant.
    """

    loop: LoopRV
    kind: str
    extent: ir.Expr | int
    strides: list[ir.Expr | int | None]
    guarded: bool

    @property
    def size(self) -> int:
        """The nominal extent."""
        return nominal(self.extent)


def collapse(sch: Schedule, block: SBlockRV, skip: int = 0) -> list[Axis]:
    """The axes of a block after its first ``skip`` loops, with neighbours fused.

    Two loops become one where every access walks through both in equal steps. Unit loops are
    left where they are.
    """
    axes: list[Axis] = []
    # The bindings of a split loop with a tail stay affine only as they are.
    whole = isinstance(get_sblockrealize(sch, block).predicate, tirx.IntImm)
    for axis in _axes(sch, block, skip):
        if whole and axes and _continues(axes[-1], axis):
            extent = _int(axes[-1].extent * axis.extent)
            loop = sch.fuse(axes[-1].loop, axis.loop)
            axes[-1] = Axis(loop, axis.kind, extent, axis.strides, False)
        else:
            axes.append(axis)
    return axes


def _axes(sch: Schedule, block: SBlockRV, skip: int) -> list[Axis]:
    loops = sch.get_loops(block)
    stmts = [sch.get(loop) for loop in loops]
    values = get_sblockrealize(sch, block).iter_values
    facts = Walk(sch.get(block), [stmt.loop_var for stmt in stmts], values)
    reduced = {k for kind, value in zip(facts.kinds, values, strict=True) if kind == "R"
               for k in facts.used(value)}
    return [
        Axis(loops[k], "R" if k in reduced else "S", _int(stmts[k].extent),
             [access.strides[k] for access in facts.accesses], k in facts.guarded)
        for k in range(skip, len(loops)) if not _equal(stmts[k].extent, 1)
    ]


def _continues(outer: Axis, inner: Axis) -> bool:
    # A division by a symbolic extent would stay in the inner loop.
    if outer.kind != inner.kind or outer.guarded or inner.guarded:
        return False
    if not isinstance(_int(inner.extent), int):
        return False
    return all(
        o is not None and i is not None and _equal(o, i * inner.extent)
        for o, i in zip(outer.strides, inner.strides, strict=True)
    )


def _int(extent: ir.Expr | int) -> ir.Expr | int:
    return int(extent) if isinstance(extent, int | tirx.IntImm) else extent


def _equal(a: ir.Expr | int, b: ir.Expr | int) -> bool:
    a, b = _int(a), _int(b)
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    difference = _ANALYZER.simplify(a - b)
    return isinstance(difference, tirx.IntImm) and int(difference) == 0


def vectorize(sch: Schedule, loop: LoopRV, lanes: int) -> LoopRV | None:
    """Vectorise ``loop`` by ``lanes``; what does not divide becomes a scalar tail.

    Returns the loop around the vectors, None where the whole loop is one vector.
    """
    extent = _int(sch.get(loop).extent)
    lanes = fit(extent, lanes)
    if lanes == 1:
        return loop
    if extent == lanes:
        sch.vectorize(loop)
        return None
    outer, lane = sch.split(loop, [None, lanes])
    sch.vectorize(lane)
    partition(sch, outer, extent, lanes)
    return outer


def fit(extent: ir.Expr | int, lanes: int) -> int:
    """The vector width, ``lanes`` or a smaller power of two, with the least vectors and tail."""
    if not isinstance(extent, int):
        return lanes
    widths = [lanes >> shift for shift in range(lanes.bit_length())]
    return min(widths, key=lambda width: extent // width + extent % width)


def partition(sch: Schedule, outer: LoopRV, extent: ir.Expr | int, step: int) -> None:
    """Let the compiler cut the loop around steps that do not divide ``extent``."""
    if not isinstance(extent, int) or extent % step:
        hint_partition(sch, outer)


def hint_partition(sch: Schedule, loop: LoopRV) -> None:
    """Let the compiler cut ``loop`` where the predicate of its block changes."""
    sch.annotate(loop, "pragma_loop_partition_hint", tirx.const(1, "int32"))


def uses(expr: ir.Expr, var: ir.Var) -> bool:
    """Whether ``var`` occurs in ``expr``."""
    found: list[ir.Var] = []
    tvm_ffi.structural_walk(expr, (ir.Var, found.append))
    return any(var.same_as(other) for other in found)


def parallelise(sch: Schedule, loops: list[LoopRV], sizes: list[int], work: int,
                machine: Machine, *, uneven: bool = False) -> LoopRV | None:
    """Run the fewest leading ``loops`` in parallel that can be shared evenly among the cores.

    With ``uneven``, all of them where there are no such.

    Returns the parallel loop; None where they cannot, or where the work does not pay for a parallel region.
    """
    if work < PARALLEL_WORK or machine.cores == 1:
        return None
    count = 1
    for used, size in enumerate(sizes, 1):
        count *= size
        if _even(count, machine.cores) or uneven and used == len(sizes) and count > 1:
            task = loops[0] if used == 1 else sch.fuse(*loops[:used])
            sch.parallel(task)
            return task
    return None


def share(sch: Schedule, outer: list[Axis], inner: Axis, lanes: int, work: int,
          machine: Machine) -> None:
    """Vectorise ``inner`` and give each core its part of the work.

    Where the ``outer`` axes cannot be shared evenly, ``inner`` is cut into one chunk per core.
    """
    loops = [axis.loop for axis in outer]
    # A guard that differs between lanes would be run lane by lane; LLVM masks the plain loop.
    lanes = 1 if inner.guarded else lanes
    task = parallelise(sch, loops, [axis.size for axis in outer], work, machine)
    if task is not None or not _worth_cutting(inner, lanes, work, machine):
        vectorize(sch, inner.loop, lanes)
        return
    extent = _int(inner.extent)
    static = isinstance(extent, int)
    factors = [machine.cores, None, lanes] if static else [None, SYMBOLIC_CHUNK // lanes, lanes]
    chunk, middle, lane = sch.split(inner.loop, factors)
    sch.reorder(chunk, *loops, middle, lane)
    sch.parallel(chunk)
    if lanes > 1:
        sch.vectorize(lane)
        partition(sch, middle if static else chunk, extent, lanes * machine.cores)


def _worth_cutting(inner: Axis, lanes: int, work: int, machine: Machine) -> bool:
    return (work >= PARALLEL_WORK and machine.cores > 1
            and inner.size >= 4 * lanes * machine.cores)


def shares_evenly(sizes: list[int], machine: Machine) -> bool:
    """Whether some leading loops of these ``sizes`` give every core about as much."""
    return any(_even(count, machine.cores) for count in accumulate(sizes, mul))


def _even(count: int, cores: int) -> bool:
    return count % cores == 0 or count >= 8 * cores
