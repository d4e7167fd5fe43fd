"""GELU recognised from its arithmetic, in the form with erf and in the one with tanh.

Before::

    y = x * 0.5 * (1 + Erf(x / sqrt(2)))
    z = x * 0.5 * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))

in any order of the factors and terms, with Mul, Div by a constant or Pow. After::

    y = tvm_ext.Gelu(x)
    z = tvm_ext.Gelu <approximate = "tanh"> (x)
"""

from math import pi, sqrt

import onnx_ir as ir
from onnxscript.rewriter import MatchContext

from .products import flat_product, flat_sum
from .rule import FLOATS, FUSED, Rule, scalar

__all__ = ["Gelu"]

_CUBIC = 0.044715


class Gelu(Rule):
    """Fires on the outermost product; the arithmetic inside goes if no one else reads it."""

    def __init__(self):
        super().__init__(remove_nodes=False)

    def pattern(self, op, a, b):
        return op.Mul(a, b, _outputs=["product"])

    def refusal(self, context: MatchContext, product: ir.Value, **_) -> str | None:
        found = _argument(product)
        if found is None:
            return "no GELU"
        x, _ = found
        if x.dtype not in FLOATS or x.shape is None or product.shape is None:
            return f"x is {x.dtype} of shape {x.shape}"
        # A constant of higher rank than x would have given its rank to the result.
        return None if len(x.shape) == len(product.shape) else "the constants broadcast x"

    def rewrite(self, op, product: ir.Value, **_) -> ir.Value:
        x, approximate = _argument(product)
        return op.Gelu(x, approximate=approximate, _domain=FUSED)


def _argument(product: ir.Value) -> tuple[ir.Value, str] | None:
    """``x`` and the form, if ``product`` is ``x / 2`` times one plus a curve of ``x``."""
    whole = flat_product(product)
    if len(whole.factors) != 2 or not whole.is_near(0.5):
        return None
    for x, bracket in (whole.factors, whole.factors[::-1]):
        terms = flat_sum(bracket)
        if terms is None or terms[0] != 1:
            continue
        curve = terms[1].producer()
        if curve is None or curve.domain:
            continue
        if curve.op_type == "Erf" and _is_scaled(curve.inputs[0], x, sqrt(0.5)):
            return x, "none"
        if curve.op_type == "Tanh" and _is_cubic(curve.inputs[0], x):
            return x, "tanh"
    return None


def _is_scaled(value: ir.Value, x: ir.Value, scale: float) -> bool:
    product = flat_product(value)
    return product.factors == [x] and product.is_near(scale)


def _is_cubic(value: ir.Value, x: ir.Value) -> bool:
    """``sqrt(2 / pi) * (x + c x**3)`` or ``sqrt(2 / pi) * x * (1 + c x**2)``."""
    outer = flat_product(value)
    if not outer.is_near(sqrt(2 / pi)):
        return False
    if len(outer.factors) == 2 and x in outer.factors:
        inner = outer.factors[1 - outer.factors.index(x)]
        terms = flat_sum(inner)
        return terms is not None and terms[0] == 1 and _is_power(terms[1], x, 2)
    if len(outer.factors) != 1:
        return False
    node = outer.factors[0].producer()
    if node is None or node.op_type != "Add" or node.domain or x not in node.inputs:
        return False
    cube = node.inputs[1 - list(node.inputs).index(x)]
    return scalar(cube) is None and _is_power(cube, x, 3)


def _is_power(value: ir.Value, x: ir.Value, exponent: int) -> bool:
    product = flat_product(value)
    return product.factors == [x] * exponent and product.is_near(_CUBIC)
