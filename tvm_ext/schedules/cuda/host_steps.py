"""Recurrent programs: the loop over time runs on the host, and each step launches all blocks."""

import logging
from math import gcd, prod

import tvm_ffi
from tvm import DataType, s_tir, tirx
from tvm.ir import TensorLoad
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule
from tvm.target import Target

from ..statements import children, map_children, substituted, with_block
from .blocks import SHARED_BYTES
from .checked import name_of
from .serial_program import (
    TOGETHER,
    at_trip,
    bound,
    by_first,
    grid,
    in_turns,
    opened,
    opened_block,
)
from .single_thread import hoist, touch

__all__ = ["HostSteps"]

_log = logging.getLogger("tvm_ext.schedules.cuda")

# With fewer programs to a step one block of threads is faster than launches are.
FEW_PROGRAMS = 3
# Loads of a sum that a thread has in flight.
UNROLLED = 32


class HostSteps(GPUScheduleRule):
    """Takes a serial loop whose steps have independent blocks, as in LSTM, GRU and RNN.

    A loop is parallel here where a block inside says so: it has a spatial axis that is the loop's
    variable. In

        for d: for t: (for p: P[d, t, p]; R[d, t])

    with ``d`` and ``p`` parallel, the host runs ``t``, and launches in each step first ``P`` in a
    block of threads for every ``d`` and ``p``, then ``R`` for every ``d``. What an iteration of
    ``p`` allocates for itself lies in shared memory; what one of ``d`` does, which lives from
    launch to launch, becomes an array with a place for each.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> s_tir.Schedule | None:
        """The schedule, or None where ``func`` has no such loop."""
        root = func.body
        if not self.is_target_available(target) or not isinstance(root, s_tir.SBlockRealize):
            return None
        if not _has_steps(root.block.body):
            return None
        body = _with_own_arrays(root.block.body, [])
        whole = with_block(root, body, list(root.block.alloc_buffers))
        buffers, body = hoist(whole.block)
        launches = [bound(touch(buffer), {}) for buffer in buffers if buffer.scope() == "global"]
        body = tirx.SeqStmt([*launches, _launched(body, [])])
        if _has_block(body):
            return None
        _log.debug("%s: scheduled by HostSteps", name_of(func))
        return s_tir.Schedule(func.with_body(with_block(root, body, buffers)))


def _with_own_arrays(stmt: tirx.Stmt, around: list[tirx.For]) -> tirx.Stmt:
    """``stmt``, where blocks in parallel loops, ``around`` it or in it, allocate for each trip."""
    if isinstance(stmt, tirx.For) and _is_parallel(stmt):
        around = [*around, stmt]
    elif isinstance(stmt, s_tir.SBlockRealize) and around and stmt.block.alloc_buffers:
        if not _has_steps(around[-1]) and _fits_shared(stmt.block):
            stmt = _moved(stmt, [], "shared")
        else:
            stmt = _moved(stmt, around, "global")
    return map_children(stmt, lambda child: _with_own_arrays(child, around))


def _is_parallel(loop: tirx.For) -> bool:
    """Whether the next block inside of ``loop`` has its variable for a spatial axis."""
    block = _next_block(loop)
    return block is not None and any(
        axis.iter_type == tirx.IterVar.DataPar and value.same_as(loop.loop_var)
        for axis, value in zip(block.block.iter_vars, block.iter_values, strict=True)
    )


def _next_block(loop: tirx.For) -> s_tir.SBlockRealize | None:
    inside = loop.body
    while isinstance(inside, tirx.For):
        inside = inside.body
    return inside if isinstance(inside, s_tir.SBlockRealize) else None


def _has_steps(stmt: tirx.Stmt) -> bool:
    """Whether ``stmt`` has a serial loop around parallel ones of many nests each."""
    if isinstance(stmt, tirx.For) and not _is_parallel(stmt) and _has_programs(stmt.body):
        return True
    return any(_has_steps(child) for child in children(stmt))


def _has_programs(stmt: tirx.Stmt) -> bool:
    """Whether ``stmt`` has a parallel loop of enough iterations around other blocks."""
    if isinstance(stmt, tirx.For) and _is_parallel(stmt):
        block, trips = _next_block(stmt), stmt.extent
        many = isinstance(trips, tirx.IntImm) and int(trips) >= FEW_PROGRAMS
        if many and block is not None and _has_block(block.block.body):
            return True
    return any(_has_programs(child) for child in children(stmt))


def _has_block(stmt: tirx.Stmt) -> bool:
    named = isinstance(stmt, s_tir.SBlockRealize) and len(stmt.block.iter_vars) > 0
    return named or any(_has_block(child) for child in children(stmt))


def _launched(stmt: tirx.Stmt, around: list[tirx.For]) -> tirx.Stmt:
    """``stmt`` in launches, each of all trips of the parallel loops ``around`` it."""
    if isinstance(stmt, tirx.SeqStmt):
        return map_children(stmt, lambda child: _launched(child, around))
    if isinstance(stmt, s_tir.SBlockRealize) and not stmt.block.iter_vars:
        return _launched(stmt.block.body, around)
    if isinstance(stmt, s_tir.SBlockRealize):
        inside = opened_block(stmt)
        return inside if inside.same_as(stmt) else _launched(inside, around)
    if not _has_steps(stmt):
        return _launch(stmt, around)
    if _is_parallel(stmt):
        return _launched(stmt.body, [*around, stmt])
    return map_children(stmt, lambda child: _launched(child, around))


def _launch(stmt: tirx.Stmt, around: list[tirx.For]) -> tirx.Stmt:
    """``stmt`` in one launch: an element to a thread, or a program to a block of threads."""
    nest = _parallel_nest(stmt)
    if nest and all(isinstance(loop.extent, tirx.IntImm) for loop in around):
        return grid(_inside(around, opened(stmt)), [*around, *nest])
    if isinstance(stmt, tirx.For) and _is_parallel(stmt) and not nest:
        around, stmt = [*around, stmt], stmt.body
    block, thread = tirx.Var("blockIdx_x", "int64"), tirx.Var("threadIdx_x", "int64")
    body = at_trip(_unrolled(_in_step(stmt, thread)), around, block)
    trips = prod(loop.extent.astype("int64") for loop in around) if around else 1
    return bound(body, {"blockIdx.x": (block, trips), "threadIdx.x": (thread, TOGETHER)})


def _inside(loops: list[tirx.For], stmt: tirx.Stmt) -> tirx.Stmt:
    """``stmt`` for the body of ``loops``, the first outermost."""
    if not loops:
        return stmt
    return map_children(loops[0], lambda _: _inside(loops[1:], stmt))


def _parallel_nest(stmt: tirx.Stmt) -> list[tirx.For]:
    """The parallel loops at the top of ``stmt`` where nothing but one block is inside.

    Empty where one has no fixed extent, as then TVM allocates temporaries per thread.
    """
    loops: list[tirx.For] = []
    while isinstance(stmt, tirx.For):
        loops.append(stmt)
        stmt = stmt.body
    simple = isinstance(stmt, s_tir.SBlockRealize) and not _has_block(stmt.block.body)
    fixed = all(isinstance(loop.extent, tirx.IntImm) and int(loop.extent) > 0 for loop in loops)
    return [loop for loop in loops if _is_parallel(loop)] if simple and fixed else []


def _in_step(stmt: tirx.Stmt, thread: tirx.Var) -> tirx.Stmt:
    """The program ``stmt`` for every thread of a block, in step after each nest."""
    nest = _parallel_nest(stmt)
    if nest:
        return in_turns(opened(stmt), nest, thread)
    if isinstance(stmt, tirx.SeqStmt) or (isinstance(stmt, tirx.For) and _has_nests(stmt)):
        return map_children(stmt, lambda child: _in_step(child, thread))
    if isinstance(stmt, s_tir.SBlockRealize) and _has_block(stmt.block.body):
        inside = opened_block(stmt)
        return inside if inside.same_as(stmt) else _in_step(inside, thread)
    return by_first(opened(stmt), thread)


def _has_nests(stmt: tirx.Stmt) -> bool:
    return bool(_parallel_nest(stmt)) or any(_has_nests(child) for child in children(stmt))


def _unrolled(stmt: tirx.Stmt) -> tirx.Stmt:
    """``stmt`` where loops around a single store are unrolled, as far as their extent divides."""
    if not isinstance(stmt, tirx.For) or not isinstance(stmt.body, tirx.BufferStore):
        return map_children(stmt, _unrolled)
    extent = int(stmt.extent) if isinstance(stmt.extent, tirx.IntImm) else 1
    few = gcd(extent, UNROLLED)
    if few == 1:
        return stmt
    kind = stmt.loop_var.ty.dtype
    outer, inner = tirx.Var(f"{stmt.loop_var.name}_outer", kind), tirx.Var(stmt.loop_var.name, kind)
    body = substituted(stmt.body, {stmt.loop_var: outer * few + inner})
    zero = tirx.const(0, kind)
    body = tirx.For(inner, zero, tirx.const(few, kind), tirx.ForKind.UNROLLED, body)
    return tirx.For(outer, zero, tirx.const(extent // few, kind), tirx.ForKind.SERIAL, body)


def _fits_shared(block: s_tir.SBlock) -> bool:
    """Whether a block of threads runs ``block``, and can hold what it allocates."""
    sizes = [extent for buffer in block.alloc_buffers for extent in buffer.ty.shape]
    if not _has_block(block.body) or not all(isinstance(size, tirx.IntImm) for size in sizes):
        return False
    taken = sum(
        prod(map(int, buffer.ty.shape)) * DataType(buffer.ty.dtype).itemsize
        for buffer in block.alloc_buffers
    )
    return taken <= SHARED_BYTES // 2  # the rest is for sums


def _moved(realize: s_tir.SBlockRealize, around: list[tirx.For], scope: str) -> s_tir.SBlockRealize:
    """``realize`` with arrays in ``scope``, with a place for each iteration of ``around``."""
    place = [loop.loop_var for loop in around]
    arrays = {
        buffer: tirx.decl_buffer(
            [*(loop.extent for loop in around), *buffer.ty.shape],
            buffer.ty.dtype,
            buffer.name,
            scope=scope,
        )
        for buffer in realize.block.alloc_buffers
    }

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        if node.buffer not in arrays:
            return node
        return tirx.BufferStore(arrays[node.buffer], node.value, [*place, *node.indices])

    def load(node: TensorLoad) -> TensorLoad:
        if node.source not in arrays:
            return node
        return tirx.BufferLoad(arrays[node.source], [*place, *node.indices])

    body = tvm_ffi.structural_map(
        realize.block.body, [(tirx.BufferStore, store), (TensorLoad, load)]
    )
    return with_block(realize, body, list(arrays.values()))
