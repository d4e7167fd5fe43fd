"""Vectors that read nothing beyond a tensor.

A Select of vectors evaluates both of its arms, where that of one lane (RewriteUnsafeSelect) loads
in one alone. The clamp that a schedule writes around the index of an arm does not last: TVM
simplifies an arm under its condition, where the clamp changes nothing.

Before: ``for i in T.vectorized(16): y[i0 + i] = T.Select(i0 + i < n, x[i0 + i], 0)``
After:  ``if i0 <= n - 16: for i in T.vectorized(16): ...  else: for i in range(16): ...``
"""

from collections.abc import Callable, Iterable
from functools import reduce

import tvm
import tvm_ffi
from tvm import IRModule, ir, sym, tirx
from tvm.ir import TensorLoad
from tvm.tirx.analysis import undefined_vars

from ..schedules.statements import map_children, reads_memory, serial_copy, substituted

__all__ = ["keep_vectors_inside"]


@tvm.transform.module_pass(opt_level=0, name="KeepVectorsInside")
def keep_vectors_inside(module: IRModule, _context: object) -> IRModule:
    """The module pass, on flat buffers, before loops become vectors."""
    functions = {
        symbol: _Kernel(function).kept_inside()
        if isinstance(function, tirx.PrimFunc) and _chosen(function.body)
        else function
        for symbol, function in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


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
        inner = _defined(loop)
        if any(
            reads_memory(i) or inner & set(undefined_vars(i))
            for load in chosen
            for i in load.indices
        ):
            return serial_copy(loop)
        inside = [
            condition
            for load in chosen
            for condition in _inside(load, loop)
            if not self.analyzer.can_prove(condition)
        ]
        if not inside:
            return loop
        every = self.analyzer.simplify(reduce(tirx.And, inside))
        return tirx.IfThenElse(every, loop, serial_copy(loop))


def _chosen(stmt: tirx.Stmt) -> list[TensorLoad]:
    """The loads in arms of Selects inside of vectorised loops."""
    found: list[TensorLoad] = []

    def select(node: tirx.Select) -> None:
        for arm in node.true_value, node.false_value:
            tvm_ffi.structural_walk(arm, (TensorLoad, found.append))

    def loop(node: tirx.For) -> None:
        if node.kind == tirx.ForKind.VECTORIZED:
            tvm_ffi.structural_walk(node.body, (tirx.Select, select))

    tvm_ffi.structural_walk(stmt, (tirx.For, loop))
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
