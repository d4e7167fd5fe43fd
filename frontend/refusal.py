"""Nodes that cannot be converted, and why."""

from __future__ import annotations

import dis
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
from tvm import relax

from tvm_ext.errors import UnsupportedNode
from tvm_ext.interface import TensorType

from .origin import node_labels
from .table import REFUSED, lookup

if TYPE_CHECKING:
    from .builder import Builder

__all__ = ["UnknownRank", "is_told", "misfit", "refusal", "summary", "unsupported"]

# Whose errors say nothing about a model.
_LIBRARIES = frozenset({"ml_dtypes", "numpy", "onnx", "onnx_ir", "tvm", "tvm_ffi"})
_RAISE = dis.opmap["RAISE_VARARGS"]
_NUMBERS = {ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.FLOAT,
            ir.AttributeType.FLOATS, ir.AttributeType.STRING}  # fmt: skip
_FEW = 16  # numbers of an attribute that are told


class UnknownRank(NotImplementedError):
    """The sizes of a run decide how many dims a value has, and the model does not say."""

    def __init__(self, whose: str = "the result"):
        super().__init__(
            f"the rank of {whose} is known only at run time, and the model declares none: "
            "declare it, or give by shapes the sizes that it follows from"
        )


def unsupported(model: ir.Model) -> list[UnsupportedNode]:
    """The nodes that no converter serves, subgraphs included, sorted. Converts nothing."""
    missing = []
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        opset = model.opset_imports.get(node.domain, 1)
        since, function = lookup(node.domain, node.op_type, opset)
        if function is None:
            missing.append(refusal(node, opset, since, _why_missing(node, opset, since)))
    return sorted(missing)


def refusal(
    node: ir.Node, opset: int, since: int, reason: str, needs_rank: bool = False
) -> UnsupportedNode:
    """The report on one node; one that a rewrite made is named by the nodes that it replaces."""
    name = node.name or (node.outputs[0].name if node.outputs else "") or ""
    labels = node_labels(node)
    if f"{node.op_type} {name}" not in labels:
        name = ", ".join(labels)
    return UnsupportedNode(node.domain, node.op_type, since, opset, name, reason, needs_rank)


def _why_missing(node: ir.Node, opset: int, since: int) -> str:
    if since == 0:
        return f"opset {opset} of domain {node.domain or 'ai.onnx'!r} does not define it"
    return REFUSED.get((node.domain, node.op_type), "no converter for this operator version")


def is_told(error: Exception) -> bool:
    """Whether a converter raised ``error`` to say what is wrong with a node.

    What a library raises beneath it, or what befell its own code, says nothing about the model.
    """
    if isinstance(error, NotImplementedError):
        return True
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if not isinstance(error, ValueError) or place is None:
        return False
    frame = place.tb_frame
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    return package not in _LIBRARIES and frame.f_code.co_code[place.tb_lasti] == _RAISE


def misfit(bb: Builder, node: ir.Node, operands: Sequence[relax.Expr | None]) -> str:
    """The reason where none is told: what the operator does not take."""
    given = [_described(bb, operand) for operand in operands]
    given += [
        f"{name}={_short(attribute.value)}"
        for name, attribute in sorted(node.attributes.items())
        if attribute.type in _NUMBERS
    ]
    return f"it does not take {', '.join(given) or 'no inputs'}"


def _short(value: object) -> str:
    """The text of a number, a string, or a few of them."""
    if not isinstance(value, tuple):
        return repr(value)
    if len(value) <= _FEW:
        return repr(list(value))
    return f"[{', '.join(map(repr, value[:_FEW]))}, ... {len(value)} in all]"


def _described(bb: Builder, operand: relax.Expr | None) -> str:
    if operand is None:
        return "none"
    if operand in bb.kinds and isinstance(bb.kinds[operand], TensorType):
        return f"a tensor whose rank is known only at run time ({bb.kinds[operand].dtype})"
    if not isinstance(operand.ty, relax.TensorType):
        return "a sequence" if isinstance(operand.ty, relax.TupleType) else "a value of no tensor"
    if operand.ty.shape is None:
        return f"{bb.element(operand)} of rank {operand.ty.ndim}"
    return f"{bb.element(operand)}[{', '.join(map(str, bb.shape(operand)))}]"


def summary(error: Exception) -> str:
    """The class and the last line of an error: TVM's begin with a stack."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else error!r}"
