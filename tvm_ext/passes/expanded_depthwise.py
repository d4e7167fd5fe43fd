"""Depthwise convolutions and the 1x1 convolutions whose results they read: one kernel.

Before::

    e = fused_conv2d_add_clip(x, wa, ba)
    y = fused_depthwise_conv2d_add_clip(e, wb, bb)

After: ``y = fused_expanded_depthwise_conv2d(x, wa, ba, wb, bb)``, with the same calls in it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import tvm
from tvm import IRModule, relax, tirx
from tvm.ir import GlobalVar, Op
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target

from tvm_ext.schedules.llvm.expanded_depthwise import ExpandedDepthwise, is_depthwise

from .graph import Graph

__all__ = ["NAME", "expanded_depthwise"]

#: Of the pass.
NAME = "ExpandedDepthwise"

_KERNEL = "fused_expanded_depthwise_conv2d"
_CALL_TIR = Op.get("relax.call_tir")

_Emit = Callable[[relax.Expr], relax.Var]


def expanded_depthwise(
    target: Target, rule: ExpandedDepthwise | None = None
) -> tvm.ir.transform.Pass:
    """The module pass, between FuseOps and FuseTIR; ``rule`` says where it pays."""

    @tvm.transform.module_pass(opt_level=0, name=NAME)
    def run(module: IRModule, _context: object) -> IRModule:
        return _Pairing(module, target, rule or ExpandedDepthwise()).transform()

    return run


@mutator
class _Pairing(PyExprMutator):
    """Calls of depthwise groups become calls of pairs; the first of both is dead then."""

    def __init__(self, module: IRModule, target: Target, rule: ExpandedDepthwise):
        super().__init__(module)
        self.module, self.target, self.rule = module, target, rule
        self.pairs: dict[relax.Call, relax.Call] = {}

    def transform(self) -> IRModule:
        for symbol, func in self.module.functions_items():
            if isinstance(func, relax.Function) and "Primitive" not in (func.attrs or {}):
                found = dict(self._pairs(Graph(func, self.module)))
                if found:
                    self.pairs = found
                    self.builder_.update_func(symbol, self.visit_expr(func))
        if not self.pairs:
            return self.module
        return relax.transform.DeadCodeElimination()(self.builder_.get())

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        return super().visit_call_(self.pairs.get(call, call))

    def _pairs(self, graph: Graph) -> Iterator[tuple[relax.Call, relax.Call]]:
        """Calls of depthwise groups, and what takes their place."""
        for var, call in graph.values.items():
            group = self._group(call)
            if group is None or not any(map(is_depthwise, self._kernels(group))):
                continue
            for expanded in call.args:
                first = graph.values.get(expanded) if isinstance(expanded, relax.Var) else None
                if self._group(first) is not None and graph.reader(expanded) == var:
                    pair = self._pair(expanded, first, call)
                    if pair is not None:
                        yield call, pair

    def _group(self, value: relax.Expr | None) -> relax.Function | None:
        """What FuseOps made of kernels, of which the last gives the result, where called."""
        if not isinstance(value, relax.Call) or not isinstance(value.op, GlobalVar):
            return None
        group = self.module[value.op]
        return group if isinstance(group, relax.Function) and _is_of_kernels(group) else None

    def _kernels(self, group: relax.Function) -> Iterator[tirx.PrimFunc]:
        for call in _calls(group).values():
            yield self.module[call.args[0]]

    def _pair(
        self, expanded: relax.Var, first: relax.Call, second: relax.Call
    ) -> relax.Call | None:
        """A call of both groups as one; None where two kernels are as good."""
        operands = list(dict.fromkeys([*first.args, *(a for a in second.args if a != expanded)]))
        if not all(map(_has_sizes, operands)):
            return None
        params = [relax.Var(f"param_{k}", operand.ty) for k, operand in enumerate(operands)]
        known: dict[relax.Expr, relax.Expr] = dict(zip(operands, params, strict=True))
        builder = relax.BlockBuilder()
        with builder.function(_KERNEL, params, attrs={"Primitive": True}, private=True):
            with builder.dataflow():
                emit, group = builder.emit, self.module[first.op]
                known[expanded] = _emit(emit, emit, group, first, known)
                group = self.module[second.op]
                result = _emit(emit, builder.emit_output, group, second, known)
            builder.emit_func_output(result)
        both = relax.utils.copy_with_new_vars(builder.get()[_KERNEL])
        if not self.rule.pays(self._kernel(both), self.target):
            return None
        return relax.Call(self.builder_.add_func(both, _KERNEL), operands)

    def _kernel(self, group: relax.Function) -> tirx.PrimFunc:
        """What FuseTIR makes of ``group``."""
        symbols = [call.args[0] for call in _calls(group).values()]
        builder = relax.BlockBuilder(IRModule({symbol: self.module[symbol] for symbol in symbols}))
        symbol = builder.add_func(group, _KERNEL)
        params = [relax.Var(param.name, param.ty) for param in group.params]
        with builder.function("main", params):
            with builder.dataflow():
                result = builder.emit_output(relax.Call(symbol, params))
            builder.emit_func_output(result)
        fused = relax.transform.FuseTIR()(builder.get())
        (kernel,) = (f for _, f in fused.functions_items() if isinstance(f, tirx.PrimFunc))
        return kernel


def _calls(group: relax.Function) -> dict[relax.Var, relax.Call]:
    """What the variables of a group are bound to."""
    return {b.var: b.value for block in group.body.blocks for b in block.bindings}


def _is_of_kernels(group: relax.Function) -> bool:
    if "Primitive" not in (group.attrs or {}):
        return False
    calls = _calls(group)
    kernels = all(
        isinstance(call, relax.Call)
        and call.op == _CALL_TIR
        and len(call.args) == 2
        and isinstance(call.args[1], relax.Tuple)
        for call in calls.values()
    )
    return kernels and bool(calls) and group.body.body == list(calls)[-1]


def _has_sizes(operand: relax.Expr) -> bool:
    return isinstance(getattr(operand.ty, "shape", None), relax.ShapeExpr)


def _emit(
    emit: _Emit,
    emit_last: _Emit,
    group: relax.Function,
    call: relax.Call,
    known: Mapping[relax.Expr, relax.Expr],
) -> relax.Var:
    """The result of ``group``, on what is ``known`` of the operands of ``call``.

    ``emit_last`` emits what gives it.
    """
    operands = [known[operand] for operand in call.args]
    group = _of_sizes(group, operands)
    own = dict(zip(group.params, operands, strict=True))
    for var, value in _calls(group).items():
        kernel, operands, *others = value.args
        fields = relax.Tuple([own.get(field, field) for field in operands.fields])
        of = relax.Call(value.op, [kernel, fields, *others], value.attrs, value.ty_args)
        own[var] = (emit_last if var == group.body.body else emit)(of)
    return own[group.body.body]


def _of_sizes(group: relax.Function, operands: Sequence[relax.Expr]) -> relax.Function:
    """``group`` with the symbolic sizes of ``operands``."""
    sizes = {
        own: size
        for param, operand in zip(group.params, operands, strict=True)
        for own, size in zip(param.ty.shape.values, operand.ty.shape.values, strict=True)
        if isinstance(own, tirx.Var)
    }
    return group.bind_symbolic_vars(sizes) if sizes else group
