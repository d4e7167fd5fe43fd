"""Kernels that only give a tensor another shape, as reshapes, which copy nothing."""

import tvm
from tvm import IRModule, relax, tirx

from tvm_ext.schedules.reshapes import is_reshape

__all__ = ["rewrite_views"]

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")


@tvm.transform.module_pass(opt_level=0, name="RewriteViews")
def rewrite_views(module: IRModule, _context: object) -> IRModule:
    """TVM's RewriteDataflowReshape, after which kernels that write no element do nothing.

    Those would be reshapes too, to a shape in which Relax reads 0 as the dim of the operand.
    Kernels that TVM fails to analyse are none: they divide by sums of dims.
    """
    module = module.clone()
    hidden = {symbol: module[symbol] for symbol in _not_analysed(module)}
    for symbol in [*_without_results(module), *hidden]:
        func = module[symbol]
        module[symbol] = tirx.PrimFunc(func.params, tirx.Evaluate(0), func.ret_type, func.attrs)
    module = relax.transform.RewriteDataflowReshape()(module)
    for symbol, func in hidden.items():
        module[symbol] = func
    return module


def _not_analysed(module: IRModule) -> list[tvm.ir.GlobalVar]:
    """The kernels for which TVM's search for reshapes ends with an error."""
    kernels = module.functions_items()
    return [
        k for k, func in kernels if isinstance(func, tirx.PrimFunc) and is_reshape(func) is None
    ]


def _without_results(module: IRModule) -> list[tvm.ir.GlobalVar]:
    """The kernels all of whose results have a dim that is 0."""
    found: list[tvm.ir.GlobalVar] = []

    def visit(node: relax.Expr) -> None:
        if isinstance(node, relax.Call) and node.op == _CALL_TIR:
            (ty,) = node.ty_args
            results = ty.fields if isinstance(ty, relax.TupleType) else [ty]
            if all(any(_is_zero(dim) for dim in result.shape.values) for result in results):
                found.append(node.args[0])

    for func in module.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func.body, visit)
    return found


def _is_zero(dim: tirx.Expr) -> bool:
    return isinstance(dim, tirx.IntImm) and dim.value == 0
