"""Compute run-time dims before what needs them.

FuseOps orders bindings by the variables that they use, and does not count a symbolic dim as one.

Before: ``lv = fused_slice(x, d); s = R.match_cast(R.tensor_to_shape(count), R.Shape([d]))``
After:  ``s = R.match_cast(R.tensor_to_shape(count), R.Shape([d])); lv = fused_slice(x, d)``
"""

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import PrimType

__all__ = ["order_dims"]


@tvm.transform.module_pass(opt_level=0, name="OrderDims")
def order_dims(module, _context):
    """The module pass: within each dataflow block, bindings wait for the dims that they use."""
    for symbol, func in module.functions_items():
        if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
            known = set(func.params).union(*(_variables(param.ty) for param in func.params))
            blocks = [_ordered(block, known) for block in func.body.blocks]
            body = relax.SeqExpr(blocks, func.body.body)
            ordered = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
            module.update_func(symbol, ordered)
    return module


def _ordered(block: relax.BindingBlock, known: set) -> relax.BindingBlock:
    """The block with its bindings in an order that has all they need; adds what it defines."""
    waiting, done = list(block.bindings), []
    own = {binding.var for binding in waiting}
    while waiting:
        at = next((k for k, b in enumerate(waiting) if _needs(b, own) <= known), None)
        if at is None:  # a dim is defined by what surrounds the block
            return block
        done.append(ready := waiting.pop(at))
        known |= {ready.var}
        if isinstance(ready, relax.MatchCast):
            known |= _variables(ready.ty)
    return type(block)(done)


def _needs(binding: relax.Binding, own: set) -> set:
    """The dims that a binding uses, and the variables of its block."""
    used = _variables(binding.value)
    return {var for var in used if var in own or isinstance(var.ty, PrimType)}


def _variables(node: object) -> set:
    found = set()

    def visit(var: tirx.Var) -> None:
        found.add(var)

    tvm_ffi.structural_walk(node, (tirx.Var, visit))
    return found
