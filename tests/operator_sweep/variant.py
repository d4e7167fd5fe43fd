"""Nodes of the official suite by themselves, and many of them as one model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain

import onnx
from onnx import TensorProto, compose, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.defs import OpSchema

from tests.official_suite import exclusions

__all__ = ["Value", "Variant", "by_operator", "joined", "since_version"]

_EXPANDED = "_expanded"  # in the names of cases whose node is replaced by its body


@dataclass
class Value:
    """A graph input or output of a variant: its declaration, and what goes in or must come out."""

    info: onnx.ValueInfoProto
    data: object

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def dtype(self) -> str:
        """As schemas name it, as ``tensor(float)``."""
        return _type_name(self.info.type)


@dataclass
class Variant:
    """A node at the opset ``since`` of its domain, its inputs, and the results they must give."""

    name: str
    node: onnx.NodeProto
    since: int
    inputs: list[Value]
    outputs: list[Value]
    rtol: float
    atol: float
    opsets: dict[str, int] = field(default_factory=dict)  # of the other domains

    def graph(self) -> onnx.GraphProto:
        return helper.make_graph(
            [self.node], "node", [v.info for v in self.inputs], [v.info for v in self.outputs]
        )

    def value(self, index: int) -> Value | None:
        """The input at a place of the node; None where it is absent."""
        names = self.node.input
        return self._named(names[index]) if index < len(names) and names[index] else None

    def _named(self, name: str) -> Value:
        return next(value for value in self.inputs if value.name == name)

    @property
    def schema(self) -> OpSchema:
        return onnx.defs.get_schema(self.node.op_type, self.since, self.node.domain)

    def formals(self) -> Iterator[tuple[OpSchema.FormalParameter, Value]]:
        """The inputs, then the outputs, each behind the parameter of the schema that it is."""
        return chain(
            _matched(self.schema.inputs, self.node.input, self.inputs),
            _matched(self.schema.outputs, self.node.output, self.outputs),
        )


@cache
def by_operator() -> dict[tuple[str, str], list[Variant]]:
    """(domain, operator) -> the suite's cases of one node that pass as they are."""
    found: dict[tuple[str, str], list[Variant]] = {}
    failing = {task.name for task in exclusions()}
    for case in load_model_tests(kind="node"):
        nodes = case.model.graph.node
        if _EXPANDED in case.name or len(nodes) != 1 or f"{case.name}_cpu" in failing:
            continue
        node = nodes[0]
        opsets = {entry.domain: entry.version for entry in case.model.opset_import}
        inputs, outputs = case.data_sets[0]
        variant = Variant(
            case.name.removeprefix("test_"),
            node,
            since_version(node, opsets.pop(node.domain)),
            list(map(_value, case.model.graph.input, inputs)),
            list(map(_value, case.model.graph.output, outputs)),
            case.rtol,
            case.atol,
            opsets,
        )
        found.setdefault((node.domain, node.op_type), []).append(variant)
    return found


def _value(info: onnx.ValueInfoProto, data: object) -> Value:
    return Value(info, numpy_helper.to_array(data) if isinstance(data, TensorProto) else data)


def since_version(node: onnx.NodeProto, opset: int) -> int:
    return onnx.defs.get_schema(node.op_type, opset, node.domain).since_version


def joined(variants: Sequence[Variant]) -> tuple[onnx.ModelProto, dict[str, object], list]:
    """One model of ``variants``, of one operator and version; what goes in; what must come out.

    Names begin with the number of the variant.
    """
    first = variants[0]
    graphs = [compose.add_prefix_graph(v.graph(), f"v{k}_") for k, v in enumerate(variants)]
    graph = helper.make_graph(
        [node for g in graphs for node in g.node],
        "variants",
        [info for g in graphs for info in g.input],
        [info for g in graphs for info in g.output],
    )
    opsets = {**first.opsets, first.node.domain: first.since}
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*entry) for entry in opsets.items()]
    )
    feeds = {f"v{k}_{x.name}": x.data for k, v in enumerate(variants) for x in v.inputs}
    return model, feeds, [y.data for v in variants for y in v.outputs]


def _matched(
    formals: Sequence[OpSchema.FormalParameter], names: Sequence[str], values: Sequence[Value]
) -> Iterator[tuple[OpSchema.FormalParameter, Value]]:
    """Of the formal parameters the last may be variadic."""
    known = {value.name: value for value in values}
    last = formals[-1:] * max(len(names) - len(formals), 0)
    pairs = zip([*formals, *last], names, strict=False)
    return ((formal, known[name]) for formal, name in pairs if name in known)


def _type_name(kind: onnx.TypeProto) -> str:
    form = kind.WhichOneof("value")
    if form == "tensor_type":
        return f"tensor({_element(kind.tensor_type.elem_type)})"
    if form in ("sequence_type", "optional_type"):
        name = "seq" if form == "sequence_type" else "optional"
        return f"{name}({_type_name(getattr(kind, form).elem_type)})"
    return ""


def _element(number: int) -> str:
    return onnx.TensorProto.DataType.Name(number).lower()
