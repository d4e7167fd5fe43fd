"""Operators that the rewrites recognise, in the domain ``tvm_ext``: ONNX's own, for models whose
opset lacks them."""

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
