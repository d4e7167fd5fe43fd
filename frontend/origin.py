"""Which nodes of the user's model a node stands for, however it was rewritten.

Each node carries one metadata key per node that it comes from; onnxscript gives those of all
matched nodes to what a rule writes in their place.
"""

import onnx_ir as ir

from .traverse import nodes

__all__ = ["mark_nodes", "node_labels"]

_KEY = "tvm_ext.node "


def mark_nodes(model: ir.Model) -> None:
    """Let every node of the graph and its subgraphs remember itself; before any rewrite."""
    for node, _ in nodes(model.graph):
        node.metadata_props[_KEY + _label(node)] = "origin"  # keys without a value are not merged


def node_labels(node: ir.Node) -> list[str]:
    """The nodes that ``node`` comes from, each as "operator name"; unmarked, it is its own."""
    marked = [key.removeprefix(_KEY) for key in node.metadata_props if key.startswith(_KEY)]
    return marked or [_label(node)]


def _label(node: ir.Node) -> str:
    return f"{node.op_type} {node.name or (node.outputs[0].name if node.outputs else '')}"
