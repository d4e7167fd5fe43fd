"""Threads for serial statements: scatters, scans, recurrent networks, whatever no block describes.

A loop is independent where every buffer that its body writes is only accessed, at one fixed place
of the index, with the loop's own variable: its iterations then never meet. In

    for i, j: y[index[i], j] = u[i, j]
    for t: (for b, j: a[b, j] = f(h[b, 0]); for b, j: h[b, j] = g(a[b, 0]))

``j`` is independent in the first line, ``b`` and ``j`` in each nest of the second, and ``b``
through all of the second.
"""

from collections.abc import Iterator
from math import prod

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.tirx.op import tvm_storage_sync

from ..statements import children, map_children
from .split_sum import Sum, split

__all__ = [
    "THREADS",
    "TOGETHER",
    "at_trip",
    "bound",
    "by_first",
    "grid",
    "in_turns",
    "launch",
    "opened",
    "opened_block",
]

# Threads of a block: where each has an element, and where they run a program in step and share
# the terms of its sums.
THREADS = 256
TOGETHER = 512

Accesses = dict[tirx.Var, list[list[tirx.Expr]]]  # of each written buffer, the indices


def launch(stmt: tirx.Stmt) -> tirx.Stmt:
    """``stmt``, which binds no thread, as one launch of as many threads as keep its meaning.

    Its own independent loops are spread over the grid. Where it has none: one block of threads
    per iteration of a loop that all its nests begin with and that is independent in all of them,
    else one block; the independent loops inside are spread over the threads of the block, which
    wait for each other after each nest. Where nothing is independent: one thread.
    """
    nest = _independent(stmt)
    if nest:
        return grid(stmt, nest)
    nests = list(_nests(stmt))
    if not nests:
        stmt = opened(stmt)
        nests = list(_nests(stmt))
    if not nests:
        return bound(stmt, {})
    thread, row = tirx.Var("threadIdx_x", "int64"), tirx.Var("blockIdx_x", "int64")
    rows = _rows(stmt, nests)
    if rows is not None:
        stmt = _without_rows(stmt, row)
    body = _in_step(stmt, thread)
    threads = {"threadIdx.x": (thread, TOGETHER)}
    return bound(body, threads if rows is None else threads | {"blockIdx.x": (row, rows)})


def bound(stmt: tirx.Stmt, threads: dict[str, tuple[tirx.Var, int | tirx.Expr]]) -> tirx.Stmt:
    """``stmt`` in loops bound to the launch dims; those not given have one thread."""
    for tag in ("threadIdx.x", "blockIdx.x"):
        var, extent = threads.get(tag, (tirx.Var(tag.replace(".", "_"), "int64"), 1))
        axis = tirx.IterVar(None, tirx.Var("", var.ty.dtype), tirx.IterVar.ThreadIndex, tag)
        stmt = tirx.For(
            var,
            tirx.const(0, var.ty.dtype),
            tirx.const(extent, var.ty.dtype) if isinstance(extent, int) else extent,
            tirx.ForKind.THREAD_BINDING,
            stmt,
            axis,
        )
    return stmt


def grid(stmt: tirx.Stmt, nest: list[tirx.For]) -> tirx.Stmt:
    """Each iteration of the loops ``nest`` of ``stmt`` in a thread of its own."""
    block, thread = tirx.Var("blockIdx_x", "int64"), tirx.Var("threadIdx_x", "int64")
    total = _total(nest)
    body = _iteration(stmt, nest, block * THREADS + thread)
    blocks = -(-total // THREADS)
    return bound(body, {"blockIdx.x": (block, blocks), "threadIdx.x": (thread, THREADS)})


def _in_step(stmt: tirx.Stmt, thread: tirx.Var) -> tirx.Stmt:
    """``stmt`` for every thread of a block, in step: what is not independent, by the first."""
    nest = _independent(stmt)
    if nest:
        return in_turns(stmt, nest, thread)
    if list(_nests(stmt)):
        return map_children(stmt, lambda child: _in_step(child, thread))
    return by_first(stmt, thread)


def in_turns(stmt: tirx.Stmt, nest: list[tirx.For], thread: tirx.Var) -> tirx.Stmt:
    """``stmt`` with the trips of its loops ``nest`` dealt out to the threads of a block.

    Where it adds up few sums, groups of threads share the terms of each.
    """
    total = _total(nest)
    summed = Sum.of(_drop(opened(stmt), [loop.loop_var for loop in nest]))
    if summed is not None:
        parts = split(summed, total, TOGETHER, thread)
        if parts is not None:
            return at_trip(parts, nest, thread % total)
    turn = tirx.Var("turn", "int64")
    body = _iteration(stmt, nest, turn * TOGETHER + thread)
    turns = tirx.const(-(-total // TOGETHER), "int64")
    return _waited_for(tirx.For(turn, tirx.const(0, "int64"), turns, tirx.ForKind.SERIAL, body))


def by_first(stmt: tirx.Stmt, thread: tirx.Var) -> tirx.Stmt:
    """``stmt`` for the first thread of a block."""
    return _waited_for(tirx.IfThenElse(thread == 0, stmt, None))


def _waited_for(work: tirx.Stmt) -> tirx.Stmt:
    return tirx.SeqStmt([work, tirx.Evaluate(tvm_storage_sync("shared"))])


def _iteration(stmt: tirx.Stmt, nest: list[tirx.For], number: tirx.Expr) -> tirx.Stmt:
    """The body of ``stmt`` in iteration ``number`` of the loops ``nest``; nothing beyond them."""
    body = at_trip(_drop(stmt, [loop.loop_var for loop in nest]), nest, number)
    inside = s_tir.SBlock([], [], [], "inside", body)
    return s_tir.SBlockRealize([], number < _total(nest), inside)


def at_trip(stmt: tirx.Stmt, loops: list[tirx.For], number: tirx.Expr) -> tirx.Stmt:
    """``stmt``, what stands in ``loops``, in trip ``number`` of all of them."""
    values: dict[tirx.Var, tirx.Expr] = {}
    for loop in reversed(loops):
        extent = loop.extent.astype(number.ty.dtype)
        values[loop.loop_var] = (number % extent).astype(loop.loop_var.ty.dtype)
        number = number // extent
    return _replace(stmt, values)


def _total(nest: list[tirx.For]) -> int:
    return prod(int(loop.extent) for loop in nest)


def _independent(stmt: tirx.Stmt) -> list[tirx.For]:
    """Those of the perfectly nested loops at the top of ``stmt`` whose iterations never meet."""
    chain = _chain(stmt)
    accesses = _accesses(stmt) if chain else None
    if not accesses:
        return []
    return [loop for loop in chain if _meets_only_itself(accesses, {loop.loop_var})]


def _rows(stmt: tirx.Stmt, nests: list[list[tirx.For]]) -> int | None:
    """The extent of the outermost loop of all ``nests`` where it is independent throughout."""
    accesses = _accesses(stmt)
    extents = {int(nest[0].extent) for nest in nests}
    if not accesses or len(extents) != 1:
        return None
    rows = {nest[0].loop_var for nest in nests}
    return extents.pop() if _meets_only_itself(accesses, rows) else None


def _without_rows(stmt: tirx.Stmt, row: tirx.Var) -> tirx.Stmt:
    """``stmt`` with ``row`` for the outermost loop of each of its nests."""
    chain = _chain(stmt)
    if chain and _independent(stmt):
        loop = chain[0]
        return _replace(loop.body, {loop.loop_var: row.astype(loop.loop_var.ty.dtype)})
    return map_children(stmt, lambda child: _without_rows(child, row))


def _nests(stmt: tirx.Stmt) -> Iterator[list[tirx.For]]:
    """The chains of loops inside of ``stmt`` that have an independent one."""
    chain = _chain(stmt)
    if chain and _independent(stmt):
        yield chain
    elif not _is_closed(stmt):
        for child in children(stmt):
            yield from _nests(child)


def opened(stmt: tirx.Stmt) -> tirx.Stmt:
    """``stmt`` with the bodies of its blocks in their place: threads may part inside."""
    stmt = map_children(stmt, opened)
    return opened_block(stmt) if isinstance(stmt, s_tir.SBlockRealize) else stmt


def opened_block(realize: s_tir.SBlockRealize) -> tirx.Stmt:
    """The body of a block for its place, under its condition; ``realize`` where it is more."""
    block = realize.block
    if block.init is not None or block.alloc_buffers or block.match_buffers:
        return realize
    values = {
        axis.var: value for axis, value in zip(block.iter_vars, realize.iter_values, strict=True)
    }
    body = _replace(block.body, values)
    always = isinstance(realize.predicate, tirx.IntImm) and int(realize.predicate) == 1
    return body if always else tirx.IfThenElse(realize.predicate, body, None)


def _is_closed(stmt: tirx.Stmt) -> bool:
    """Threads might part inside, or it is a block that may only use variables of its own."""
    own = isinstance(stmt, s_tir.SBlockRealize) and len(stmt.block.iter_vars) > 0
    return own or isinstance(stmt, tirx.IfThenElse | tirx.While)


def _chain(stmt: tirx.Stmt) -> list[tirx.For]:
    """The perfectly nested serial loops at the top, of constant extent.

    Of symbolic extent TVM cannot bound the accesses, and allocates temporaries per thread.
    """
    chain: list[tirx.For] = []
    while isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.SERIAL:
        first, extent = stmt.min, stmt.extent
        if not isinstance(extent, tirx.IntImm) or int(extent) < 1:
            break
        if not isinstance(first, tirx.IntImm) or int(first) != 0:
            break
        chain.append(stmt)
        stmt = stmt.body
    return chain


def _accesses(stmt: tirx.Stmt) -> Accesses | None:
    """How ``stmt`` accesses what it writes, in terms of loop variables; None: it cannot be read."""
    axes: dict[tirx.Var, tirx.Expr] = {}
    found: Accesses = {}
    written: set[tirx.Var] = set()
    opaque: list[object] = []

    def block(realize: s_tir.SBlockRealize) -> None:
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            axes[axis.var] = value
        opaque.extend(realize.block.match_buffers)

    def store(node: tirx.BufferStore) -> None:
        written.add(node.buffer)
        found.setdefault(node.buffer, []).append(list(node.indices))

    def load(node: TensorLoad) -> None:
        found.setdefault(node.source, []).append(list(node.indices))

    unread = (tirx.Evaluate, tirx.DeclBuffer, tirx.While)
    tvm_ffi.structural_walk(
        stmt,
        [
            (s_tir.SBlockRealize, block),
            (tirx.BufferStore, store),
            (TensorLoad, load),
            (unread, opaque.append),
        ],
        order="pre",
    )
    if opaque:
        return None
    return {
        buffer: [[axes.get(index, index) for index in indices] for indices in found[buffer]]
        for buffer in written
    }


def _meets_only_itself(accesses: Accesses, variables: set[tirx.Var]) -> bool:
    """Has every written buffer one place of the index that is always one of ``variables``?"""
    return all(
        any(all(index in variables for index in place) for place in zip(*indices, strict=True))
        for indices in accesses.values()
    )


def _drop(stmt: tirx.Stmt, variables: list[tirx.Var]) -> tirx.Stmt:
    """``stmt`` without its loops over ``variables``."""
    if isinstance(stmt, tirx.For) and stmt.loop_var in variables:
        return _drop(stmt.body, variables)
    return map_children(stmt, lambda child: _drop(child, variables))


def _replace(stmt: tirx.Stmt, values: dict[tirx.Var, tirx.Expr]) -> tirx.Stmt:
    return tvm_ffi.structural_map(stmt, (tirx.Var, lambda var: values.get(var, var)))
