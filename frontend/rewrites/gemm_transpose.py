"""Transposes of a product's operands become its attributes.

Before::

    t = Transpose <perm = [1, 0]> (w)
    y = Gemm(x, t, b)

After::

    y = Gemm <transB = 1> (x, w, b)

and the same of ``tvm_ext.Gemm``, whose rows are never a Transpose.
"""

import onnx_ir as ir
from onnxscript.rewriter import MatchContext

from .rule import FUSED, Rule, rank

__all__ = ["TransposeIntoBatchedGemm", "TransposeIntoGemm"]


class TransposeIntoGemm(Rule):
    """``Gemm(Transpose(a), Transpose(b), c) -> Gemm(a, b, c)``, either operand or both."""

    domain = ""

    def __init__(self):
        super().__init__(remove_nodes=False)  # a Transpose may have other readers

    def pattern(self, op):
        return op.Gemm(_allow_other_inputs=True, _domain=self.domain, _outputs=["product"])

    def refusal(self, context: MatchContext, product: ir.Value) -> str | None:
        operands = product.producer().inputs[:2]
        return None if any(_untransposed(v) for v in operands) else "no operand is a Transpose"

    def rewrite(self, op, product: ir.Value) -> ir.Value:
        node = product.producer()
        operands, attributes = list(node.inputs), dict(node.attributes)
        for position, name in enumerate(("transA", "transB")):
            inner = _untransposed(operands[position])
            if inner is not None:
                operands[position] = inner
                attributes[name] = 1 - node.attributes.get_int(name, 0)
        return op.Gemm(*operands, **attributes, _domain=self.domain)


class TransposeIntoBatchedGemm(TransposeIntoGemm):
    """The same of ``tvm_ext.Gemm``."""

    domain = FUSED


def _untransposed(value: ir.Value) -> ir.Value | None:
    """The matrix that ``value`` is the transpose of."""
    node = value.producer()
    if node is None or node.op_type != "Transpose" or node.domain or rank(node.inputs[0]) != 2:
        return None
    return node.inputs[0] if list(node.attributes.get_ints("perm", [1, 0])) == [1, 0] else None
