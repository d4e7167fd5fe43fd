"""What every llvm rule does to loops: normal form, collapse, vectorise, share among cores."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir import SBlock, Schedule, ScheduleError
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IndexMap

from ..machine import Machine
from .access import Walk, nominal, volume
from .single_terms import with_single_terms

__all__ = [
    "Axis",
    "attempt",
    "axes",
    "collapse",
    "equal",
    "fit",
    "hint_partition",
    "is_clipped",
    "moves",
    "normal_form",
    "others_inlined",
    "parallelise",
    "partition",
    "share",
    "shareable",
    "shared",
    "shares_evenly",
    "uses",
    "vectorize",
    "walk",
    "with_simple_quotients",
]

# A parallel region costs 1-3 us; below about 5 us of vectorised work it does not pay.
PARALLEL_WORK = 1 << 16

# So many symbolic extents together are taken to be large.
_PLENTY = 2

# Rows of so many elements stay rows where their number is symbolic.
WIDE = 64

# Inlining a producer of at most this cost is cheaper than a trip through memory.
CHEAP = 6

_ANALYZER = sym.Analyzer()

# LLVM has them for vectors; TVM does not know that, and would run their statements lane by lane.
for _operator in ("tirx.isnan", "tirx.nearbyint", "tirx.rsqrt"):
    ir.register_op_attr(_operator, "TVectorizable", True)


def attempt(primitive: Callable, *args: object, **options: object) -> bool:
    """Whether a schedule primitive applied; one that does not leaves the schedule as it was."""
    try:
        primitive(*args, **options)
    except ScheduleError:
        return False
    return True


def others_inlined(
    sch: Schedule, blocks: Sequence[SBlockRV], first: int, count: int = 1
) -> list[SBlock] | None:
    """``count`` blocks from number ``first`` on and the last, once all others are part of them;
    None where one cannot be."""
    others = (*blocks[:first], *blocks[first + count : -1])
    if not all(attempt(sch.compute_inline, block) for block in others):
        return None
    return [sch.get(block) for block in (*blocks[first : first + count], blocks[-1])]


def walk(sch: Schedule, block: SBlockRV) -> Walk:
    """The facts about a block as it is now."""
    return Walk(sch.get(block))


def normal_form(
    func: tirx.PrimFunc, keep: Callable[[Schedule, SBlockRV], bool] = lambda *_: False
) -> tuple[Schedule, list[SBlockRV]] | None:
    """A schedule of ``func`` with producers inlined, and the blocks that are left, in order.

    Those that ``keep`` says are not inlined.

    Each block has one loop per iteration variable, spatial before reduction, without unit loops;
    one that reduces over a single element is element-wise.
    None where the function has no such form (opaque or nested blocks, no loops).
    """
    sch = Schedule(with_single_terms(func), debug_mask="none")
    infos = normalize_prim_func(sch)
    if not infos or any("O" in info.dom_kind() for info in infos):
        return None
    blocks = [info.block_rv for info in infos]
    if any(_holds_loops(sch.get(block)) for block in blocks):
        return None
    for block in reversed(blocks[:-1]):
        if keep(sch, block) or not _worth_inlining(sch, block):
            continue
        if attempt(sch.compute_inline, block):
            blocks.remove(block)
    return sch, blocks


def _holds_loops(block: s_tir.SBlock) -> bool:
    """Whether ``block`` is more than statements about one element."""
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(block.body, (tirx.For, found.append))
    return bool(found)


def _worth_inlining(sch: Schedule, block: SBlockRV) -> bool:
    producer = walk(sch, block)
    if "R" in producer.kinds:
        return False
    if producer.cost <= CHEAP:
        return True
    loads = [
        (reader, access)
        for reader in (walk(sch, consumer) for consumer in sch.get_consumers(block))
        for access in reader.inputs
        if access.buffer.same_as(producer.written[0])
    ]
    total, written = sum(volume(reader.extents) for reader, _ in loads), volume(producer.extents)
    # What is costly is computed in whole vectors, though a reader leaves elements out; moves are
    # one move in the end, as is what is read in another order.
    skips = not moves(producer) and any(
        access.strides[reader.kinds.rfind("S")] not in (0, 1) for reader, access in loads
    )
    return total == written if skips else total <= written


def moves(facts: Walk) -> bool:
    """Whether a block stores what it loads: all that it computes is places."""
    store = facts.block.body
    return isinstance(store, tirx.BufferStore) and isinstance(store.value, ir.TensorLoad)


@dataclass
class Axis:
    """A loop, with the facts of the iteration variables it runs over.

    ``strides[k]`` is the step of access k; None where it is not constant. ``guarded``: a
    condition depends on it. ``counted``: the result does, not only what is read.
    """

    loop: LoopRV
    kind: str
    extent: ir.Expr | int
    strides: list[ir.Expr | int | None]
    guarded: bool
    counted: bool

    @property
    def size(self) -> int:
        """The nominal extent."""
        return nominal(self.extent)


def collapse(sch: Schedule, block: SBlockRV, rows: int = 0) -> int:
    """Fuse neighbouring iteration variables of a block in normal form.

    Pairs become one where every access walks through both in equal steps; the first ``rows``
    become one in any case. Returns how many loops the rows are now: more than one where they
    have symbolic extents.
    """
    found = axes(sch, block, drop_units=False)
    static = all(isinstance(axis.extent, int) for axis in found[1:rows])
    groups = [list(range(rows))] if static and rows else [[k] for k in range(rows)]
    depth = len(groups)
    pairs: list[list[int]] = []
    moving = walk(sch, block).moving
    # From the innermost, and never three: offsets of two digits of a value fold, of three do not.
    for k in reversed(range(rows, len(found))):
        if pairs and len(pairs[0]) == 1 and _continues(found[k], found[k + 1], moving):
            pairs[0].insert(0, k)
        else:
            pairs.insert(0, [k])
    groups += pairs

    def fused(*variables: ir.Var) -> list[ir.Expr]:
        return [_flat([(variables[k], found[k].extent) for k in group]) for group in groups]

    if len(groups) < len(found):
        dtype = str(sch.get(found[0].loop).loop_var.ty.dtype)
        sch.transform_block_layout(
            block, IndexMap.from_func(fused, ndim=len(found), index_dtype=dtype)
        )
    return depth


def with_simple_quotients(sch: Schedule, block: SBlockRV) -> Schedule:
    """A schedule of the same kernel, in which quotients of the variables of ``block``, which a
    change of its layout left, are as simple as these allow."""
    analyzer, func = sym.Analyzer(), sch.mod["main"]
    for axis in sch.get(block).iter_vars:
        analyzer.bind(axis.var, axis.dom)
    quotients = (tirx.FloorDiv, tirx.FloorMod)
    body = tvm_ffi.structural_map(func.body, (quotients, analyzer.simplify))
    simple = tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)
    return Schedule(simple, debug_mask="none")


def _flat(digits: list[tuple[ir.Expr, ir.Expr | int]]) -> ir.Expr:
    (value, _), *rest = digits
    for variable, extent in rest:
        value = value * extent + variable
    return value


def axes(sch: Schedule, block: SBlockRV, skip: int = 0, *, drop_units: bool = True) -> list[Axis]:
    """The loops of a block after the first ``skip``, without unit loops."""
    loops = sch.get_loops(block)
    stmts = [sch.get(loop) for loop in loops]
    values = get_sblockrealize(sch, block).iter_values
    facts = Walk(sch.get(block), [stmt.loop_var for stmt in stmts], values)
    reduced = {
        k
        for kind, value in zip(facts.kinds, values, strict=True)
        if kind == "R"
        for k in facts.used(value)
    }
    return [
        Axis(
            loops[k],
            "R" if k in reduced else "S",
            _int(stmts[k].extent),
            [access.strides[k] for access in facts.accesses],
            k in facts.guarded,
            k in facts.counted,
        )
        for k in range(skip, len(loops))
        if not (drop_units and equal(stmts[k].extent, 1))
    ]


def _continues(outer: Axis, inner: Axis, moving: Sequence[bool]) -> bool:
    # A division, to tell a guard or a value which was which or by a symbolic extent, would stay
    # in the inner loop.
    if outer.kind != inner.kind or any(a.guarded or a.counted for a in (outer, inner)):
        return False
    width = _int(inner.extent)
    if not isinstance(width, int):
        return False
    if not isinstance(_int(outer.extent), int) and width >= WIDE:
        return False  # whole vectors and loops to share are worth more than one long loop
    return all(
        o is not None and i is not None and equal(o, i * inner.extent)
        for o, i, kept in zip(outer.strides, inner.strides, moving, strict=True)
        if kept
    )


def _int(extent: ir.Expr | int) -> ir.Expr | int:
    return int(extent) if isinstance(extent, int | tirx.IntImm) else extent


def equal(a: ir.Expr | int, b: ir.Expr | int) -> bool:
    """Whether two extents or strides are known to be equal."""
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
    scalar = is_clipped(extent) or _repeats_bfloat16(sch.get(loop))  # LLVM makes vectors of it
    lanes = 1 if scalar else fit(extent, lanes)
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
    """Let the compiler cut ``loop`` where the predicate of its block changes.

    Not where a condition below reads memory, or the extent is clipped: LoopPartition takes what it
    reads, or is clipped, for a bound as well, and the parts it makes reach beyond the buffers.
    """
    if is_clipped(sch.get(loop).extent) or _has_data_dependent_condition(sch.get(loop)):
        return
    sch.annotate(loop, "pragma_loop_partition_hint", tirx.const(1, "int32"))


def _is_cut(loop: tirx.For) -> bool:
    """Whether a hint makes the compiler cut ``loop`` where a guard inside changes."""
    return isinstance(_int(loop.extent), int) and not _has_data_dependent_condition(loop)


def _has_data_dependent_condition(stmt: tirx.Stmt) -> bool:
    """Whether an integer that is compared somewhere in ``stmt`` is read from memory."""
    found: list[ir.Expr] = []

    def visit(comparison: ir.Expr) -> None:
        if "int" in str(comparison.a.ty.dtype):
            tvm_ffi.structural_walk(comparison, (ir.TensorLoad, found.append))

    comparisons = tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE
    tvm_ffi.structural_walk(stmt, (comparisons, visit))
    return bool(found)


def _repeats_bfloat16(loop: tirx.For) -> bool:
    """Whether ``loop`` stores one bfloat16 many times: TVM cannot make a vector of it, LLVM can."""
    found: list[bool] = []

    def visit(block: s_tir.SBlockRealize) -> None:
        moving = [
            var.var
            for var, value in zip(block.block.iter_vars, block.iter_values, strict=True)
            if uses(value, loop.loop_var)
        ]
        stmt = block.block.body
        if isinstance(stmt, tirx.BufferStore) and str(stmt.value.ty.dtype) == "bfloat16":
            found.append(not any(uses(stmt.value, var) for var in moving))

    tvm_ffi.structural_walk(loop, (s_tir.SBlockRealize, visit))
    return any(found)


def uses(expr: ir.Expr, var: ir.Var) -> bool:
    """Whether ``var`` occurs in ``expr``."""
    found: list[ir.Var] = []
    tvm_ffi.structural_walk(expr, (ir.Var, found.append))
    return any(var.same_as(other) for other in found)


def parallelise(sch: Schedule, loops: list[LoopRV], work: int, machine: Machine) -> LoopRV | None:
    """Run the fewest leading ``loops`` in parallel that can be shared evenly among the cores.

    Returns the parallel loop; None where they cannot, or where the work does not pay for it.
    """
    if work < PARALLEL_WORK or machine.cores == 1:
        return None
    used = shareable(sch, loops, machine)
    if not used:
        return None
    task = loops[0] if used == 1 else sch.fuse(*loops[:used])
    sch.parallel(task)
    return task


def shareable(sch: Schedule, loops: list[LoopRV], machine: Machine) -> int:
    """How many leading ``loops`` to run as one, so that every core has about as much; 0: none do.

    One symbolic extent may well be 1 (a batch), two of them hardly are.
    """
    static, symbolic = 1, 0
    for used, loop in enumerate(loops, 1):
        extent = _int(sch.get(loop).extent)
        if used > 1 and _is_choice(extent):
            return used - 1 if symbolic else 0
        static *= _factor(extent)
        symbolic += not isinstance(extent, int)
        if _even(static, machine.cores) or symbolic == _PLENTY:
            return used
    return len(loops) if symbolic else 0


def _factor(extent: ir.Expr | int) -> int:
    """A number that divides ``extent``: that of heads, where these are one loop with a batch."""
    if isinstance(extent, tirx.Mul) and isinstance(extent.b, tirx.IntImm):
        return int(extent.b)
    return extent if isinstance(extent, int) else 1


def _is_choice(extent: ir.Expr | int) -> bool:
    """Whether a condition decides ``extent``: no divisor, for TVM folds both cases, also of a 0."""
    return _has_any(extent, tirx.Select)


def is_clipped(extent: ir.Expr | int) -> bool:
    """Whether ``extent`` is that of a slice, say, which may come out below 0 and is 0 then."""
    return _has_any(extent, tirx.Select, tirx.Max)


def _has_any(extent: ir.Expr | int, *kinds: type) -> bool:
    found: list[ir.Expr] = []
    if not isinstance(extent, int):
        tvm_ffi.structural_walk(extent, (kinds, found.append))
    return bool(found)


def shared(rows: int, work: int, machine: Machine) -> bool:
    """Whether ``work`` on so many rows is worth a parallel loop, even an uneven one."""
    return work >= PARALLEL_WORK and machine.cores > 1 and rows > 1


def share(
    sch: Schedule, outer: list[Axis], inner: Axis, lanes: int, work: int, machine: Machine
) -> None:
    """Vectorise ``inner`` and give each core its part of the work.

    Where the ``outer`` axes cannot be shared evenly, ``inner`` is cut into one chunk per core.
    """
    loops = [axis.loop for axis in outer]
    # A guard that differs between lanes is run lane by lane: vectors need a loop that is cut where
    # the guard changes, else LLVM's masks on a plain loop are better.
    stmt = sch.get(inner.loop)
    if _repeats_bfloat16(stmt) or (inner.guarded and not _is_cut(stmt)) or _is_interleaved(inner):
        lanes = 1
    task = parallelise(sch, loops, work, machine)
    if task is not None or not _worth_cutting(inner, lanes, work, machine):
        vectors = vectorize(sch, inner.loop, lanes)
        if inner.guarded and lanes > 1 and vectors is not None:
            hint_partition(sch, vectors)
        return
    extent = _int(inner.extent)
    static = isinstance(extent, int)
    # The compiler cuts the range of a parallel loop into one part per core.
    factors = [machine.cores, None, lanes] if static else [None, 1, lanes]
    chunk, middle, lane = sch.split(inner.loop, factors)
    sch.reorder(chunk, *loops, middle, lane)
    sch.parallel(chunk)
    if lanes > 1:
        sch.vectorize(lane)
        partition(sch, middle if static else chunk, extent, lanes * machine.cores)


def _is_interleaved(axis: Axis) -> bool:
    """Whether steps along ``axis`` skip some elements: LLVM shuffles vectors of them, TVM loads
    one lane at a time."""
    return any(isinstance(step, int) and 1 < step <= 4 for step in axis.strides)


def _worth_cutting(inner: Axis, lanes: int, work: int, machine: Machine) -> bool:
    return work >= PARALLEL_WORK and machine.cores > 1 and inner.size >= 4 * lanes * machine.cores


def shares_evenly(sizes: list[int], machine: Machine) -> bool:
    """Whether some leading loops of these ``sizes`` give every core about as much."""
    return any(_even(count, machine.cores) for count in accumulate(sizes, mul))


def _even(count: int, cores: int) -> bool:
    return count % cores == 0 or count >= 8 * cores
