"""Show a model to onnx's checker, without what that refuses and runtimes accept."""

from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx.external_data_helper import uses_external_data

from .table import REFUSED, TABLE

__all__ = ["check", "graphs"]

_LARGEST_PROTO = (1 << 31) - 1  # what protobuf can serialise, so what the checker can be given

_FREE_INITIALIZERS = 4  # the IR version from which on initializers need not be inputs


def check(proto: onnx.ModelProto, path: Path | None) -> None:
    """Check the file at ``path``, or else ``proto`` where protobuf can pass it on.

    Raises:
        onnx.checker.ValidationError: it is not valid ONNX.
    """
    external = path is None and any(map(uses_external_data, _proto_tensors(proto)))
    nameless = not all(graph.name for graph in graphs(proto.graph))
    strange = nameless or _undeclared(proto.graph) or _withdrawn(proto) or _is_early(proto)
    if external or strange:
        proto, path = _checkable(proto), None
    if path is not None:
        onnx.checker.check_model(str(path))
    elif proto.ByteSize() <= _LARGEST_PROTO:
        onnx.checker.check_model(proto)


def _undeclared(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs and outputs without a type, or tensors without a shape: runtimes infer those of
    outputs and ask for shapes, the checker refuses them."""
    return [
        value
        for value in (*graph.input, *graph.output)
        if value.type.WhichOneof("value") in (None, "tensor_type")
        and not (value.type.tensor_type.elem_type and value.type.tensor_type.HasField("shape"))
    ]


def _withdrawn(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes of operators that ONNX deprecated or took back: runtimes accept them, the checker
    not."""
    opsets = {_domain(entry.domain): entry.version for entry in proto.opset_import}
    return [
        node
        for graph in graphs(proto.graph)
        for node in graph.node
        if _is_withdrawn(node.op_type, opsets.get(_domain(node.domain), 0), _domain(node.domain))
    ]


def _is_early(proto: onnx.ModelProto) -> bool:
    """Whether initializers are no inputs although they had to be before IR version 4: runtimes
    accept that."""
    if proto.ir_version >= _FREE_INITIALIZERS:
        return False
    inputs = {value.name for value in proto.graph.input}
    return any(tensor.name not in inputs for tensor in proto.graph.initializer)


def _proto_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Initializers and tensor attributes of all graphs."""
    for graph in graphs(proto.graph, *proto.functions):
        if isinstance(graph, onnx.GraphProto):
            yield from graph.initializer
        for attribute in (each for node in graph.node for each in node.attribute):
            yield from [attribute.t] if attribute.HasField("t") else attribute.tensors


def graphs(
    *outer: onnx.GraphProto | onnx.FunctionProto,
) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """The graphs and functions of ``outer`` and what they nest."""
    graphs = list(outer)
    while graphs:
        graph = graphs.pop()
        yield graph
        for attribute in (each for node in graph.node for each in node.attribute):
            graphs += [attribute.g] if attribute.HasField("g") else attribute.graphs


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _is_withdrawn(op_type: str, opset: int, domain: str) -> bool:
    if not onnx.defs.has(op_type, domain):
        return domain == "" and ((domain, op_type, 1) in TABLE or (domain, op_type) in REFUSED)
    try:
        return onnx.defs.get_schema(op_type, opset, domain).deprecated
    except onnx.defs.SchemaError:  # the opset is older than the operator
        return False


def _checkable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy for the checker, which wants a type and a shape everywhere but compares none of them,
    and names of graphs.

    Withdrawn operators go to a domain that it does not know, and so does not judge; external data,
    whose folder it is not told, is left out.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    if _is_early(copy):
        copy.ir_version = _FREE_INITIALIZERS
    for graph in graphs(copy.graph):
        graph.name = graph.name or "graph"
    for value in _undeclared(copy.graph):
        tensor_type = value.type.tensor_type
        tensor_type.elem_type = tensor_type.elem_type or onnx.TensorProto.FLOAT
        tensor_type.shape.SetInParent()
    for tensor in filter(uses_external_data, _proto_tensors(copy)):
        tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0]))
    withdrawn = _withdrawn(copy)
    if withdrawn:
        copy.opset_import.add(domain="withdrawn", version=1)
    for node in withdrawn:
        node.domain = "withdrawn"
    return copy
