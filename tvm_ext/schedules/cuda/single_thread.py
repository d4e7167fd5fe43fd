"""The last resort: whatever runs outside of GPU threads runs in one thread."""

import logging
from collections.abc import Callable

import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule
from tvm.target import Target

from .checked import name_of

__all__ = ["OwnThreads", "SingleThread"]

_log = logging.getLogger("tvm_ext.schedules.cuda")


class SingleThread(GPUScheduleRule):
    """Takes any function: scans, opaque and external blocks, nests no other rule can read.

    Each outermost statement becomes a launch of one thread, in order. Slow and always right; a
    kernel that shows up here in a profile deserves a rule.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> s_tir.Schedule | None:
        """The schedule; None on other targets only."""
        if not self.is_target_available(target):
            return None
        _log.debug("%s: scheduled by SingleThread", name_of(func))
        root = func.body
        if not isinstance(root, s_tir.SBlockRealize):
            return s_tir.Schedule(func.with_body(_bind(root)))
        buffers, body = _hoist(root.block)
        launches = [*(_one_thread(_touch(buffer)) for buffer in buffers), _bind(body)]
        body = launches[0] if len(launches) == 1 else tirx.SeqStmt(launches)
        return s_tir.Schedule(func.with_body(_with_block(root, body, buffers)))


class OwnThreads(GPUScheduleRule):
    """Takes functions that launch threads by themselves, as sort and scan of topi.gpu do.

    What stands outside of their threads runs in one.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> s_tir.Schedule | None:
        """The schedule, or None where ``func`` launches no thread."""
        if not self.is_target_available(target) or not _has_threads(func.body):
            return None
        _log.debug("%s: brings its own threads", name_of(func))
        return s_tir.Schedule(func.with_body(_bind(func.body)))


def _bind(stmt: tirx.Stmt) -> tirx.Stmt:
    """``stmt`` with a single thread around each largest part that has no threads."""
    if isinstance(stmt, tirx.SeqStmt):
        return _map_children(stmt, _bind)
    if not _has_threads(stmt):
        return _one_thread(stmt)
    return stmt if _launches(stmt) else _map_children(stmt, _bind)


def _hoist(root: s_tir.SBlock) -> tuple[list[tirx.Var], tirx.Stmt]:
    """All buffers allocated in ``root``, and its body without allocations."""
    buffers = list(root.alloc_buffers)

    def strip(stmt: tirx.Stmt) -> tirx.Stmt:
        stmt = _map_children(stmt, strip)
        if isinstance(stmt, s_tir.SBlockRealize):
            buffers.extend(stmt.block.alloc_buffers)
            return _with_block(stmt, stmt.block.body, [])
        return stmt

    return buffers, strip(root.body)


def _map_children(stmt: tirx.Stmt, function: Callable[[tirx.Stmt], tirx.Stmt]) -> tirx.Stmt:
    """``stmt`` with ``function`` applied to the statements directly inside of it."""
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([function(child) for child in stmt.seq])
    if isinstance(stmt, s_tir.SBlockRealize):
        return _with_block(stmt, function(stmt.block.body), stmt.block.alloc_buffers)
    if isinstance(stmt, tirx.For):
        return tirx.For(
            stmt.loop_var,
            stmt.min,
            stmt.extent,
            stmt.kind,
            function(stmt.body),
            stmt.thread_binding,
            stmt.annotations,
            stmt.step,
        )
    if isinstance(stmt, tirx.While):
        return tirx.While(stmt.condition, function(stmt.body))
    if isinstance(stmt, tirx.AttrStmt):
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, function(stmt.body))
    if isinstance(stmt, tirx.IfThenElse):
        other = None if stmt.else_case is None else function(stmt.else_case)
        return tirx.IfThenElse(stmt.condition, function(stmt.then_case), other)
    return stmt


def _with_block(
    realize: s_tir.SBlockRealize, body: tirx.Stmt, buffers: list[tirx.Var]
) -> s_tir.SBlockRealize:
    """``realize`` with another body and other buffers in its block."""
    block = realize.block
    block = s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        buffers,
        block.match_buffers,
        block.annotations,
    )
    return s_tir.SBlockRealize(realize.iter_values, realize.predicate, block)


def _touch(buffer: tirx.Var) -> s_tir.SBlockRealize:
    """A block that writes the first element of ``buffer``.

    TVM allocates a buffer in the innermost statement around all its uses; inside of a kernel
    CUDA cannot. A use in a launch of its own keeps the allocation outside.
    """
    first = [tirx.const(0, extent.ty) for extent in buffer.ty.shape]
    store = tirx.BufferStore(buffer, tirx.const(0, buffer.ty.dtype), first)
    block = s_tir.SBlock([], [], [], "touch", store)
    return s_tir.SBlockRealize([], True, block)


def _one_thread(stmt: tirx.Stmt) -> tirx.For:
    for tag in ("threadIdx.x", "blockIdx.x"):
        var = tirx.Var(tag.replace(".", "_"), "int32")
        axis = tirx.IterVar(None, tirx.Var("", "int32"), tirx.IterVar.ThreadIndex, tag)
        stmt = tirx.For(var, 0, 1, tirx.ForKind.THREAD_BINDING, stmt, axis)
    return stmt


def _launches(stmt: tirx.Stmt) -> bool:
    """Does ``stmt`` itself bind threads?"""
    if isinstance(stmt, tirx.AttrStmt):
        return stmt.attr_key in ("thread_extent", "virtual_thread")
    return isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.THREAD_BINDING


def _has_threads(stmt: tirx.Stmt) -> bool:
    found: list[bool] = []

    def visit(node: tirx.Stmt) -> None:
        found.append(_launches(node))

    tvm_ffi.structural_walk(stmt, ((tirx.AttrStmt, tirx.For), visit), order="post")
    return any(found)
