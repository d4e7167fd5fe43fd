"""Give the dims that a group of fused kernels needs as one operand, the last.

FuseOps makes of a dim a scalar operand where a kernel's argument is its only use in the group, and
one of a shape where a type uses it. FuseTIR declares the scalars twice where a group has both.

Before: ``fused(d, x, R.shape([n]))``
After:  ``fused(x, R.shape([n, d]))``
"""

from collections.abc import Sequence

import tvm
from tvm import relax
from tvm.ir import GlobalVar, PrimType
from tvm.relax.expr_functor import PyExprMutator, mutator

__all__ = ["gather_dims"]


@tvm.transform.module_pass(opt_level=0, name="GatherDims")
def gather_dims(module, _context):
    """The module pass, between FuseOps and FuseTIR."""
    gathering = _Gathering(module)
    return gathering.transform() if gathering.groups else module


@mutator
class _Gathering(PyExprMutator):
    """Calls of groups that have scalars and a shape."""

    def __init__(self, module: tvm.IRModule):
        super().__init__(module)
        functions = {s: f for s, f in module.functions_items() if isinstance(f, relax.Function)}
        self.callers = {s: f for s, f in functions.items() if not _is_group(f)}
        self.groups = {s: f for s, f in functions.items() if _is_group(f) and _has_both(f)}
        self.gathered: dict[GlobalVar, GlobalVar] = {}

    def transform(self) -> tvm.IRModule:
        for symbol, caller in self.callers.items():
            self.builder_.update_func(symbol, self.visit_expr(caller))
        return self.builder_.get()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        group = self.groups.get(call.op) if isinstance(call.op, GlobalVar) else None
        if group is None:
            return call
        if call.op not in self.gathered:
            name = f"{call.op.name_hint}_dims"
            self.gathered[call.op] = self.builder_.add_func(_with_one_shape(group), name)
        *operands, shape = call.args
        tensors, scalars = _parted(operands, group.params[:-1])
        dims = relax.ShapeExpr([*shape.values, *scalars])
        return relax.Call(self.gathered[call.op], [*tensors, dims], call.attrs, call.ty_args)


def _with_one_shape(group: relax.Function) -> relax.Function:
    """``group`` with its scalars among the dims of its last parameter."""
    *operands, shape = group.params
    tensors, scalars = _parted(operands, operands)
    dims = relax.Var(shape.name, relax.ShapeType([*shape.ty.values, *scalars]))
    params = [*tensors, dims]
    return relax.Function(params, group.body, group.ret_ty, group.is_pure, group.attrs)


def _parted(operands: Sequence[relax.Expr], params: Sequence[relax.Var]) -> tuple[list, list]:
    """The operands of tensor parameters, and those of scalar ones."""
    pairs = list(zip(operands, params, strict=True))
    tensors = [operand for operand, param in pairs if not _is_scalar(param)]
    return tensors, [operand for operand, param in pairs if _is_scalar(param)]


def _is_group(func: relax.Function) -> bool:
    return "Primitive" in (func.attrs or {})


def _has_both(group: relax.Function) -> bool:
    """Whether FuseOps gave the group scalars, and a shape, which it puts last."""
    *operands, last = group.params or [None]
    return isinstance(getattr(last, "ty", None), relax.ShapeType) and any(map(_is_scalar, operands))


def _is_scalar(param: relax.Var) -> bool:
    return isinstance(param.ty, PrimType)
