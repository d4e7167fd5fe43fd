"""Operators that the rewrites make, in the domain ``tvm_ext``: ONNX's own, for models whose opset
lacks them, and tables."""

from tvm_ext.ops.byte_table import LOOKUP, byte_table

from ..table import converter
from .activation import gelu, swish
from .normalization import layer_normalization, rms_normalization

for _op_type, _function in {
    "Gelu": gelu,
    "LayerNormalization": layer_normalization,
    "RMSNormalization": rms_normalization,
    "Swish": swish,
}.items():
    converter(_op_type, 1, domain="tvm_ext")(_function)


@converter("ByteTable", 1, domain="tvm_ext")
def lookup(bb, x, table):
    return bb.emit_te(byte_table, x, table, primfunc_attrs={LOOKUP: 1})
