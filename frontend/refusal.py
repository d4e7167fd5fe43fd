"""Nodes that cannot be converted, and why."""

import onnx_ir as ir

from tvm_ext.errors import UnsupportedNode

from .origin import node_labels
from .table import REFUSED, lookup

__all__ = ["refusal", "summary", "unsupported"]


def unsupported(model: ir.Model) -> list[UnsupportedNode]:
    """The nodes that no converter serves, subgraphs included, sorted. Converts nothing."""
    missing = []
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        opset = model.opset_imports.get(node.domain, 1)
        since, function = lookup(node.domain, node.op_type, opset)
        if function is None:
            missing.append(refusal(node, opset, since, _why_missing(node, opset, since)))
    return sorted(missing)


def refusal(node: ir.Node, opset: int, since: int, reason: str) -> UnsupportedNode:
    """The report on one node; one that a rewrite made is named by the nodes that it replaces."""
    name = node.name or (node.outputs[0].name if node.outputs else "") or ""
    labels = node_labels(node)
    if f"{node.op_type} {name}" not in labels:
        name = ", ".join(labels)
    return UnsupportedNode(node.domain, node.op_type, since, opset, name, reason)


def _why_missing(node: ir.Node, opset: int, since: int) -> str:
    if since == 0:
        return f"opset {opset} of domain {node.domain or 'ai.onnx'!r} does not define it"
    return REFUSED.get((node.domain, node.op_type), "no converter for this operator version")


def summary(error: Exception) -> str:
    """The class and the last line of an error: TVM's begin with a stack."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else error!r}"
