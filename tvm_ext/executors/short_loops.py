"""Loops that end where their guard does, in place of trips that do nothing.

Lanes that make no vector become a loop of as many trips as the vector has lanes, each behind the
guard of the tensor's end. LLVM unrolls that to a branch, a load and a store per lane: a tail then
takes longer than the vectors before it, and most of the time that a kernel takes to compile.

Before: ``for i, s in T.grid((n + 15) // 16, 16): if i * 16 + s < n: y[i * 16 + s] = ...``
After:  ``for s in range(n): y[s] = ...``

Where a lane computes much, and its neighbours in memory follow each other, the guard stays: of
that LLVM makes a vector with a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import tvm
import tvm_ffi
from tvm import IRModule, ir, sym, tirx
from tvm.ir import TensorLoad
from tvm.tirx.analysis import undefined_vars

from ..schedules.statements import map_children, reads_memory, substituted
from .cuda import is_for_cpu

__all__ = ["shorten_loops"]

# Operations in a lane from which on a vector with a mask is quicker than single trips; of less,
# LLVM makes single lanes anyway.
_MUCH = 8
_LOOPS = tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED
_OPERATIONS = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max, tirx.Select, ir.Call
)  # fmt: skip


@tvm.transform.module_pass(opt_level=0, name="ShortenLoops")
def shorten_loops(module: IRModule, _context: object) -> IRModule:
    """The module pass, on kernels whose vectors are made."""
    functions = {
        symbol: function.with_body(_shortened(function.body)) if is_for_cpu(function) else function
        for symbol, function in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


def _shortened(stmt: tirx.Stmt) -> tirx.Stmt:
    loops = _nest(stmt)
    guard = loops[-1].body if loops else None
    if not isinstance(guard, tirx.IfThenElse) or guard.else_case is not None:
        return map_children(_without_one_trip(stmt), _shortened)
    for depth in range(len(loops)):
        shorter = _ended(loops[depth:], guard)
        if shorter is not None:
            return _around(loops[:depth], shorter)
    return stmt


def _without_one_trip(stmt: tirx.Stmt) -> tirx.Stmt:
    """A loop of at most one trip as a branch: what is left of one that was cut at a guard."""
    if not isinstance(stmt, tirx.For) or stmt.kind not in (*_LOOPS, tirx.ForKind.PARALLEL):
        return stmt
    if isinstance(stmt.extent, tirx.IntImm) or not _is_plain(stmt) or reads_memory(stmt.extent):
        return stmt
    if _ANALYZER.const_int_bound(stmt.extent).max_value > 1:
        return stmt
    first = substituted(stmt.body, {stmt.loop_var: tirx.const(0, stmt.loop_var.ty)})
    return tirx.IfThenElse(stmt.extent > 0, first, None)


def _nest(stmt: tirx.Stmt) -> list[tirx.For]:
    """The loops around one statement, from the outside."""
    loops = []
    while isinstance(stmt, tirx.For) and stmt.kind in _LOOPS and _is_plain(stmt):
        loops.append(stmt)
        stmt = stmt.body
    return loops


def _is_plain(loop: tirx.For) -> bool:
    return _is(loop.min, 0) and loop.step is None and not loop.annotations


def _around(loops: Sequence[tirx.For], stmt: tirx.Stmt) -> tirx.Stmt:
    for loop in reversed(loops):
        stmt = _without_one_trip(_with_body(loop, stmt))
    return stmt


def _with_body(loop: tirx.For, body: tirx.Stmt) -> tirx.Stmt:
    return map_children(loop, lambda _body: body)


def _ended(loops: Sequence[tirx.For], guard: tirx.IfThenElse) -> tirx.For | None:
    """``loops`` as one that ends where ``guard`` does; None where they are not of that kind."""
    *outer, last = loops
    strides = _strides(loops)
    if strides is None or last.kind != tirx.ForKind.SERIAL:
        return None
    trips = _trips(guard.condition, loops, strides)
    if trips is None:
        return None
    body = guard.then_case
    if _is_much(body) and _is_contiguous(body, last.loop_var):
        return None
    if outer:
        joined = _joined(body, loops, strides)
        if joined is None:
            return None
        body = joined
    extent = _extent(loops, trips)
    if extent is None:
        return None
    return tirx.For(last.loop_var, last.min, extent, last.kind, body)


def _strides(loops: Sequence[tirx.For]) -> list[int] | None:
    """How many trips of the last loop one of each is; None where that is no number."""
    inner = [loop.extent for loop in loops[1:]]
    if not all(isinstance(extent, tirx.IntImm) for extent in inner):
        return None
    return [prod(map(int, inner[at:])) for at in range(len(loops))]


def _trips(
    condition: tirx.Expr, loops: Sequence[tirx.For], strides: Sequence[int]
) -> tirx.Expr | None:
    """The trips of ``loops`` as one before ``condition`` ends; None where it is not the end."""
    if not isinstance(condition, tirx.LT) or reads_memory(condition):
        return None
    parts = sym.detect_linear_equation(condition.b - condition.a, [loop.loop_var for loop in loops])
    if len(parts) == 0 or any(
        not _is(part, -stride) for part, stride in zip(parts[:-1], strides, strict=True)
    ):
        return None
    return _ANALYZER.simplify(parts[-1])


def _extent(loops: Sequence[tirx.For], trips: tirx.Expr) -> tirx.Expr | None:
    """``trips``, or those of ``loops`` where these are fewer; None where that is not known."""
    lanes = prod(int(loop.extent) for loop in loops[1:])
    first = loops[0].extent
    if isinstance(first, tirx.IntImm):
        return tirx.min(tirx.const(int(first) * lanes, trips.ty), trips)
    whole = _ANALYZER.can_prove_equal(first, (trips + (lanes - 1)) // lanes)
    return trips if whole and len(loops) > 1 else None


def _joined(body: tirx.Stmt, loops: Sequence[tirx.For], strides: Sequence[int]) -> tirx.Stmt | None:
    """``body`` where the last of ``loops`` counts the trips of all; None where that is not so."""
    variables = [loop.loop_var for loop in loops]
    *outer, last = variables
    place = sum((v * s for v, s in zip(outer, strides, strict=False)), start=last)
    at_first = {variable: tirx.const(0, variable.ty) for variable in outer}
    for value in _numbers(body, variables):
        one = substituted(substituted(value, at_first), {last: place})
        if not tvm_ffi.structural_equal(_ANALYZER.simplify(one), _ANALYZER.simplify(value)):
            return None
    return substituted(body, at_first)


def _numbers(body: tirx.Stmt, variables: Sequence[tirx.Var]) -> list[tirx.Expr]:
    """The largest expressions of integers in ``body`` that use ``variables``."""
    found: list[tirx.Expr] = []

    def visit(value: ir.Expr) -> tvm_ffi.WalkResult:
        if isinstance(value, TensorLoad) or tirx.is_buffer_var(value) or not _is_integer(value):
            return tvm_ffi.WalkResult.ADVANCE
        if any(v.same_as(used) for used in undefined_vars(value) for v in variables):
            found.append(value)
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(body, (ir.Expr, visit), order="pre")
    return found


def _is_much(body: tirx.Stmt) -> bool:
    """Whether LLVM leaves a loop of ``body`` for its vectors."""
    count = 0

    def operation(_node: ir.Expr) -> None:
        nonlocal count
        count += 1

    def store(node: tirx.BufferStore) -> None:
        tvm_ffi.structural_walk(
            node.value,
            [(TensorLoad, lambda _load: tvm_ffi.WalkResult.SKIP), (_OPERATIONS, operation)],
            order="pre",
        )

    tvm_ffi.structural_walk(body, (tirx.BufferStore, store))
    return count >= _MUCH


def _is_contiguous(body: tirx.Stmt, lane: tirx.Var) -> bool:
    """Whether each place in memory moves by one, or not at all, with ``lane``."""
    indices: list[tirx.Expr] = []
    tvm_ffi.structural_walk(
        body,
        [
            (TensorLoad, lambda load: indices.extend(load.indices)),
            (tirx.BufferStore, lambda store: indices.extend(store.indices)),
        ],
    )
    parts = [sym.detect_linear_equation(index, [lane]) for index in indices]
    return all(len(part) > 0 and (_is(part[0], 0) or _is(part[0], 1)) for part in parts)


def _is_integer(value: ir.Expr) -> bool:
    return "int" in str(getattr(value.ty, "dtype", ""))


def _is(value: tirx.Expr, number: int) -> bool:
    return isinstance(value, tirx.IntImm) and int(value) == number


_ANALYZER = sym.Analyzer()
