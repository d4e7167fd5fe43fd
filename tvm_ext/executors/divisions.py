"""Quotients of sizes that may be 0: those of tensors without elements.

Loops over such tensors make no trips and divide nothing, but what does not change in loops, their
extents above all, is computed all the same, and on most machines a division by 0 ends the process.

Before: ``for i in range(max(n - 3 % n, 0)): y[i] = x[i + 3 % n]``
After:  ``for i in range(max(n - 3 % select(n == 0, 1, n), 0)): ...``
"""

import tvm
import tvm_ffi
from tvm import IRModule, tirx
from tvm.tirx.analysis import undefined_vars

from ..schedules.statements import reads_memory

__all__ = ["DIVISIONS", "by_no_zero", "divide_sizes_safely"]

DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def by_no_zero(division: tirx.Expr) -> tirx.Expr:
    """``division``, where its divisor is 0 by 1."""
    by = division.b
    if isinstance(by, tirx.IntImm):
        return division
    return type(division)(division.a, tirx.Select(by == 0, tirx.const(1, by.ty), by))


@tvm.transform.module_pass(opt_level=0, name="DivideSizesSafely")
def divide_sizes_safely(module: IRModule, _context: object) -> IRModule:
    """The module pass, on kernels whose common subexpressions have names."""
    functions = {
        symbol: function.with_body(_divided_safely(function.body))
        if isinstance(function, tirx.PrimFunc)
        else function
        for symbol, function in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


def _divided_safely(body: tirx.Stmt) -> tirx.Stmt:
    varying: list[tirx.Var] = []  # variables of loops, and what is computed from these

    def changes(value: tirx.Expr) -> bool:
        used = undefined_vars(value)
        return reads_memory(value) or any(v.same_as(var) for v in used for var in varying)

    def loop(node: tirx.For) -> None:
        varying.append(node.loop_var)

    def bind(node: tirx.Bind) -> None:
        if changes(node.value):
            varying.append(node.var)

    def safely(division: tirx.Expr) -> tirx.Expr:
        whole = "int" in str(division.ty.dtype)
        return by_no_zero(division) if whole and not changes(division) else division

    tvm_ffi.structural_walk(body, [(tirx.For, loop), (tirx.Bind, bind)], order="pre")
    return tvm_ffi.structural_map(body, [(kind, safely) for kind in DIVISIONS])
