"""Loops of no trip are left out, before the simplifier looks into them.

It folds constants there as everywhere, and refuses to divide by the size of an axis that is 0.

Before: ``for i in range(0): y[i] = x[i // 0]``
After:  nothing
"""

import tvm
import tvm_ffi
from tvm import tirx

__all__ = ["drop_empty_loops"]


@tvm.transform.module_pass(opt_level=0, name="DropEmptyLoops")
def drop_empty_loops(module, _context):
    """The module pass, over the kernels."""
    for symbol, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc):
            body = tvm_ffi.structural_map(func.body, (tirx.For, _dropped))
            module.update_func(symbol, func.with_body(body))
    return module


def _dropped(loop: tirx.For) -> tirx.Stmt:
    empty = isinstance(loop.extent, tirx.IntImm) and int(loop.extent) == 0
    return tirx.Evaluate(0) if empty else loop
