"""Kernels of the VM check the ranks, types and sizes of their tensors at once.

TVM has a kernel check each argument by some ten assertions with texts of their own, half of what
LLVM has to compile for a small one. That arguments are tensors of this device, contiguous and from
their first byte on, holds for all that the VM passes on: it allocated them, or
:mod:`.host` copied them.

Before: ``assert x is a tensor; assert x.ndim == 2; assert x.dtype == float32;
        assert x.strides are compact; assert x.shape[1] == 4; assert y ...``
After:  ``assert x.ndim == 2 and x.dtype == float32; assert y ...; assert x.shape[1] == 4 and ...``
"""

from functools import reduce

import tvm
import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.ir.expr import StringImm
from tvm.target import Target

from ..schedules.statements import map_children

__all__ = ["join_checks"]

# Of TVM's StructFieldKind: what an assertion reads that stays.
_RANK, _TYPE, _SIZE = {4}, {5, 6, 7}, {17}
_KEPT = _RANK | _TYPE | _SIZE


@tvm.transform.module_pass(opt_level=0, name="JoinChecks")
def join_checks(module: IRModule, _context: object) -> IRModule:
    """The module pass, behind MakePackedAPI; kernels of other devices keep what they check."""
    target = Target.current()
    if target is None or target.kind.name != "llvm":
        return module
    functions = {
        symbol: function.with_body(_joined(function.body, symbol.name_hint))
        if isinstance(function, tirx.PrimFunc)
        else function
        for symbol, function in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


def _joined(stmt: tirx.Stmt, name: str) -> tirx.Stmt:
    """``stmt``, in which neighbouring assertions are one."""
    if not isinstance(stmt, tirx.SeqStmt):
        return (
            stmt if isinstance(stmt, tirx.For) else map_children(stmt, lambda s: _joined(s, name))
        )
    statements: list[tirx.Stmt] = []
    conditions: list[tirx.Expr] = []

    def flush() -> None:
        if conditions:
            text = [StringImm(f"{name} is not made for tensors of such types or sizes")]
            both = reduce(tirx.And, conditions)
            statements.append(tirx.AssertStmt(both, StringImm("ValueError"), text))
            conditions.clear()

    for child in stmt.seq:
        if isinstance(child, tirx.AssertStmt):
            if _reads(child.condition):
                conditions.append(child.condition)
        elif not _checks_alone(child):
            flush()
            statements.append(_joined(child, name))
    flush()
    return tirx.SeqStmt(statements)


def _reads(condition: tirx.Expr) -> bool:
    """Whether it is a rank, a type or sizes that are checked."""
    kinds: set[int] = set()

    def note(call: ir.Call) -> None:
        if getattr(call.op, "name", None) == "tirx.tvm_struct_get":
            kinds.add(int(call.args[2]))

    tvm_ffi.structural_walk(condition, (ir.Call, note))
    return bool(kinds) and kinds <= _KEPT


def _checks_alone(stmt: tirx.Stmt) -> bool:
    """Whether ``stmt`` is the check of strides, for tensors that have some."""
    return isinstance(stmt, tirx.IfThenElse) and isinstance(stmt.then_case, tirx.AssertStmt)
