"""CompactBufferAllocation, where TVM can tell what of a buffer is used.

Of rows of symbolic length that are fused, of a transposed convolution for one, it may fail where it
divides by that length. A buffer that is left whole is right, too: it only is larger.
"""

import logging

import tvm
from tvm import IRModule, s_tir

__all__ = ["compact_buffers"]

_log = logging.getLogger(__name__)
_COMPACT = s_tir.transform.CompactBufferAllocation()


@tvm.transform.module_pass(opt_level=0, name="CompactBuffers")
def compact_buffers(module: IRModule, _context: object) -> IRModule:
    """The module pass: kernels that TVM fails on keep their buffers whole."""
    try:
        return _COMPACT(module)
    except tvm.error.InternalError:
        functions = {name: _compacted(name, f) for name, f in module.functions_items()}
        return IRModule(functions, attrs=module.attrs)


def _compacted(name: tvm.ir.GlobalVar, function: tvm.ir.BaseFunc) -> tvm.ir.BaseFunc:
    try:
        return _COMPACT(IRModule({name: function}))[name]
    except tvm.error.InternalError as error:
        _log.debug("the buffers of %s stay whole: %s", name.name_hint, error)
        return function
