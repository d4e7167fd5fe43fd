"""Sums and products seen as flat lists, in whatever order and nesting a model writes them."""

from dataclasses import dataclass, field

import onnx_ir as ir

from .rule import scalar

__all__ = ["Product", "flat_product", "flat_sum"]

_DEEPEST = 6  # of the nesting that is followed


@dataclass
class Product:
    """A constant times values, one of them as often as its power."""

    scale: float = 1.0
    factors: list[ir.Value] = field(default_factory=list)

    def is_near(self, scale: float) -> bool:
        """Whether the constant is ``scale`` as far as float16 and published digits tell."""
        return abs(self.scale - scale) <= 1e-3 * abs(scale)


def flat_product(value: ir.Value, depth: int = _DEEPEST) -> Product:
    """``value`` through Mul, Div by a constant and Pow to a small whole power."""
    number = scalar(value)
    if number is not None:
        return Product(number)
    node = value.producer()
    operator = node.op_type if node is not None and not node.domain and depth else None
    if operator == "Mul":
        left, right = (flat_product(v, depth - 1) for v in node.inputs)
        return Product(left.scale * right.scale, left.factors + right.factors)
    divisor = scalar(node.inputs[1]) if operator in ("Div", "Pow") else None
    if operator == "Div" and divisor:
        left = flat_product(node.inputs[0], depth - 1)
        return Product(left.scale / divisor, left.factors)
    if operator == "Pow" and divisor in (2, 3):
        return Product(1.0, [node.inputs[0]] * int(divisor))
    return Product(1.0, [value])


def flat_sum(value: ir.Value) -> tuple[float, ir.Value] | None:
    """``(c, v)`` of a sum of a constant and a value."""
    node = value.producer()
    if node is None or node.op_type != "Add" or node.domain:
        return None
    for number, other in (node.inputs, node.inputs[::-1]):
        if scalar(number) is not None:
            return scalar(number), other
    return None
