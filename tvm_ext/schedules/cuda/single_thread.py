"""The last resort: whatever runs outside of GPU threads gets some, one if need be."""

import logging

import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule
from tvm.target import Target

from ..statements import map_children, with_block
from .checked import name_of
from .serial_program import bound, launch

__all__ = ["OwnThreads", "SingleThread", "hoist", "touch"]

_log = logging.getLogger("tvm_ext.schedules.cuda")


class SingleThread(GPUScheduleRule):
    """Takes any function: scans, opaque and external blocks, nests no other rule can read.

    Each outermost statement becomes a launch, in order, its independent loops spread over
    threads (see serial_program); of one thread where it has none.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> s_tir.Schedule | None:
        """The schedule; None on other targets only."""
        if not self.is_target_available(target):
            return None
        _log.debug("%s: scheduled by SingleThread", name_of(func))
        root = func.body
        if not isinstance(root, s_tir.SBlockRealize):
            return s_tir.Schedule(func.with_body(_bind(root)))
        buffers, body = hoist(root.block)
        launches = [*(bound(touch(buffer), {}) for buffer in buffers), _bind(body)]
        body = launches[0] if len(launches) == 1 else tirx.SeqStmt(launches)
        return s_tir.Schedule(func.with_body(with_block(root, body, buffers)))


class OwnThreads(GPUScheduleRule):
    """Takes functions that launch threads by themselves, as sort and scan of topi.gpu do.

    What stands outside of their threads gets some as in :class:`SingleThread`.
    """

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> s_tir.Schedule | None:
        """The schedule, or None where ``func`` launches no thread."""
        if not self.is_target_available(target) or not _has_threads(func.body):
            return None
        _log.debug("%s: brings its own threads", name_of(func))
        return s_tir.Schedule(func.with_body(_bind(func.body)))


def _bind(stmt: tirx.Stmt) -> tirx.Stmt:
    """``stmt`` with a launch for each largest part that has no threads."""
    if isinstance(stmt, tirx.SeqStmt):
        return map_children(stmt, _bind)
    if not _has_threads(stmt):
        return launch(stmt)
    return stmt if _launches(stmt) else map_children(stmt, _bind)


def hoist(root: s_tir.SBlock) -> tuple[list[tirx.Var], tirx.Stmt]:
    """All buffers allocated in ``root``, and its body without allocations."""
    buffers = list(root.alloc_buffers)

    def strip(stmt: tirx.Stmt) -> tirx.Stmt:
        stmt = map_children(stmt, strip)
        if isinstance(stmt, s_tir.SBlockRealize):
            buffers.extend(stmt.block.alloc_buffers)
            return with_block(stmt, stmt.block.body, [])
        return stmt

    return buffers, strip(root.body)


def touch(buffer: tirx.Var) -> s_tir.SBlockRealize:
    """A block that writes the first element of ``buffer``.

    TVM allocates a buffer in the innermost statement around all its uses; inside of a kernel
    CUDA cannot. A use in a launch of its own keeps the allocation outside.
    """
    first = [tirx.const(0, extent.ty) for extent in buffer.ty.shape]
    store = tirx.BufferStore(buffer, tirx.const(0, buffer.ty.dtype), first)
    block = s_tir.SBlock([], [], [], "touch", store)
    return s_tir.SBlockRealize([], True, block)


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
