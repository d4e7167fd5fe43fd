"""Nodes at which the shape inference of onnx 1.23 crashes, or does not end.

They are no valid ONNX, but models are untrusted: nothing is inferred of them, and they are refused.
"""

import re
from collections.abc import Callable

import onnx_ir as ir

from .traverse import nodes

__all__ = ["fault_of", "has_faulty_functions"]

_TERM = r"[A-Za-z\s]*(\.\.\.)?[A-Za-z\s]*"
_EQUATION = re.compile(rf"{_TERM}(,{_TERM})*(->{_TERM})?")
_LARGEST = 1 << 31


def fault_of(node: ir.Node) -> str | None:
    """Why onnx must not be asked about ``node``; None where it may be."""
    name, test = _TESTS.get((node.domain, node.op_type), ("", None))
    attribute = node.attributes.get(name)
    if test is None or attribute is None:
        return None
    if attribute.is_ref():
        return f"{name} is told by whoever calls the function"
    return test(node, attribute.value)


def has_faulty_functions(model: ir.Model) -> bool:
    """Whether onnx must not look into the functions of ``model``."""
    functions = model.functions.values()
    return any(fault_of(node) for function in functions for node, _ in nodes(function))


def _axis(_node: ir.Node, axis: int) -> str | None:
    return None if abs(axis) < _LARGEST else f"axis is {axis}"


def _batch_dims(_node: ir.Node, number: int) -> str | None:
    return None if 0 <= number < _LARGEST else f"batch_dims is {number}; it has to be at least 0"


def _outputs(node: ir.Node, number: int) -> str | None:
    count = len(node.outputs)
    return None if number == count else f"num_outputs is {number}, and it has {count} outputs"


def _equation(_node: ir.Node, equation: str) -> str | None:
    if _EQUATION.fullmatch(equation):
        return None
    return f"equation is {equation!r}; terms have to be letters and at most one ellipsis"


_TESTS: dict[tuple[str, str], tuple[str, Callable[..., str | None]]] = {
    ("", "Einsum"): ("equation", _equation),
    ("", "GatherND"): ("batch_dims", _batch_dims),
    ("", "LayerNormalization"): ("axis", _axis),
    ("", "Split"): ("num_outputs", _outputs),
}
