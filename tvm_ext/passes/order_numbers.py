"""Fused kernels take the sizes that no operand has as a dim in the order in which they use them,
and only those.

FuseOps collects them in a set of addresses: builds of one model would differ, and kernels that are
the same but for that order.

Before: ``fused(x: [n, (h + 1) // 2, (w + 1) // 2], w: int64, h: int64)``, called ``fused(x, w, h)``
After:  ``fused(x: [n, (h + 1) // 2, (w + 1) // 2], h: int64, w: int64)``, called ``fused(x, h, w)``
"""

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GlobalVar, Op, PrimType
from tvm.relax.expr import _update_type
from tvm.relax.expr_functor import PyExprMutator, mutator

from .facts import ordered_numbers
from .graph import visited

__all__ = ["order_numbers"]

_CALL_TIR = Op.get("relax.call_tir")


@tvm.transform.module_pass(opt_level=0, name="OrderNumbers")
def order_numbers(module, _context):
    """The module pass, behind FuseTIR; of kernels that are then equal, the first is called."""
    orders: dict[GlobalVar, list[int]] = {}
    first: dict[GlobalVar, GlobalVar] = {}
    distinct: dict[int, list[GlobalVar]] = {}
    functions = dict(module.functions_items())
    for symbol, func in module.functions_items():
        if not isinstance(func, tirx.PrimFunc) or not _is_symbolic(func):
            continue
        kernel, orders[symbol] = ordered_numbers(functions.pop(symbol))
        alike = distinct.setdefault(tvm_ffi.structural_hash(kernel), [])
        equal = (s for s in alike if tvm_ffi.structural_equal(functions[s], kernel))
        first[symbol] = next(equal, None) or _symbol(symbol.name_hint, kernel)
        functions[first[symbol]] = kernel
        alike.append(first[symbol])
    if not orders:
        return module
    ordered = tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)
    return visited(ordered, _Calls(ordered, orders, first))


def _symbol(name: str, kernel: tirx.PrimFunc) -> GlobalVar:
    """A name for a kernel: that of the former one tells the types of its parameters."""
    symbol = GlobalVar(name)
    _update_type(symbol, kernel.ty)
    return symbol


def _is_symbolic(func: tirx.PrimFunc) -> bool:
    """Whether a kernel takes numbers, or tensors of symbolic dims."""
    return not all(
        tirx.is_buffer_var(param) and all(isinstance(dim, tirx.IntImm) for dim in param.ty.shape)
        for param in func.params
    )


@mutator
class _Calls(PyExprMutator):
    """Calls of kernels that take their numbers in another order."""

    def __init__(self, module, orders, first):
        super().__init__(module)
        self.orders, self.first = orders, first

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        order = self.orders.get(call.args[0]) if call.op == _CALL_TIR else None
        if order is None:
            return call
        symbol, operands, *shapes = call.args
        fields = list(operands.fields)
        scalars = [k for k, field in enumerate(fields) if isinstance(field.ty, PrimType)]
        given = [fields[k] for k in scalars] + [dim for s in shapes for dim in s.values]
        moved = [given[k] for k in order]
        placed = dict(zip(scalars, moved, strict=False))
        fields = [placed.get(k, f) for k, f in enumerate(fields) if k in placed or k not in scalars]
        rest = moved[len(scalars) :]
        args = [self.first[symbol], relax.Tuple(fields), *([relax.ShapeExpr(rest)] if rest else [])]
        return relax.Call(call.op, args, call.attrs, call.ty_args)
