"""Which operators a model uses, on which element types; and a record of the models that passed."""

import json
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import onnx

__all__ = ["Use", "is_dynamic", "record", "recorded", "uses"]

_RECORD = "TVM_EXT_RECORD"  # the environment's name of the file that ``record`` appends to


class Use(NamedTuple):
    """An operator in a model.

    ``types`` are the element types by the type variables of its schema, those that allow several.
    """

    domain: str
    op_type: str
    since: int
    types: tuple[tuple[str, str], ...]


def uses(model: onnx.ModelProto) -> Iterator[Use]:
    """Every node of ``model``, also in subgraphs."""
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    yield from _of_graph(onnx.shape_inference.infer_shapes(model).graph, {}, opsets)


def is_dynamic(model: onnx.ModelProto) -> bool:
    """Whether a tensor among the inputs has a dim that is no number."""
    tensors = [i.type.tensor_type for i in model.graph.input if i.type.HasField("tensor_type")]
    return any(not dim.HasField("dim_value") for tensor in tensors for dim in tensor.shape.dim)


def record(model: onnx.ModelProto) -> None:
    """Append the uses of a model that passed a test to the file that the environment names."""
    if path := os.environ.get(_RECORD):
        lines = [json.dumps([is_dynamic(model), *use]) + "\n" for use in set(uses(model))]
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(lines))


def recorded(path: Path) -> Iterator[tuple[bool, Use]]:
    """What ``record`` wrote: whether the model was dynamic, and the use."""
    for line in path.read_text(encoding="utf-8").splitlines():
        dynamic, domain, op_type, since, types = json.loads(line)
        yield dynamic, Use(domain, op_type, since, tuple(map(tuple, types)))


def _of_graph(graph: onnx.GraphProto, outer: dict[str, str], opsets: dict) -> Iterator[Use]:
    types = outer | {tensor.name: _element(tensor.data_type) for tensor in graph.initializer}
    for info in chain(graph.input, graph.value_info, graph.output):
        if name := _type_name(info.type):
            types[info.name] = name
    for node in graph.node:
        schema = _schema(node, opsets)
        yield Use(
            node.domain,
            node.op_type,
            schema.since_version if schema else 1,
            tuple(_variables(schema, node, types).items()),
        )
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _of_graph(attribute.g, types, opsets)


def _schema(node: onnx.NodeProto, opsets: dict) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(node.op_type, opsets[node.domain], node.domain)
    except onnx.defs.SchemaError:
        return None  # of com.microsoft


def _variables(
    schema: onnx.defs.OpSchema | None, node: onnx.NodeProto, types: dict[str, str]
) -> dict[str, str]:
    if schema is None:
        known = [types[name] for name in (*node.input, *node.output) if name in types]
        return {"T": known[0]} if known else {}
    choices = {c.type_param_str: len(c.allowed_type_strs) for c in schema.type_constraints}
    found: dict[str, str] = {}
    pairs = _pairs(schema.inputs, node.input), _pairs(schema.outputs, node.output)
    for formal, name in chain(*pairs):
        if name in types:
            found.setdefault(formal.type_str, types[name])
    return {v: t for v, t in found.items() if choices.get(v, 1) > 1} or found


def _pairs(formals: Sequence, names: Sequence[str]) -> Iterator[tuple]:
    """Of the formal parameters the last may be variadic."""
    return zip([*formals, *formals[-1:] * (len(names) - len(formals))], names, strict=False)


def _type_name(kind: onnx.TypeProto) -> str:
    """Empty where it is not known."""
    field = kind.WhichOneof("value")
    if field in ("tensor_type", "sparse_tensor_type"):
        return _element(getattr(kind, field).elem_type)
    if field in ("sequence_type", "optional_type"):
        inner = _type_name(getattr(kind, field).elem_type)
        return f"{'seq' if field == 'sequence_type' else 'optional'}({inner})" if inner else ""
    if field == "map_type":
        key, value = _element(kind.map_type.key_type), _type_name(kind.map_type.value_type)
        return f"map({key}, {value})"
    return ""


def _element(number: int) -> str:
    return onnx.TensorProto.DataType.Name(number).lower() if number else ""
