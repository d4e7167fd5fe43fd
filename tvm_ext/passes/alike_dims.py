"""Kernels whose parameters write dims otherwise than operands do are not fused with others.

FuseTIR matches the formula of a dim node by node. Simplified they may differ: the type of a Concat
is ``1 + s`` where that of its kernel is ``s + 1``, and one knows that a dim is not negative.

Before: ``v: R.Tensor((s + 1,)); R.call_tir(mean, (v, s))``, where mean takes ``T.Buffer((1 + s,))``
After:  the same, and mean is OPAQUE
"""

from collections.abc import Iterator

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GlobalVar, Op
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..schedules.statements import substituted
from .facts import OPAQUE
from .graph import visited

__all__ = ["alike_dims"]

_CALL_TIR = Op.get("relax.call_tir")


@tvm.transform.module_pass(opt_level=0, name="AlikeDims")
def alike_dims(module, _context):
    """The module pass, before FuseOps."""
    return visited(module, _Apart(module))


@mutator
class _Apart(PyExprMutator):
    """Calls of kernels that cannot be fused as they are."""

    def __init__(self, module: tvm.IRModule):
        super().__init__(module)
        self.module = module

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op != _CALL_TIR or not isinstance(call.args[0], GlobalVar):
            return call
        symbol, *operands = call.args
        kernel = self.module[symbol] if symbol in self.module.functions else None
        if not isinstance(kernel, tirx.PrimFunc) or _are_alike(call, kernel):
            return call
        apart = self.builder_.add_func(kernel.with_attr("op_pattern", OPAQUE), symbol.name_hint)
        return relax.Call(call.op, [apart, *operands], call.attrs, call.ty_args)


def _are_alike(call: relax.Call, kernel: tirx.PrimFunc) -> bool:
    """Whether the dims of operands and results are those of parameters, node by node."""
    values: dict[tirx.Var, tirx.Expr] = {}
    formulas: list[tuple[tirx.Expr, tirx.Expr]] = []
    for given, dim in _dims(call, kernel):
        if isinstance(dim, tirx.Var):
            values.setdefault(dim, given)
        formulas.append((given, dim))
    return all(tvm_ffi.structural_equal(given, substituted(dim, values)) for given, dim in formulas)


def _dims(call: relax.Call, kernel: tirx.PrimFunc) -> Iterator[tuple[tirx.Expr, tirx.Expr]]:
    """What is given for a number or for a dim of each parameter, and the parameter's own."""
    (out,) = call.ty_args
    results = out.fields if isinstance(out, relax.TupleType) else [out]
    given = [*call.args[1], *results]
    for value, param in zip(given, kernel.params, strict=False):
        if not tirx.is_buffer_var(param):
            yield value, param
            continue
        ty = value.ty if isinstance(value, relax.Expr) else value
        if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
            yield from zip(ty.shape.values, param.ty.shape, strict=True)
