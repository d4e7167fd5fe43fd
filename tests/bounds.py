"""Accesses beyond tensors end the process: kernels checked while the tests run.

An access that is provably inside of its tensor stays as it is; before any other stands a check
that calls ``abort``. ``TVM_EXT_CHECK_BOUNDS=1`` asks for it (conftest.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import reduce

import tvm
import tvm_ffi
from tvm import ir, sym, tirx
from tvm.ir import TensorLoad
from tvm.ir.transform import Pass
from tvm.target import Target

from tvm_ext.executors import lowering
from tvm_ext.executors.masked_tails import MASKED
from tvm_ext.executors.near_lanes import lane
from tvm_ext.schedules.statements import map_children

_BRANCH = ("prim.if_then_else", "tirx.if_then_else")
_PARTS = "a", "b", "value", "condition", "true_value", "false_value", "base", "stride"


def run_checked(file: str, selected: str) -> str:
    """What pytest prints of the ``selected`` tests of ``file``, run with this check; all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file, "-k", selected]
    environment = os.environ | {"TVM_EXT_CHECK_BOUNDS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_all_bounds() -> None:
    """Have all kernels checked that this process builds from now on."""
    passes = lowering._passes

    def with_check() -> list[Pass]:
        all_passes = passes()
        place = _place(all_passes)
        return [*all_passes[:place], check_bounds, *all_passes[place:]]

    lowering._passes = with_check


def unproven(module: tvm.IRModule, target: Target) -> list[str]:
    """What a check would stand before in the kernels of ``module``."""
    found: list[str] = []
    passes = lowering._passes()
    bound = tirx.transform.BindTarget(target)(module)
    lowered = tvm.ir.transform.Sequential(passes[: _place(passes)])(bound)
    for function in lowered.functions.values():
        kernel = _Kernel(function)
        kernel.checked()
        found.extend(kernel.unproven)
    return found


def _place(passes: list[Pass]) -> int:
    """Behind what makes vectors, and branches of unsafe Selects."""
    return [each.info.name for each in passes].index("s_tir.RewriteUnsafeSelect") + 1


@tvm.transform.module_pass(opt_level=0, name="CheckBounds")
def check_bounds(module: tvm.IRModule, _context: object) -> tvm.IRModule:
    """The module pass, on kernels whose vectors are made."""
    functions = {
        symbol: _Kernel(function).checked() if isinstance(function, tirx.PrimFunc) else function
        for symbol, function in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs)


class _Kernel:
    def __init__(self, function: tirx.PrimFunc) -> None:
        self.function = function
        self.analyzer = sym.Analyzer()
        self.unproven: list[str] = []

    def checked(self) -> tirx.PrimFunc:
        for buffer in self.function.params:
            for dim in getattr(buffer.ty, "shape", ()):
                if isinstance(dim, tirx.Var):
                    self.analyzer.update(dim, sym.ConstIntBound(0, sym.ConstIntBound.POS_INF))
        return self.function.with_body(self._statement(self.function.body))

    def _statement(self, stmt: tirx.Stmt) -> tirx.Stmt:
        if isinstance(stmt, tirx.For):
            self.analyzer.bind(stmt.loop_var, ir.Range.from_min_extent(stmt.min, stmt.extent))
            with self.analyzer.constraint_scope(stmt.extent > 0):
                made = map_children(stmt, self._statement)
            return self._behind(self._value(stmt.extent), made)
        if isinstance(stmt, tirx.IfThenElse):
            with self.analyzer.constraint_scope(stmt.condition):
                then = self._statement(stmt.then_case)
            other = None
            if stmt.else_case is not None:
                with self.analyzer.constraint_scope(tirx.Not(stmt.condition)):
                    other = self._statement(stmt.else_case)
            made = tirx.IfThenElse(stmt.condition, then, other)
            return self._behind(self._value(stmt.condition), made)
        if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == "thread_extent":
            self.analyzer.bind(stmt.node.var, ir.Range.from_min_extent(0, stmt.value))
        if isinstance(stmt, tirx.Bind):
            checks = self._value(stmt.value)
            if not _loads(stmt.value) and "int" in str(stmt.var.ty.dtype):
                self.analyzer.bind(stmt.var, stmt.value)
            return self._behind(checks, stmt)
        if isinstance(stmt, tirx.BufferStore):
            checks = [c for value in (stmt.value, *stmt.indices) for c in self._value(value)]
            return self._behind([*checks, *self._access(stmt.buffer, stmt.indices)], stmt)
        if isinstance(stmt, tirx.Evaluate):
            return self._behind(self._value(stmt.value), stmt)
        return map_children(stmt, self._statement)

    def _value(self, value: ir.Expr) -> list[tirx.Expr]:
        """What has to hold when ``value`` is evaluated."""
        if isinstance(value, ir.Call) and getattr(value.op, "name", "") in _BRANCH:
            return self._branches(*value.args)
        if isinstance(value, tirx.Select) and not _is_vector(value):
            # RewriteUnsafeSelect makes a branch of a scalar one that loads.
            return self._branches(value.condition, value.true_value, value.false_value)
        if isinstance(value, tirx.Let):
            checks = self._value(value.value)
            if not _loads(value.value) and "int" in str(value.var.ty.dtype):
                self.analyzer.bind(value.var, value.value)
            inner = self._value(value.body)
            return checks + [tirx.Let(value.var, value.value, check) for check in inner]
        if isinstance(value, TensorLoad):
            checks = [c for index in value.indices for c in self._value(index)]
            return checks + self._access(value.source, value.indices)
        if isinstance(value, ir.Call):
            if getattr(value.op, "name", "").endswith("address_of"):
                return []
            name = value.args[0] if value.args else None
            if isinstance(name, ir.StringImm) and name.value.startswith(MASKED):
                return self._masked(*value.args[1:])
            parts: Sequence[ir.Expr] = value.args
        elif isinstance(value, tirx.Shuffle):
            parts = value.vectors
        else:
            parts = [getattr(value, name, None) for name in _PARTS]
        return [c for part in parts if isinstance(part, ir.Expr) for c in self._value(part)]

    def _branches(self, condition, then, other) -> list[tirx.Expr]:
        checks = self._value(condition)
        yes = tirx.const(1, "bool")
        with self.analyzer.constraint_scope(condition):
            checks += [tirx.if_then_else(condition, c, yes) for c in self._value(then)]
        with self.analyzer.constraint_scope(tirx.Not(condition)):
            checks += [tirx.if_then_else(condition, yes, c) for c in self._value(other)]
        return checks

    def _access(self, buffer: tirx.Var, indices: Sequence[ir.Expr]) -> list[tirx.Expr]:
        checks = []
        for index, size in zip(indices, buffer.ty.shape, strict=True):
            for place in _ends(index):
                size = size.astype(str(place.ty.dtype))
                if not self._known(place >= 0):
                    checks.append(place >= 0)
                if not self._known(place < size):
                    checks.append(place < size)
        return checks

    def _masked(self, to: ir.Call, source: ir.Call, count: ir.Expr) -> list[tirx.Expr]:
        """What a copy of ``count`` elements needs."""
        places = [address.args[0] for address in (to, source)]
        ends = [(place.source, place.indices[0] + k) for place in places for k in (0, count - 1)]
        return [check for buffer, end in ends for check in self._access(buffer, [end])]

    def _behind(self, checks: list[tirx.Expr], stmt: tirx.Stmt) -> tirx.Stmt:
        """``stmt`` behind ``checks``."""
        if not checks:
            return stmt
        self.unproven.append(str(stmt))
        text = f"{self.function.attrs['global_symbol']}: {stmt}"[:1000]
        stop = tirx.SeqStmt(
            [
                tirx.Evaluate(tirx.call_extern("int32", "perror", ir.StringImm(text))),
                tirx.Evaluate(tirx.call_extern("int32", "abort")),
            ]
        )
        return tirx.SeqStmt([tirx.IfThenElse(tirx.Not(reduce(tirx.And, checks)), stop, None), stmt])

    def _known(self, condition: tirx.Expr) -> bool:
        return not _loads(condition) and self.analyzer.can_prove(condition)


def _ends(index: ir.Expr) -> list[tirx.Expr]:
    """The places between which ``index`` lies, or each of its lanes."""
    if isinstance(index, tirx.Ramp):
        if not isinstance(index.lanes, int | tirx.IntImm):
            return []  # scalable
        if not _is_vector(index.base):
            return [index.base, index.base + index.stride * (int(index.lanes) - 1)]
    if not _is_vector(index):
        return [index]
    lanes = tvm.DataType(str(index.ty.dtype)).lanes
    return [lane(index, k) for k in range(lanes)]


def _is_vector(value: ir.Expr) -> bool:
    return "x" in str(getattr(value.ty, "dtype", ""))


def _loads(value: ir.Expr) -> bool:
    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(value, (TensorLoad, found.append))
    return bool(found)
