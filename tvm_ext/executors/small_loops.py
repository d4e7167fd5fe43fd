"""No parallel region for little work: a loop of symbolic size is parallel only where that pays.

What a region costs does not depend on its size, 1-3 us and far more where threads sleep. Schedules
decide by static sizes; where the work depends on run-time sizes, so does the decision.

Before: ``for i in T.parallel(n): y[i] = f(x[i])``
After:  ``tvmx_alone(n * cost < WORK); for i in T.parallel(n): y[i] = f(x[i])``

Kernels that TVM loads find that function by a name of TVM's, ``tvm_ext.alone``. A second loop that
is serial would take as long to compile as the first.
"""

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars

from ..schedules.statements import map_children, reads_memory
from .divisions import DIVISIONS, by_no_zero

__all__ = ["ALONE", "WORK", "alone_where_small", "told_where_small"]

#: What TVM calls ``tvmx_alone``. On TVM's pool, until ours is there, each loop is parallel.
ALONE = "tvm_ext.alone"
tvm.register_global_func(ALONE, lambda _small: None, override=True)

#: Vector or scalar operations, of which a core does 4-10 in a nanosecond, that pay for a region.
WORK = 1 << 15
# What stands for the trips of a loop whose extent depends on memory or on the loops around it.
_SOME_TRIPS = 16
_CALL = 16
_DIVISION = 16
_VSCALE = ir.Op.get("prim.vscale")

_OPERATIONS = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Min,
    tirx.Max,
    tirx.Select,
    tirx.Cast,
)

# What says whether the next loop is small.
_Say = Callable[[tirx.Expr], tirx.Expr]


@tvm.transform.module_pass(opt_level=0, name="ToldWhereSmall")
def told_where_small(module: IRModule, _context: object) -> IRModule:
    """The module pass, on lowered kernels: vectors are made, loops unrolled and cut."""
    return _loops_told(module, lambda small: tirx.call_packed(ALONE, small.astype("int64")))


@tvm.transform.module_pass(opt_level=0, name="AloneWhereSmall")
def alone_where_small(module: IRModule, _context: object) -> IRModule:
    """The same of kernels that are linked with our runtime."""
    return _loops_told(
        module, lambda small: tirx.call_extern("int32", "tvmx_alone", small.astype("int32"))
    )


def _loops_told(module: IRModule, say: _Say) -> IRModule:
    functions = {
        symbol: function.with_body(_rewritten(function.body, say))
        if isinstance(function, tirx.PrimFunc)
        else function
        for symbol, function in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


def _rewritten(stmt: tirx.Stmt, say: _Say) -> tirx.Stmt:
    if not isinstance(stmt, tirx.For) or stmt.kind != tirx.ForKind.PARALLEL:
        return map_children(stmt, lambda child: _rewritten(child, say))
    if _counts_are_numbers(stmt):
        return stmt  # the schedule has decided
    work = _ANALYZER.simplify(_of_no_loop(_of_narrow_vectors(_cost(stmt))))
    if int(_ANALYZER.simplify(_at_least(work))) >= WORK or isinstance(work, tirx.IntImm):
        return stmt  # enough in any case
    return tirx.SeqStmt([tirx.Evaluate(say(work < WORK)), stmt])


def _counts_are_numbers(loop: tirx.For) -> bool:
    extents: list[tirx.Expr] = []
    tvm_ffi.structural_walk(loop, (tirx.For, lambda inner: extents.append(inner.extent)))
    return all(isinstance(extent, tirx.IntImm) for extent in extents)


def _of_narrow_vectors(work: tirx.Expr) -> tirx.Expr:
    """``work`` where scalable vectors have their least length, so that static work is a number."""

    def least(call: ir.Call) -> ir.Expr:
        return tirx.const(1, call.ty) if call.op == _VSCALE else call

    return tvm_ffi.structural_map(work, (ir.Call, least))


def _of_no_loop(work: tirx.Expr) -> tirx.Expr:
    """``work`` where sizes may be 0 by which only loops without trips would divide."""
    return tvm_ffi.structural_map(work, (DIVISIONS, by_no_zero))


def _at_least(work: tirx.Expr) -> tirx.Expr:
    """``work`` where all sizes are 1."""
    return tvm_ffi.structural_map(work, (tirx.Var, lambda size: tirx.const(1, size.ty)))


def _cost(stmt: tirx.Stmt) -> tirx.Expr:
    """The operations of ``stmt``, in terms of variables from around it alone."""
    if isinstance(stmt, tirx.For):
        trips = tirx.const(_SOME_TRIPS, "int64")
        if not reads_memory(stmt.extent):
            trips = stmt.extent.astype("int64")
        return trips * _within(_cost(stmt.body), stmt.loop_var)
    if isinstance(stmt, tirx.SeqStmt):
        total = tirx.const(0, "int64")
        for child in reversed(stmt.seq):
            if isinstance(child, tirx.Bind):
                total = _bound(total, child)
            total = total + _cost(child)
        return total
    if isinstance(stmt, tirx.IfThenElse):
        branches = [stmt.then_case, *([stmt.else_case] if stmt.else_case is not None else [])]
        return sum((_cost(branch) for branch in branches), tirx.const(1, "int64"))
    if isinstance(stmt, tirx.While):
        return _SOME_TRIPS * _cost(stmt.body)
    if isinstance(stmt, tirx.AttrStmt):
        return _cost(stmt.body)
    return tirx.const(_operations(stmt), "int64")


def _operations(stmt: tirx.Stmt) -> int:
    """Those of one store, or of another statement without statements inside.

    Indices are free but for divisions: what they have in common with their neighbours is computed
    once.
    """
    count = 1
    value = stmt.value if isinstance(stmt, tirx.BufferStore) else stmt
    of_floats = isinstance(stmt, tirx.BufferStore) and _is_float(value)

    def operation(node: ir.Expr) -> None:
        nonlocal count
        count += 1 if not of_floats or _is_float(node) else 0

    def division(node: ir.Expr) -> None:
        nonlocal count
        count += 1 if _is_float(node) or isinstance(node.b, tirx.IntImm) else _DIVISION

    def load(_node: ir.TensorLoad) -> None:
        nonlocal count
        count += 1

    def call(node: ir.Call) -> None:
        nonlocal count
        count += 0 if str(node.ty).startswith("handle") else _CALL

    tvm_ffi.structural_walk(
        value,
        [(_OPERATIONS, operation), (DIVISIONS, division), (ir.TensorLoad, load), (ir.Call, call)],
    )
    if isinstance(stmt, tirx.BufferStore):
        for index in stmt.indices:
            tvm_ffi.structural_walk(index, (DIVISIONS, division))
    return count


def _is_float(expr: ir.Expr) -> bool:
    return "float" in str(expr.ty.dtype)


def _bound(cost: tirx.Expr, bind: tirx.Bind) -> tirx.Expr:
    """``cost`` behind ``bind`` in terms of what is known before it."""
    if reads_memory(bind.value):
        return _within(cost, bind.var)
    return tvm_ffi.structural_map(
        cost, (tirx.Var, lambda var: bind.value if var.same_as(bind.var) else var)
    )


def _within(cost: tirx.Expr, var: tirx.Var) -> tirx.Expr:
    """``cost`` without ``var``, which is not known outside: it counts as a small number.

    Loops that end early, ``min(16, n - var)``, count as if they did not.
    """

    def whole(least: tirx.Min) -> tirx.Expr:
        numbers = [side for side in (least.a, least.b) if isinstance(side, tirx.IntImm)]
        known = all(not var.same_as(used) for used in undefined_vars(least))
        return least if known or not numbers else numbers[0]

    cost = tvm_ffi.structural_map(cost, (tirx.Min, whole))
    return tvm_ffi.structural_map(
        cost, (tirx.Var, lambda v: tirx.const(_SOME_TRIPS, v.ty) if v.same_as(var) else v)
    )


_ANALYZER = Analyzer()
