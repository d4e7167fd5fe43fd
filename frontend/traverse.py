"""Walk onnx_ir models without recursion: how deep a graph nests is its author's choice."""

from collections.abc import Iterator

import onnx_ir as ir

__all__ = ["nodes", "subgraphs", "tensors"]


def _graphs(model: ir.Model) -> Iterator[ir.Graph | ir.Function]:
    """The main graph and the functions, subgraphs not entered."""
    yield model.graph
    yield from model.functions.values()


def nodes(graph: ir.Graph | ir.Function) -> Iterator[tuple[ir.Node, int]]:
    """All nodes with the depth of their graph."""
    stack = [(graph, 1)]
    while stack:
        graph, depth = stack.pop()
        for node in graph:
            yield node, depth
            stack.extend((inner, depth + 1) for inner in subgraphs(node))


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs among the attributes of ``node``."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            yield from attribute.as_graphs()


def tensors(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """Initializers and tensor attributes of all graphs, with names for messages."""
    for outer in _graphs(model):
        inner = [graph for node, _ in nodes(outer) for graph in subgraphs(node)]
        for graph in [outer, *inner] if isinstance(outer, ir.Graph) else inner:
            for name, value in graph.initializers.items():
                if value.const_value is not None:
                    yield name, value.const_value
        for node, _ in nodes(outer):
            for attribute in node.attributes.values():
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    yield f"{node.name}.{attribute.name}", attribute.as_tensor()
                elif attribute.type == ir.AttributeType.TENSORS:
                    for tensor in attribute.as_tensors():
                        yield f"{node.name}.{attribute.name}", tensor
