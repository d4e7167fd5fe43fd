"""Let kernels with unit dims be epilogues.

FuseOps hangs a kernel behind a convolution only if it is classified as element-wise.
AnnotateTIROpPattern says so of ``x[1, 2, 8, 8] + b[1, 2, 1, 1]`` but not of
``x[1, 1, 8, 8] + b[1, 1, 1, 1]``, whose unit dims it sees as broadcast.

Before: ``op_pattern = 1`` (broadcast), an operand has the result's shape
After:  ``op_pattern = 0`` (element-wise)
"""

import tvm
from tvm import tirx
from tvm_ffi import structural_equal

__all__ = ["mark_epilogues"]

ELEMENTWISE, BROADCAST = 0, 1


@tvm.transform.module_pass(opt_level=0, name="MarkEpilogues")
def mark_epilogues(module, _context):
    """The module pass; kernels follow the convention that the last parameter is the result."""
    for symbol, func in module.functions_items():
        if not isinstance(func, tirx.PrimFunc) or func.attrs.get("op_pattern", None) != BROADCAST:
            continue
        *operands, result = (p.ty.shape for p in func.params if tirx.is_buffer_var(p))
        if any(structural_equal(shape, result) for shape in operands):
            module.update_func(symbol, func.with_attr("op_pattern", ELEMENTWISE))
    return module
