"""The sum behind a product becomes its bias.

Before::

    p = Gemm(x, w)
    y = Add(p, b)                          b constant: [N], [1, N] or one element

After::

    y = Gemm(x, w, b)

and the same of ``tvm_ext.Gemm``.
"""

import onnx_ir as ir
from onnxscript.rewriter import MatchContext

from .rule import FUSED, Rule, constant, static_dim

__all__ = ["AddIntoBatchedGemm", "AddIntoGemm"]


class AddIntoGemm(Rule):
    """``Add(Gemm(x, w), b) -> Gemm(x, w, b)``."""

    domain = ""

    def pattern(self, op, x, w, bias):
        return op.Add(op.Gemm(x, w, _domain=self.domain, _outputs=["product"]), bias)

    def refusal(
        self, context: MatchContext, w: ir.Value, bias: ir.Value, product: ir.Value, **_
    ) -> str | None:
        array = constant(bias)
        if array is None:
            return "the bias is not constant"
        transposed = product.producer().attributes.get_int("transB", 0)
        columns = static_dim(w, 0 if transposed else 1)
        # A larger operand would make the sum larger than the product, which C cannot.
        if array.ndim > 2 or array.shape not in {(), (1,), (1, 1), (columns,), (1, columns)}:
            return f"a bias of shape {array.shape} for {columns} columns"
        return None

    def rewrite(self, op, x: ir.Value, w: ir.Value, bias: ir.Value, product: ir.Value):
        attributes = {k: v for k, v in product.producer().attributes.items() if k != "beta"}
        return op.Gemm(x, w, bias, **attributes, _domain=self.domain)


class AddIntoBatchedGemm(AddIntoGemm):
    """The same of ``tvm_ext.Gemm``."""

    domain = FUSED
