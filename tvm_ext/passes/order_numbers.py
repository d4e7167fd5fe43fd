"""Fused kernels take the sizes that no operand has as a dim in the order in which they use them.

FuseOps collects them in a set of addresses: builds of one model would differ, and kernels that are
the same but for that order.

Before: ``fused(x: [n, (h + 1) // 2, (w + 1) // 2], w: int64, h: int64)``, called ``fused(x, w, h)``
After:  ``fused(x: [n, (h + 1) // 2, (w + 1) // 2], h: int64, w: int64)``, called ``fused(x, h, w)``
"""

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GlobalVar, Op, PrimType
from tvm.relax.expr_functor import PyExprMutator, mutator

from .facts import ordered_numbers

__all__ = ["order_numbers"]

_CALL_TIR = Op.get("relax.call_tir")


@tvm.transform.module_pass(opt_level=0, name="OrderNumbers")
def order_numbers(module, _context):
    """The module pass, behind FuseTIR; of kernels that are then equal, the first is called."""
    orders: dict[GlobalVar, list[int]] = {}
    first: dict[GlobalVar, GlobalVar] = {}
    distinct: dict[int, list[GlobalVar]] = {}
    for symbol, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc) and _numbers(func) > 1:
            func, orders[symbol] = ordered_numbers(func)
            module.update_func(symbol, func)
            alike = distinct.setdefault(tvm_ffi.structural_hash(func), [])
            equal = (s for s in alike if tvm_ffi.structural_equal(module[s], func))
            first[symbol] = next(equal, symbol)
            alike.append(symbol)
    return _Calls(module, orders, first).transform() if orders else module


def _numbers(func: tirx.PrimFunc) -> int:
    return sum(not tirx.is_buffer_var(param) for param in func.params)


@mutator
class _Calls(PyExprMutator):
    """Calls of kernels that take their numbers in another order."""

    def __init__(self, module, orders, first):
        super().__init__(module)
        self.module, self.orders, self.first = module, orders, first

    def transform(self) -> tvm.IRModule:
        for symbol, func in self.module.functions_items():
            if isinstance(func, relax.Function):
                self.builder_.update_func(symbol, self.visit_expr(func))
        return self.builder_.get()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        order = self.orders.get(call.args[0]) if call.op == _CALL_TIR else None
        if order is None:
            return call
        symbol, operands, *shapes = call.args
        fields = list(operands.fields)
        scalars = [k for k, field in enumerate(fields) if isinstance(field.ty, PrimType)]
        given = [fields[k] for k in scalars] + [dim for s in shapes for dim in s.values]
        moved = iter([given[k] for k in order])
        for k in scalars:
            fields[k] = next(moved)
        shapes = [relax.ShapeExpr([next(moved) for _ in shape.values]) for shape in shapes]
        args = [self.first[symbol], relax.Tuple(fields), *shapes]
        return relax.Call(call.op, args, call.attrs, call.ty_args)
