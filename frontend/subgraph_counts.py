"""How many inputs and outputs the graphs of a control flow node have, and have to have."""

from collections.abc import Callable, Iterator

import onnx_ir as ir

from .traverse import subgraphs

__all__ = ["wrong_counts"]


def wrong_counts(node: ir.Node, since: int) -> Iterator[str]:
    """What is wrong with the counts of ``node``, of the version ``since`` of its operator."""
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    graphs = list(subgraphs(node))
    if rule is None or not graphs or any(a.is_ref() for a in node.attributes.values()):
        return
    yield from rule(node, since, graphs)


def _if(node: ir.Node, _since: int, graphs: list[ir.Graph]) -> Iterator[str]:
    for graph in graphs:
        yield from _inputs(graph, 0)
        if len(graph.outputs) != len(node.outputs):
            yield f"a branch has {len(graph.outputs)} outputs, the node has {len(node.outputs)}"


def _loop(node: ir.Node, _since: int, graphs: list[ir.Graph]) -> Iterator[str]:
    carried = max(len(node.inputs) - 2, 0)
    yield from _inputs(graphs[0], 2 + carried)
    yield from _outputs(graphs[0], 1 + carried)
    if len(node.outputs) > len(graphs[0].outputs) - 1:
        yield (
            f"its body has {len(graphs[0].outputs)} outputs, the condition among them, "
            f"the node has {len(node.outputs)}"
        )


def _scan(node: ir.Node, since: int, graphs: list[ir.Graph]) -> Iterator[str]:
    operands = len(node.inputs) - (since == 8)  # of which the first is the lengths
    count = node.attributes["num_scan_inputs"].as_int()
    if not 1 <= count <= operands:
        yield f"num_scan_inputs is {count}; it has to be between 1 and {operands}"
    yield from _inputs(graphs[0], operands)
    yield from _outputs(graphs[0], operands - count)
    if len(node.outputs) > len(graphs[0].outputs):
        yield f"its body has {len(graphs[0].outputs)} outputs, the node has {len(node.outputs)}"
    stacked = len(graphs[0].outputs) - operands + count
    for name, each in (("input", count), ("output", stacked)):
        for what in (f"scan_{name}_axes", f"scan_{name}_directions"):
            given = node.attributes.get(what)
            if given is not None and len(given.as_ints()) != each:
                yield f"{what} are {list(given.as_ints())}; there have to be {each}"


def _sequence_map(node: ir.Node, _since: int, graphs: list[ir.Graph]) -> Iterator[str]:
    yield from _inputs(graphs[0], len(node.inputs))
    yield from _outputs(graphs[0], len(node.outputs))


def _inputs(graph: ir.Graph, count: int) -> Iterator[str]:
    # Initializers may stand among the inputs.
    given = sum(value.name not in graph.initializers for value in graph.inputs)
    if given != count:
        yield f"graph {graph.name!r} has {given} inputs; it has to have {count}"


def _outputs(graph: ir.Graph, least: int) -> Iterator[str]:
    if len(graph.outputs) < least:
        yield f"graph {graph.name!r} has {len(graph.outputs)} outputs; it needs {least} at least"


_RULES: dict[str, Callable[[ir.Node, int, list[ir.Graph]], Iterator[str]]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}
