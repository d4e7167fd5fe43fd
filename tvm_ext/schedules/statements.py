"""Rebuilding statements: what rules and passes over any function need."""

from collections.abc import Callable

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.ir import register_op_attr
from tvm.tirx.expr import CallEffectKind

__all__ = [
    "children",
    "if_any",
    "is_unseen",
    "map_children",
    "reads_memory",
    "rescheduled",
    "serial_copy",
    "substituted",
    "unseen",
    "with_block",
    "with_value",
]


# An identity that TVM believes to read state.
_UNSEEN = "tirx.tvm_ext.unseen"
register_op_attr(_UNSEEN, "TCallEffectKind", CallEffectKind.ReadState.value)
register_op_attr(_UNSEEN, "TScriptPrinterName", "tvm_ext_unseen", level=20)
tirx.op.register_intrin_lowering(_UNSEEN, target="default", f=lambda call: call.args[0])
_UNSEEN_OP = ir.Op.get(_UNSEEN)


def rescheduled(func: tirx.PrimFunc) -> s_tir.Schedule:
    """A schedule of what another one made, or part of it: what has been inlined several times names
    its values as often, which TVM refuses."""
    return s_tir.Schedule(s_tir.transform.ConvertSSA()(ir.IRModule({"main": func})))


def map_children(stmt: tirx.Stmt, function: Callable[[tirx.Stmt], tirx.Stmt]) -> tirx.Stmt:
    """``stmt`` with ``function`` applied to the statements directly inside of it."""
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([function(child) for child in stmt.seq])
    if isinstance(stmt, s_tir.SBlockRealize):
        return with_block(stmt, function(stmt.block.body), stmt.block.alloc_buffers)
    if isinstance(stmt, tirx.For):
        return tirx.For(
            stmt.loop_var,
            stmt.min,
            stmt.extent,
            stmt.kind,
            function(stmt.body),
            stmt.thread_binding,
            stmt.annotations,
            stmt.step,
        )
    if isinstance(stmt, tirx.While):
        return tirx.While(stmt.condition, function(stmt.body))
    if isinstance(stmt, tirx.AttrStmt):
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, function(stmt.body))
    if isinstance(stmt, tirx.IfThenElse):
        other = None if stmt.else_case is None else function(stmt.else_case)
        return tirx.IfThenElse(stmt.condition, function(stmt.then_case), other)
    return stmt


def children(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    """The statements directly inside of ``stmt``."""
    found: list[tirx.Stmt] = []

    def note(child: tirx.Stmt) -> tirx.Stmt:
        found.append(child)
        return child

    map_children(stmt, note)
    return found


def with_block(
    realize: s_tir.SBlockRealize, body: tirx.Stmt, buffers: list[tirx.Var]
) -> s_tir.SBlockRealize:
    """``realize`` with another body and other buffers in its block."""
    block = realize.block
    block = s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        buffers,
        block.match_buffers,
        block.annotations,
    )
    return s_tir.SBlockRealize(realize.iter_values, realize.predicate, block)


def substituted(value, variables: dict):
    """``value`` with ``variables`` replaced."""

    def replaced(variable: tirx.Var):
        return next((new for old, new in variables.items() if old.same_as(variable)), variable)

    return tvm_ffi.structural_map(value, (tirx.Var, replaced))


def with_value(expr: ir.Expr, buffer: tirx.Var, value: ir.Expr) -> ir.Expr:
    """``expr`` with ``value`` for what it reads of ``buffer``."""

    def load(node: ir.TensorLoad) -> ir.Expr:
        return value if node.source.same_as(buffer) else node

    return tvm_ffi.structural_map(expr, (ir.TensorLoad, load))


def serial_copy(loop: tirx.For) -> tirx.For:
    """``loop``, one trip after the other; whatever it defines is defined once in a kernel."""
    copies: dict[tirx.Var, tirx.Var] = {}

    def define(var: tirx.Var) -> None:
        copies[var] = tirx.Var(var.name, var.ty)

    tvm_ffi.structural_walk(
        loop,
        [
            (tirx.For, lambda node: define(node.loop_var)),
            ((tirx.Bind, tirx.Let), lambda node: define(node.var)),
            ((tirx.AllocBuffer, tirx.DeclBuffer), lambda node: define(node.buffer)),
        ],
    )
    own = tvm_ffi.structural_map(loop, (tirx.Var, lambda var: copies.get(var, var)))
    return tirx.For(
        own.loop_var, own.min, own.extent, tirx.ForKind.SERIAL, own.body, None, {}, own.step
    )


def reads_memory(value: ir.Expr) -> bool:
    """Whether ``value`` loads an element of a tensor."""
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(value, (ir.TensorLoad, found.append))
    return bool(found)


def if_any(condition: tirx.Expr) -> tirx.Expr:
    """``condition`` on sizes, where there are elements: without any, no loop has a trip.

    Beneath one that holds for sizes of 0 alone, TVM's simplifier divides by 0.
    """
    analyzer = sym.Analyzer()
    for size in tirx.analysis.undefined_vars(condition, []):
        analyzer.update(size, sym.ConstIntBound(1, sym.ConstIntBound.POS_INF))
    return analyzer.simplify(condition)


def unseen(condition: tirx.Expr) -> tirx.Expr:
    """``condition``, of which TVM's simplifier draws no conclusions."""
    return tirx.call_intrin(condition.ty, _UNSEEN, condition)


def is_unseen(value: tirx.Expr) -> bool:
    """Whether ``value`` is one of :func:`unseen`."""
    return isinstance(value, ir.Call) and value.op == _UNSEEN_OP
