"""A transposed convolution whose windows do not overlap, as a product and a move.

Before::

    y = ConvTranspose <strides = [s, s]> (x, w, b)            w[C, M, s, s]

After::

    c = Conv(x, v, e)                      v[M s s, C, 1, 1], each b repeated s s times
    y = DepthToSpace <mode = "CRD"> (c)

Each pixel of the input gives s x s pixels of the output, by the sums that it gave before.
"""

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext

from .rule import FLOATS, Rule, constant, rank

__all__ = ["ConvTransposeIntoConv"]

_CRD = 11  # the opset from which DepthToSpace has the mode


class ConvTransposeIntoConv(Rule):
    """``ConvTranspose(x, w, b) -> DepthToSpace(Conv(x, v, e))`` for two spatial dims."""

    def pattern(self, op, x):
        return op.ConvTranspose(x, _allow_other_inputs=True, _outputs=["spread"])

    def refusal(self, context: MatchContext, x: ir.Value, spread: ir.Value) -> str | None:
        node = spread.producer()
        weight, *bias = (constant(value) for value in node.inputs[1:] if value is not None)
        if x.dtype not in FLOATS or rank(x) != 4 or weight is None or any(b is None for b in bias):
            return "not two spatial dims and constant parameters"
        if node.graph.opset_imports[""] < _CRD:
            return f"before opset {_CRD} DepthToSpace has one mode"
        if "output_shape" in node.attributes or node.attributes.get_int("group", 1) != 1:
            return "groups, or an output_shape"
        height, width = weight.shape[2:]
        if list(node.attributes.get_ints("strides", [1, 1])) != [height, width] or height != width:
            return "windows overlap or leave gaps, or are no squares"
        plain = {"dilations": {1}, "pads": {0}, "output_padding": {0}}
        if any(set(node.attributes.get_ints(k, [])) - v for k, v in plain.items()) or height == 1:
            return "pads, dilations or single pixels"
        if node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            return "auto_pad"
        return None

    def rewrite(self, op, x: ir.Value, spread: ir.Value) -> ir.Value:
        weight, *bias = (constant(value) for value in spread.producer().inputs[1:] if value)
        block = weight.shape[2]
        filters = weight.transpose(1, 2, 3, 0).reshape(-1, weight.shape[0], 1, 1)
        parameters = [filters, *(np.repeat(b, block * block) for b in bias)]
        constants = [op.Constant(value=ir.tensor(np.ascontiguousarray(p))) for p in parameters]
        return op.DepthToSpace(op.Conv(x, *constants), blocksize=block, mode="CRD")
