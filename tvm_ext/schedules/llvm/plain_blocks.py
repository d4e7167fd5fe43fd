"""Kernels as TE makes them: one block after the other, with a loop for each of its axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir import TensorLoad
from tvm.ir.expr import TensorRegion
from tvm.s_tir import SBlock

__all__ = ["accesses", "is_number", "plain_blocks", "variables", "with_buffers", "with_parts"]


def plain_blocks(func: tirx.PrimFunc) -> list[SBlock] | None:
    """The blocks of a kernel that consists of such; None of another."""
    root = getattr(func.body, "block", None)
    if root is None:
        return None
    stmts = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    blocks = [block for stmt in stmts if (block := _plain_block(stmt)) is not None]
    buffers = {*filter(tirx.is_buffer_var, func.params), *root.alloc_buffers}
    if (
        len(blocks) < len(stmts)
        or not {b for block in blocks for b, _ in accesses(block)} <= buffers
    ):
        return None
    return blocks


def _plain_block(stmt: tirx.Stmt) -> SBlock | None:
    loops = []
    while isinstance(stmt, tirx.For):
        loops.append(stmt.loop_var)
        stmt = stmt.body
    if not isinstance(stmt, s_tir.SBlockRealize) or len(loops) != len(stmt.iter_values):
        return None
    if not is_number(stmt.predicate, 1) or not all(map(tirx.Var.same_as, loops, stmt.iter_values)):
        return None
    block = stmt.block
    if block.alloc_buffers or block.match_buffers or _takes_whole_buffers(block):
        return None
    return block


def _takes_whole_buffers(block: SBlock) -> bool:
    """Whether ``block`` gives a buffer to a function, which may access it in any way."""
    calls: list[ir.Call] = []
    tvm_ffi.structural_walk(block.body, (ir.Call, calls.append))
    given = (arg for call in calls for arg in call.args)
    return any(isinstance(arg, tirx.Var) and tirx.is_buffer_var(arg) for arg in given)


def accesses(block: SBlock) -> Iterator[tuple[tirx.Var, Sequence[ir.Expr]]]:
    """The buffers that a block loads and stores, each with the place in it."""
    found: list[TensorLoad | tirx.BufferStore] = []
    for part in (block.body, block.init):
        tvm_ffi.structural_walk(part, ((TensorLoad, tirx.BufferStore), found.append))
    for node in found:
        yield node.source if isinstance(node, TensorLoad) else node.buffer, node.indices


def variables(parts: Iterable) -> list[tirx.Var]:
    """Those in ``parts``, as often as they occur."""
    found: list[tirx.Var] = []
    for part in parts:
        tvm_ffi.structural_walk(part, (tirx.Var, found.append))
    return found


def is_number(value: ir.Expr, number: int) -> bool:
    """Whether ``value`` is this constant."""
    return isinstance(value, tirx.IntImm) and int(value) == number


def with_buffers(
    body: tirx.Stmt,
    buffers: Mapping[tirx.Var, tirx.Var],
    indices: Callable[[tirx.Var, Sequence[ir.Expr]], Sequence[ir.Expr]],
    region: Callable[[TensorRegion], TensorRegion],
) -> tirx.Stmt:
    """``body`` with other ``buffers``, of which ``indices`` and ``region`` tell the places."""

    def load(node: TensorLoad) -> ir.Expr:
        if node.source not in buffers:
            return node
        return tirx.BufferLoad(buffers[node.source], indices(node.source, node.indices))

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        if node.buffer not in buffers:
            return node
        place = indices(node.buffer, node.indices)
        return tirx.BufferStore(buffers[node.buffer], node.value, place)

    def regions(node: TensorRegion) -> TensorRegion:
        return region(node) if node.source in buffers else node

    return tvm_ffi.structural_map(
        body, [(TensorLoad, load), (tirx.BufferStore, store), (TensorRegion, regions)]
    )


def with_parts(block: SBlock, axes: list[tirx.IterVar], told: Callable) -> SBlock:
    """``block`` over ``axes``, with what it reads, writes and computes ``told``."""
    reads, writes = ([told(part) for part in parts] for parts in (block.reads, block.writes))
    body, init = told(block.body), None if block.init is None else told(block.init)
    return SBlock(axes, reads, writes, block.name_hint, body, init, [], [], block.annotations)
