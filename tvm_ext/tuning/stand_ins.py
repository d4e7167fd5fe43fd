"""Calls in the place of named values, which meta_schedule's analysis lacks.

Our exponentials, say, name what they use several times by ``Let``. For the search such an
expression is a call of what it reads; the trace of a schedule fits the kernel as it is.
"""

from __future__ import annotations

import tvm_ffi
from tvm import IRModule, tirx
from tvm.ir import Call, TensorLoad

__all__ = ["hide"]

_IF_THEN_ELSE = "prim.if_then_else"


def hide(module: IRModule) -> IRModule:
    """``module``, of one kernel, with a call in the place of every outermost named value.

    Those that read under a condition stay: a call would read before it.
    """
    func = module["main"]
    body = tvm_ffi.structural_map(func.body, (tirx.Let, _hidden), order="pre")
    return IRModule({"main": func.with_body(body)})


def _hidden(let: tirx.Let) -> tirx.Expr:
    found = _Found(let)
    if found.conditional:
        return let
    return tirx.call_pure_extern(let.ty.dtype, "named_value", *found.reads)


class _Found:
    """What an expression reads from outside, and whether it has conditions."""

    def __init__(self, expr: tirx.Expr):
        self.reads: list[tirx.Expr] = []
        self.conditional = False
        self._bound: list[tirx.Var] = []
        tvm_ffi.structural_walk(expr, (tirx.Let, lambda let: self._bound.append(let.var)))
        tvm_ffi.structural_walk(expr, (Call, self._call))
        tvm_ffi.structural_walk(expr, ((TensorLoad, tirx.Var), self._read), order="pre")

    def _call(self, call: Call) -> None:
        self.conditional |= getattr(call.op, "name", "") == _IF_THEN_ELSE

    def _read(self, value: tirx.Expr) -> tvm_ffi.WalkResult:
        known = any(tvm_ffi.structural_equal(value, other) for other in self.reads)
        if not known and not any(value.same_as(var) for var in self._bound):
            self.reads.append(value)
        return tvm_ffi.WalkResult.SKIP  # its indices belong to it
