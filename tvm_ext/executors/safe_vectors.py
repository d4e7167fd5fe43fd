"""Vectors that read nothing beyond a tensor.

A Select of vectors evaluates both of its arms, where that of one lane (RewriteUnsafeSelect) loads
in one alone. The clamp that a schedule writes around the index of an arm does not last: TVM
simplifies an arm under its condition, where the clamp changes nothing.

Before: ``for i in T.vectorized(16): y[i0 + i] = T.Select(i0 + i < n, x[i0 + i], 0)``
After:  ``if i0 <= n - 16: for i in T.vectorized(16): ...  else: for i in range(16): ...``
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce

import tvm
import tvm_ffi
from tvm import IRModule, ir, sym, tirx
from tvm.ir import TensorLoad
from tvm.tirx.analysis import undefined_vars

from ..schedules.statements import map_children, reads_memory, serial_copy, substituted

__all__ = ["keep_vectors_inside"]

_BRANCH = ir.Op.get("prim.if_then_else")


@tvm.transform.module_pass(opt_level=0, name="KeepVectorsInside")
def keep_vectors_inside(module: IRModule, _context: object) -> IRModule:
    """The module pass, on flat buffers, before loops become vectors."""
    functions = {
        symbol: _Kernel(function).kept_inside() if isinstance(function, tirx.PrimFunc) else function
        for symbol, function in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


@dataclass(frozen=True)
class _Chosen:
    """A load in an arm of a Select, and the conditions of the branches that it stands in."""

    load: TensorLoad
    guards: tuple[tirx.Expr, ...]


class _Kernel:
    """A kernel, and what is known of its variables around a loop."""

    def __init__(self, function: tirx.PrimFunc) -> None:
        self.function = function
        self.analyzer = sym.Analyzer()

    def kept_inside(self) -> tirx.PrimFunc:
        for buffer in self.function.params:
            for dim in getattr(buffer.ty, "shape", ()):
                if isinstance(dim, tirx.Var):
                    self.analyzer.update(dim, sym.ConstIntBound(0, sym.ConstIntBound.POS_INF))
        return self.function.with_body(self._statement(self.function.body))

    def _statement(self, stmt: tirx.Stmt) -> tirx.Stmt:
        if isinstance(stmt, tirx.For):
            if stmt.kind == tirx.ForKind.VECTORIZED:
                return self._vectors(stmt)
            self.analyzer.bind(stmt.loop_var, ir.Range.from_min_extent(stmt.min, stmt.extent))
            with self.analyzer.constraint_scope(stmt.extent > 0):
                return map_children(stmt, self._statement)
        if isinstance(stmt, tirx.IfThenElse):
            return self._branches(stmt)
        if isinstance(stmt, tirx.Bind) and not reads_memory(stmt.value) and _is_integer(stmt.var):
            self.analyzer.bind(stmt.var, stmt.value)
        return map_children(stmt, self._statement)

    def _branches(self, stmt: tirx.IfThenElse) -> tirx.Stmt:
        with self.analyzer.constraint_scope(stmt.condition):
            then = self._statement(stmt.then_case)
        if stmt.else_case is None:
            return tirx.IfThenElse(stmt.condition, then, None)
        with self.analyzer.constraint_scope(tirx.Not(stmt.condition)):
            return tirx.IfThenElse(stmt.condition, then, self._statement(stmt.else_case))

    def _vectors(self, loop: tirx.For) -> tirx.Stmt:
        """``loop``, lane by lane where some lane of an arm lies beyond its tensor."""
        chosen = _chosen(loop)
        if not chosen or not isinstance(loop.extent, tirx.IntImm):  # scalable ones have masks
            return loop
        inner, indices = _defined(loop), [index for each in chosen for index in each.load.indices]
        if any(reads_memory(index) or inner & set(undefined_vars(index)) for index in indices):
            return serial_copy(loop)
        inside = [condition for each in chosen for condition in self._unproven(each, loop)]
        if not inside:
            return loop
        every = self.analyzer.simplify(reduce(tirx.And, inside))
        return tirx.IfThenElse(every, loop, serial_copy(loop))

    def _unproven(self, chosen: _Chosen, loop: tirx.For) -> list[tirx.Expr]:
        """What has to be asked at run time, that all lanes of a load lie inside."""
        with ExitStack() as known:
            for guard in chosen.guards:
                known.enter_context(self.analyzer.constraint_scope(guard))
            inside = [c for c in _inside(chosen.load, loop) if not self.analyzer.can_prove(c)]
        return [reduce(tirx.Or, map(tirx.Not, chosen.guards), condition) for condition in inside]


def _chosen(loop: tirx.For) -> list[_Chosen]:
    """The loads in arms of Selects inside of a vectorised loop.

    Not those behind a branch that differs by lane: such statements become no vectors.
    """
    found: list[_Chosen] = []

    def visit(value: ir.Expr | tirx.Stmt, guards: tuple[tirx.Expr, ...], in_arm: bool) -> None:
        def select(node: tirx.Select) -> tvm_ffi.WalkResult:
            visit(node.condition, guards, in_arm)
            visit(node.true_value, guards, True)
            visit(node.false_value, guards, True)
            return tvm_ffi.WalkResult.SKIP

        def branch(condition: tirx.Expr, *cases: ir.Expr | tirx.Stmt | None) -> tvm_ffi.WalkResult:
            visit(condition, guards, in_arm)
            if loop.loop_var not in undefined_vars(condition):
                for case, holds in zip(cases, (condition, tirx.Not(condition)), strict=True):
                    # A condition that reads memory is not asked again.
                    known = guards if reads_memory(condition) else (*guards, holds)
                    if case is not None:
                        visit(case, known, in_arm)
            return tvm_ffi.WalkResult.SKIP

        def call(node: ir.Call) -> tvm_ffi.WalkResult:
            return branch(*node.args) if node.op == _BRANCH else tvm_ffi.WalkResult.ADVANCE

        def choice(node: tirx.IfThenElse) -> tvm_ffi.WalkResult:
            return branch(node.condition, node.then_case, node.else_case)

        def load(node: TensorLoad) -> None:
            if in_arm:
                found.append(_Chosen(node, guards))

        callbacks = [(tirx.Select, select), (ir.Call, call), (TensorLoad, load)]
        callbacks.append((tirx.IfThenElse, choice))
        tvm_ffi.structural_walk(value, callbacks, order="pre")

    visit(loop.body, (), False)
    return found


def _inside(load: TensorLoad, loop: tirx.For) -> Iterable[tirx.Expr]:
    """What holds if no lane of ``load`` lies beyond its tensor."""
    lanes = int(loop.extent)
    for index, size in zip(load.indices, load.source.ty.shape, strict=True):
        linear = bool(sym.detect_linear_equation(index, [loop.loop_var]))
        for lane in sorted({0, lanes - 1}) if linear else range(lanes):
            place = substituted(index, {loop.loop_var: loop.min + lane})
            yield place >= 0
            yield place < size.astype(place.ty.dtype)


def _defined(loop: tirx.For) -> set[tirx.Var]:
    """The variables that the body of ``loop`` gives a value."""
    found: set[tirx.Var] = set()
    note: Callable[[tirx.Var], None] = found.add
    tvm_ffi.structural_walk(
        loop.body,
        [
            (tirx.For, lambda node: note(node.loop_var)),
            ((tirx.Bind, tirx.Let), lambda node: note(node.var)),
        ],
    )
    return found


def _is_integer(var: tirx.Var) -> bool:
    return "int" in str(var.ty.dtype)
