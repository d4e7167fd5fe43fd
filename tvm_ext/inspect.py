"""What a model holds and what of it can be converted, found without compiling anything."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir
from onnx import defs

from . import build, pipeline, targets
from .display import as_html, as_json
from .errors import ConversionError, UnsupportedNode
from .executors import artifact
from .executors.plan import MemoryPlan, Plan
from .extend.plugin import load_installed
from .frontend import TABLE, Limits, load
from .interface import Info, Shapes, from_json

__all__ = [
    "BuiltInspection",
    "Inspection",
    "OperatorSupport",
    "Port",
    "inspect_built",
    "inspect_model",
    "support_table",
]


@dataclass(frozen=True)
class Port:
    """An input or output of a model as it is declared."""

    name: str
    type: str

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True)
class Inspection:
    """The facts of a model.

    Attributes:
        opsets: domain -> version.
        operators: operator -> number of nodes, subgraphs included, most frequent first.
        parameters: number of elements in the initializers.
        unsupported: every node that cannot be converted, sorted.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    opsets: Mapping[str, int]
    operators: Mapping[str, int]
    parameters: int
    unsupported: tuple[UnsupportedNode, ...]

    def __str__(self) -> str:
        opsets = ", ".join(f"{domain} {version}" for domain, version in self.opsets.items())
        lines = [
            f"inputs      {', '.join(map(str, self.inputs))}",
            f"outputs     {', '.join(map(str, self.outputs))}",
            f"opsets      {opsets}",
            f"parameters  {self.parameters:,}",
            f"nodes       {sum(self.operators.values())}",
        ]
        lines += [f"  {count:5}  {operator}" for operator, count in self.operators.items()]
        lines += [
            "unsupported " + (f"{len(self.unsupported)} nodes" if self.unsupported else "none")
        ]
        lines += [f"  {node}" for node in self.unsupported]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return as_html(str(self))

    def to_json(self) -> str:
        """The same facts as a JSON object."""
        return as_json(asdict(self))


def inspect_model(
    model: object,
    *,
    opt_level: int = 3,
    shapes: Shapes | None = None,
    limits: Limits | None = None,
) -> Inspection:
    """Read ``model`` and find every node that cannot be converted at ``opt_level``.

    The arguments are those of ``convert_and_build``. First the operators are looked up; if all
    are known, the graph is converted (not compiled), for what a converter refuses by attribute,
    type or shape.

    Raises:
        ModelError: the model cannot be read or contradicts itself.
    """
    loaded = load(model, limits)
    steps = pipeline.default(targets.host_target(), opt_level)
    try:
        given = build.import_model(loaded, steps, shapes, limits).output_infos
        unsupported: list[UnsupportedNode] = []
    except ConversionError as error:
        given, unsupported = [], error.nodes
    graph = loaded.graph
    nodes = Counter(_operator(node) for node in ir.traversal.RecursiveGraphIterator(graph))
    return Inspection(
        tuple(_port(v) for v in graph.inputs if v.name not in graph.initializers),
        _outputs(graph.outputs, given),
        {domain or "ai.onnx": version for domain, version in loaded.opset_imports.items()},
        dict(sorted(nodes.items(), key=lambda item: (-item[1], item[0]))),
        sum(v.const_value.size for v in graph.initializers.values() if v.const_value is not None),
        tuple(unsupported),
    )


@dataclass(frozen=True)
class BuiltInspection:
    """The facts of a saved model.

    Attributes:
        triple: the machine that it was built for, as LLVM writes it.
        features: what it needs of such a machine's CPU.
        runs_here: whether this machine can run it.
        kernels: calls of kernels in a run; None where the Relax VM runs the model.
        memory: what was planned at compile time; None where it depends on the sizes of inputs.
        sections: bytes of the parts of the file.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    triple: str
    features: tuple[str, ...]
    runs_here: bool
    kernels: int | None
    memory: MemoryPlan | None
    sections: Mapping[str, int]

    def __str__(self) -> str:
        sizes = (f"{name} {size:,}" for name, size in self.sections.items())
        here = "runs on this machine" if self.runs_here else "does not run on this machine"
        lines = [
            f"inputs      {', '.join(map(str, self.inputs))}",
            f"outputs     {', '.join(map(str, self.outputs))}",
            f"machine     {self.triple}; {here}",
            f"needs       {', '.join(self.features) or 'nothing beyond that'}",
            f"kernels     {'run by the Relax VM' if self.kernels is None else self.kernels}",
            f"memory      {self.memory or 'allocated at run time'}",
            f"bytes       {', '.join(sizes)}",
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return as_html(str(self))

    def to_json(self) -> str:
        """The same facts as a JSON object."""
        return as_json(asdict(self))


def inspect_built(path: str | os.PathLike) -> BuiltInspection:
    """What the file of a saved model says of it, also where its machine is another.

    Raises:
        OutputPathError: the file cannot be read, is not ours, or is damaged.
    """
    header, needs, plan = artifact.describe(path)
    described = header["interface"]
    return BuiltInspection(
        _described(described["inputs"]),
        _described(described["outputs"]),
        needs.triple,
        needs.features,
        needs.lacking() is None,
        _kernels(header, plan),
        None if plan is None else plan.memory,
        {name: size for name, (_, size, _) in header["sections"].items()},
    )


def _kernels(header: Mapping[str, Any], plan: Plan | None) -> int | None:
    if plan is not None:
        return len(plan.kernels)
    return len(header["symbolic"]["kernels"]) if "symbolic" in header else None


def _described(rows: Sequence[Mapping[str, Any]]) -> tuple[Port, ...]:
    return tuple(_of_info(from_json(dict(row))) for row in rows)


def _of_info(info: Info) -> Port:
    return Port(info.name, str(info).removeprefix(f"{info.name}: "))


def _outputs(values: Sequence[ir.Value], given: Sequence[Info]) -> tuple[Port, ...]:
    """What is declared of outputs; of those without a type what the conversion gave."""
    known = {info.name: _of_info(info) for info in given}
    ports = [(_port(v), v.dtype not in (None, ir.DataType.UNDEFINED)) for v in values]
    return tuple(port if typed else known.get(port.name, port) for port, typed in ports)


def _operator(node: ir.Node) -> str:
    domain = "" if node.domain == "ai.onnx" else node.domain
    return f"{domain}.{node.op_type}" if domain else node.op_type


def _port(value: ir.Value) -> Port:
    name = value.name or ""
    if value.type is None:
        return Port(name, "unknown")
    if not isinstance(value.type, ir.TensorType):
        return Port(name, str(value.type).lower())
    if value.shape is None:
        return Port(name, f"{value.dtype}[...]".lower())
    dims = ", ".join(str(d) if isinstance(d, int) else d.value or "?" for d in value.shape)
    return Port(name, f"{str(value.dtype).lower()}[{dims}]")


@dataclass(frozen=True, order=True)
class OperatorSupport:
    """Which ``since_version`` s of an operator are served, and which are not.

    Attributes:
        supported: by a converter.
        by_function: by the function body that ONNX gives, of operators with converters.
        missing: by neither.
    """

    domain: str
    operator: str
    supported: tuple[int, ...]
    by_function: tuple[int, ...]
    missing: tuple[int, ...]

    @property
    def name(self) -> str:
        """The operator with its domain, where that is not ONNX's own."""
        return f"{self.domain}.{self.operator}" if self.domain else self.operator


def support_table() -> list[OperatorSupport]:
    """Every operator that ONNX defines or a converter serves, sorted, from the registry."""
    load_installed()
    bodies: dict[tuple[str, str], dict[int, bool]] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.deprecated:
            known: Any = schema  # onnx's stubs lack what tells of bodies
            has_body = known.has_function or known.has_context_dependent_function
            bodies.setdefault((schema.domain, schema.name), {})[schema.since_version] = has_body
    for domain, operator, since in TABLE:
        bodies.setdefault((domain, operator), {}).setdefault(since, False)
    return sorted(_support(*key, versions) for key, versions in bodies.items())


def _support(domain: str, operator: str, bodies: dict[int, bool]) -> OperatorSupport:
    supported = tuple(v for v in sorted(bodies) if (domain, operator, v) in TABLE)
    others = [v for v in sorted(bodies) if v not in supported]
    return OperatorSupport(
        domain,
        operator,
        supported,
        tuple(v for v in others if bodies[v]),
        tuple(v for v in others if not bodies[v]),
    )
