"""Sums of few elements in a block of threads: groups of threads share the terms of each."""

from dataclasses import dataclass

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.tirx.analysis import undefined_vars
from tvm.tirx.op import tvm_storage_sync

from ..statements import substituted

__all__ = ["Sum", "split"]


@dataclass(frozen=True)
class Sum:
    """``array[indices] += term`` for each ``index`` below ``depth``."""

    array: tirx.Var
    indices: list[tirx.Expr]
    term: tirx.Expr
    index: tirx.Var
    depth: int

    @classmethod
    def of(cls, loop: tirx.Stmt) -> "Sum | None":
        """What ``loop`` adds up, where it is one loop around such a store."""
        store = loop.body if isinstance(loop, tirx.For) else None
        if not isinstance(store, tirx.BufferStore) or not isinstance(loop.extent, tirx.IntImm):
            return None
        if not isinstance(loop.min, tirx.IntImm) or int(loop.min) != 0:
            return None
        value, index = store.value, loop.loop_var
        if not isinstance(value, tirx.Add) or not isinstance(value.a, TensorLoad):
            return None
        indices = list(store.indices)
        places = zip(value.a.indices, indices, strict=True)
        same = value.a.source.same_as(store.buffer) and all(
            tvm_ffi.structural_equal(mine, its) for mine, its in places
        )
        counted = any(index in undefined_vars(place) for place in indices)
        if not same or counted or _loads(value.b, store.buffer):
            return None
        return cls(store.buffer, indices, value.b, index, int(loop.extent))


def split(summed: Sum, elements: int, threads: int, thread: tirx.Var) -> tirx.Stmt | None:
    """``summed`` for ``elements`` elements, of which ``thread % elements`` is the thread's.

    A group of threads adds every n-th term to a register, and leaves the sum in shared memory; the
    first group adds what the n groups have left. None where there are too few threads for that.
    """
    groups = min(threads // elements, summed.depth)
    if groups < 2:
        return None
    kind = summed.array.ty.dtype
    zero = tirx.const(0, "int64")
    register = tirx.decl_buffer([1], kind, "sum", scope="local")
    left = tirx.decl_buffer([groups * elements], kind, "left", scope="shared")
    turn, turns = tirx.Var("turn", "int64"), -(-summed.depth // groups)
    number = turn * groups + thread // elements
    term = substituted(summed.term, {summed.index: number.astype(summed.index.ty.dtype)})
    if turns * groups > summed.depth:
        term = tirx.if_then_else(number < summed.depth, term, tirx.const(0, kind))
    more = tirx.BufferStore(register, tirx.BufferLoad(register, [zero]) + term, [zero])
    own = [
        tirx.BufferStore(register, tirx.const(0, kind), [zero]),
        tirx.For(turn, zero, tirx.const(turns, "int64"), tirx.ForKind.SERIAL, more),
        tirx.BufferStore(left, tirx.BufferLoad(register, [zero]), [thread]),
    ]
    total = tirx.BufferLoad(summed.array, summed.indices)
    for group in range(groups):
        total = total + tirx.BufferLoad(left, [thread + group * elements])
    whole = tirx.BufferStore(summed.array, total, summed.indices)
    wait = tirx.Evaluate(tvm_storage_sync("shared"))
    body = tirx.SeqStmt(
        [
            tirx.IfThenElse(thread < groups * elements, tirx.SeqStmt(own), None),
            wait,
            tirx.IfThenElse(thread < elements, whole, None),
            wait,
        ]
    )
    return s_tir.SBlockRealize(
        [], True, s_tir.SBlock([], [], [], "sums", body, alloc_buffers=[register, left])
    )


def _loads(value: tirx.Expr, array: tirx.Var) -> bool:
    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(value, (TensorLoad, found.append), order="post")
    return any(load.source.same_as(array) for load in found)
