"""What a model may ask of this process."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from math import prod

import onnx_ir as ir

from tvm_ext.errors import ModelError, ModelLimitError

from .traverse import nodes, tensors

__all__ = ["Limits", "check_size", "check_value"]


@dataclass(frozen=True)
class Limits:
    """What a model may ask of this process before it is refused.

    Attributes:
        bytes: size of the model file, of all its tensors together, and of any one value.
        nodes: nodes in all graphs once model-local functions are inlined.
        nesting: depth of subgraphs, likewise.
    """

    bytes: int = 16 << 30
    nodes: int = 200_000
    nesting: int = 32


def check_size(model: ir.Model, limits: Limits) -> None:
    """Count as if functions were inlined: a few that call each other twice explode."""
    calls = {
        name: {n.op_identifier() for n, _ in nodes(f)} & model.functions.keys()
        for name, f in model.functions.items()
    }
    inlined: dict[ir.OperatorIdentifier, tuple[int, int]] = {}
    try:
        for name in TopologicalSorter(calls).static_order():
            inlined[name] = _inlined_size(model.functions[name], inlined)
    except CycleError as error:
        cycle = " -> ".join(f"{domain}.{op}" for domain, op, _ in error.args[1])
        raise ModelError(f"the model's functions call each other in a cycle: {cycle}") from error
    count, depth = _inlined_size(model.graph, inlined)
    size = sum(tensor.nbytes for _, tensor in tensors(model))
    for what, value, limit in (("nodes", count, limits.nodes),
                               ("levels of nested graphs", depth, limits.nesting),
                               ("bytes of tensors", size, limits.bytes)):  # fmt: skip
        if value > limit:
            raise ModelLimitError(
                f"the model has {value} {what}, over the limit of {limit} (see Limits)"
            )


def check_value(name: str | None, shape: Iterable[object], itemsize: int, limits: Limits) -> None:
    """Count each symbolic dim as 1.

    Raises:
        ModelLimitError: the value has more bytes than ``limits`` allow.
    """
    dims = list(shape)
    if prod(dim for dim in dims if isinstance(dim, int)) * itemsize > limits.bytes:
        raise ModelLimitError(
            f"value {name!r} has the shape [{', '.join(map(str, dims))}], "
            f"over the limit of {limits.bytes} bytes (see Limits)"
        )


def _inlined_size(
    graph: ir.Graph | ir.Function, inlined: Mapping[ir.OperatorIdentifier, tuple[int, int]]
) -> tuple[int, int]:
    count, deepest = 0, 1
    for node, depth in nodes(graph):
        inner_count, inner_depth = inlined.get(node.op_identifier(), (1, 1))
        count += inner_count
        deepest = max(deepest, depth + inner_depth - 1)
    return count, deepest
