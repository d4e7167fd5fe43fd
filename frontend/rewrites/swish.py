"""SiLU, also called Swish, recognised from its product.

Before::

    y = Mul(x, Sigmoid(x))
    z = Mul(x, Sigmoid(Mul(x, 1.702)))

After::

    y = tvm_ext.Swish(x)
    z = tvm_ext.Swish <alpha = 1.702> (x)
"""

import onnx_ir as ir
from onnxscript.rewriter import MatchContext

from .products import flat_product
from .rule import FLOATS, FUSED, Rule

__all__ = ["Swish"]


class Swish(Rule):
    """``x * Sigmoid(alpha * x) -> Swish(x)``."""

    def pattern(self, op, x, scaled):
        return op.Mul(x, op.Sigmoid(scaled), _outputs=["product"])

    def refusal(
        self, context: MatchContext, x: ir.Value, scaled: ir.Value, product: ir.Value
    ) -> str | None:
        if x.dtype not in FLOATS:
            return f"x is {x.dtype}"
        if scaled is not x and flat_product(scaled).factors != [x]:
            return "the gate is of another value"
        if x.shape is None or product.shape is None or len(x.shape) != len(product.shape):
            return "the constant may broadcast x"
        return None

    def rewrite(self, op, x: ir.Value, scaled: ir.Value, **_) -> ir.Value:
        alpha = 1.0 if scaled is x else flat_product(scaled).scale
        return op.Swish(x, alpha=alpha, _domain=FUSED)
