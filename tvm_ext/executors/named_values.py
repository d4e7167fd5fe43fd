"""Named values as local variables of the kernel.

A ``Let`` in an expression names a value that is used several times. LLVM code generation lets
TVM's simplifier replace each name by its value, and a chain of formulas grows exponentially.
Loads it leaves alone.

Before: ``y[i] = (let t = exp(x[i]) in t / (t + 1))``
After:  ``t_local[0] = exp(x[i]);  y[i] = t_local[0] / (t_local[0] + 1)``
"""

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, TensorLoad

__all__ = ["rewrite_stores"]

_IF_THEN_ELSE = "prim.if_then_else"
# A set: isinstance asks TVM's classes one by one, of each of thousands of nodes.
_BINARY = {tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod,
           tirx.Min, tirx.Max, tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And,
           tirx.Or, tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor, tirx.LShift,
           tirx.RShift}  # fmt: skip

Names = dict[tirx.Var, tirx.Expr]


def rewrite_stores(store: tirx.BufferStore) -> tirx.Stmt:
    """``store`` with the names in its value as local variables in front of it."""
    if not _has_names(store.value):
        return store
    locals_: list[tirx.Stmt] = []
    value = _hoisted(store.value, {}, locals_)
    if not locals_:  # all names stand under a condition
        return store
    return tirx.SeqStmt([*locals_, tirx.BufferStore(store.buffer, value, store.indices)])


def _has_names(code: tirx.Expr | tirx.Stmt) -> bool:
    """Whether there is a ``Let`` in ``code``."""
    found = False

    def visit(_let: tirx.Let) -> None:
        nonlocal found
        found = True

    tvm_ffi.structural_walk(code, (tirx.Let, visit))
    return found


def _hoisted(expr: tirx.Expr, names: Names, out: list[tirx.Stmt] | None) -> tirx.Expr:
    """``expr`` with its names replaced by loads; ``out`` receives the stores.

    Without ``out`` (what is evaluated only under a condition) names stay where they are.
    """

    def visit(child: tirx.Expr) -> tirx.Expr:
        return _hoisted(child, names, out)

    kind = type(expr)
    if kind is tirx.Var:
        return names.get(expr, expr)
    if kind in _BINARY:
        return kind(visit(expr.a), visit(expr.b))
    if kind is tirx.Let:
        value = visit(expr.value)
        if out is None:
            return tirx.Let(expr.var, value, visit(expr.body))
        return _hoisted(expr.body, names | {expr.var: _stored(expr.var, value, out)}, out)
    if kind is tirx.Select:
        return tirx.Select(visit(expr.condition), visit(expr.true_value), visit(expr.false_value))
    if kind in (tirx.Not, tirx.BitwiseNot):
        return kind(visit(expr.a))
    if kind is tirx.Cast:
        return tirx.Cast(str(expr.ty.dtype), visit(expr.value))
    if kind is tirx.Broadcast:
        return tirx.Broadcast(visit(expr.value), expr.lanes)
    if kind is TensorLoad:
        return tirx.BufferLoad(expr.source, [visit(index) for index in expr.indices])
    if kind is Call:
        return _call(expr, names, out)
    return expr


def _call(call: Call, names: Names, out: list[tirx.Stmt] | None) -> Call:
    conditional = getattr(call.op, "name", "") == _IF_THEN_ELSE
    args = [
        _hoisted(arg, names, None if conditional and k else out)
        if isinstance(arg, tirx.Expr)
        else arg
        for k, arg in enumerate(call.args)
    ]
    return Call(call.op, args, call.attrs, list(call.ty_args), ret_ty=call.ty)


def _stored(name: tirx.Var, value: tirx.Expr, out: list[tirx.Stmt]) -> tirx.Expr:
    """Store ``value`` in a local variable of its own; the load of it."""
    dtype = tvm.DataType(str(value.ty.dtype))
    scalar = str(dtype.with_lanes(1))
    local = tirx.decl_buffer((dtype.lanes,), scalar, f"{name.name}_local", scope="local")
    zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")
    index = zero if dtype.lanes == 1 else tirx.Ramp(zero, one, dtype.lanes)
    out += [tirx.AllocBuffer(local), tirx.BufferStore(local, value, [index])]
    return tirx.BufferLoad(local, [index])
