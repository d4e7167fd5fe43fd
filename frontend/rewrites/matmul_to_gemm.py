"""A product with a matrix in its canonical form.

Before::

    y = MatMul(x, w)                       x[..., M, K], w[K, N]

After::

    y = Gemm(x, w)

ai.onnx's Gemm takes matrices only and, before opset 11, needs a bias. Where it cannot stand this is
``tvm_ext.Gemm``, which multiplies ``x`` of any rank in one kernel: no Reshape comes between the
product and what fuses behind it.
"""

import onnx_ir as ir
from onnxscript.rewriter import MatchContext

from .rule import FLOATS, FUSED, Rule, rank

__all__ = ["MatMulToGemm"]

_BIAS_IS_OPTIONAL = 11  # the opset from which ai.onnx's Gemm may lack C


class MatMulToGemm(Rule):
    """``MatMul(x, w) -> Gemm(x, w)`` for a matrix ``w``."""

    def pattern(self, op, x, w):
        return op.MatMul(x, w, _outputs=["product"])

    def refusal(self, context: MatchContext, x: ir.Value, w: ir.Value, **_) -> str | None:
        if (rank(x) or 0) < 2 or rank(w) != 2:
            return f"ranks {rank(x)} and {rank(w)}, not rows and a matrix"
        return f"Gemm of {x.dtype}" if x.dtype not in FLOATS else None

    def rewrite(self, op, x: ir.Value, w: ir.Value, product: ir.Value) -> ir.Value:
        opset = product.producer().graph.opset_imports[""]
        standard = rank(x) == 2 and opset >= _BIAS_IS_OPTIONAL
        return op.Gemm(x, w, _domain="" if standard else FUSED)
