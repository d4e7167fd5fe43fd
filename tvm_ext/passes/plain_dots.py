"""Products of words of bytes as arithmetic, for code generators that have no such operator.

Before: ``acc + integer_dot(x, y)``
After:  ``acc + x.byte[0] * y.byte[0] + ... + x.byte[3] * y.byte[3]``, of ``x`` unsigned
"""

import tvm
import tvm_ffi
from tvm import ir, tirx

from tvm_ext.ops.integer_dots import BYTES, DOT

__all__ = ["plain_dots"]


@tvm.transform.module_pass(opt_level=0, name="PlainDots")
def plain_dots(module, _context):
    """In all kernels of the module."""
    for symbol, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            body = tvm_ffi.structural_map(function.body, (ir.Call, _plain))
            if not body.same_as(function.body):
                module.update_func(symbol, function.with_body(body))
    return module


def _plain(call: ir.Call) -> tirx.Expr:
    if getattr(call.op, "name", "") != DOT:
        return call
    x, y = call.args
    byte = tirx.const(255, "int32")
    products = [((x >> 8 * k) & byte) * ((y << (24 - 8 * k)) >> 24) for k in range(BYTES)]
    return sum(products[1:], products[0])
