"""Zero padding folded into the convolution behind it.

Before::

    p = Pad <mode = "constant"> (x, [0, 0, 1, 1, 0, 0, 1, 1])
    y = Conv <pads = [0, 0, 0, 0]> (p, w)

After::

    y = Conv <pads = [1, 1, 1, 1]> (x, w)

The rule is onnxscript's; it needs the pads as an input, which they are from opset 11 on.
"""

import onnx_ir as ir
from onnxscript.rewriter import RewriteRuleSet
from onnxscript.rewriter.rules.common import fuse_pad_into_conv_rule

__all__ = ["fold_pad"]

_PADS_ARE_AN_INPUT = 11


def fold_pad(model: ir.Model) -> ir.Model:
    """Fold every zero Pad that a Conv can do itself."""
    if model.opset_imports.get("", 0) >= _PADS_ARE_AN_INPUT:
        RewriteRuleSet([fuse_pad_into_conv_rule]).apply_to_model(model)
    return model
