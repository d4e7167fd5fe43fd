"""Read an ONNX model from wherever it is, under limits: models are untrusted input."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from operator import index
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError

from tvm_ext.errors import ModelError, ModelLimitError

__all__ = ["Limits", "load", "specialise"]

_LARGEST_PROTO = (1 << 31) - 1  # what protobuf can serialise, so what the checker can be given
_INVALID = (onnx.checker.ValidationError, ir.serde.SerdeError, ValueError, TypeError, KeyError,
            IndexError, AttributeError)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """What a model may ask of this process before it is refused.

    Attributes:
        bytes: size of the model file, of all its tensors together, and of any one declared value.
        nodes: nodes in all graphs once model-local functions are inlined.
        nesting: depth of subgraphs, likewise.
    """

    bytes: int = 16 << 30
    nodes: int = 200_000
    nesting: int = 32


def load(model: object, limits: Limits | None = None) -> ir.Model:
    """The model as onnx_ir, checked against ``limits`` and the installed onnx.

    ``model`` is a path, the bytes of a file, an ``onnx.ModelProto`` or an ``onnx_ir.Model``
    (the caller's object is never changed). External data is read only from regular files inside
    the model's own folder; links are refused.

    Raises:
        ModelError: unreadable, truncated, not ONNX, invalid, or of an opset that is not known.
        ModelLimitError: larger than ``limits``.
    """
    limits = limits or Limits()
    if isinstance(model, ir.Model):
        source = "the given model"
        _check_size(model, limits)
        result = _sorted_clone(model)
    elif isinstance(model, onnx.ModelProto):
        source = "the given ModelProto"
        result = _from_proto(model, source, limits)
    elif isinstance(model, bytes | bytearray | memoryview):
        source = "the given bytes"
        result = _from_proto(_parse(bytes(model), source, limits), source, limits)
    elif isinstance(model, str | os.PathLike):
        source = os.fspath(model)
        result = _from_path(Path(model), limits)
    else:
        raise ModelError(
            f"cannot read a model from {type(model).__name__}; "
            "give a path, bytes, onnx.ModelProto or onnx_ir.Model"
        )
    _check_opsets(result, source)
    _check_values(result, source, limits)
    return result


def _from_path(path: Path, limits: Limits) -> ir.Model:
    try:
        if not path.is_file():
            found = "it is no regular file" if path.exists() else "no such file"
            raise ModelError(f"cannot read {path}: {found}")
        if path.stat().st_size > limits.bytes:
            raise ModelLimitError(
                f"{path} has {path.stat().st_size} bytes, over the limit of {limits.bytes}"
            )
        proto = _parse(path.read_bytes(), str(path), limits)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    # Given the path, the checker also refuses external data that leaves the model's folder.
    return _from_proto(proto, str(path), limits, path)


def _parse(data: bytes, source: str, limits: Limits) -> onnx.ModelProto:
    if len(data) > limits.bytes:
        raise ModelLimitError(f"{source} has {len(data)} bytes, over the limit of {limits.bytes}")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(
            f"{source} is not an ONNX model, is truncated, or nests graphs too deeply"
        ) from error
    if not proto.HasField("graph") or not (proto.opset_import or proto.ir_version):
        raise ModelError(f"{source} is not an ONNX model: it has no graph or no opset")
    return proto


def _from_proto(
    proto: onnx.ModelProto, source: str, limits: Limits, path: Path | None = None
) -> ir.Model:
    """The model of ``proto``, valid as ONNX; external data belongs to ``path``."""
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"{source} has IR version {proto.ir_version}; the installed onnx {onnx.__version__} "
            f"knows up to {onnx.IR_VERSION}: update onnx, or export for an older version"
        )
    _check_imports({entry.domain: entry.version for entry in proto.opset_import}, source)
    try:
        model = ir.from_proto(proto)
        _place_external_data(model, source, path)
        _check_size(model, limits)
        if path is not None or proto.ByteSize() <= _LARGEST_PROTO:
            onnx.checker.check_model(str(path) if path is not None else proto)
    except (ModelError, RecursionError, EncodeError, *_INVALID) as error:
        if isinstance(error, ModelError):
            raise
        if isinstance(error, RecursionError | EncodeError):
            raise ModelLimitError(f"{source} nests graphs too deeply") from error
        raise ModelError(f"{source} is not valid ONNX: {_first_line(error)}") from error
    return model


def _first_line(error: BaseException) -> str:
    """What the innermost cause says: onnx_ir wraps it once per level of the file."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else repr(error)


def _sorted_clone(model: ir.Model) -> ir.Model:
    try:
        clone = model.clone()
        clone.graph.sort()
    except (RuntimeError, *_INVALID) as error:  # a cycle is a RuntimeError of the cloner
        raise ModelError(f"the given model is not valid ONNX: {_first_line(error)}") from error
    return clone


def _graphs(model: ir.Model) -> Iterator[ir.Graph | ir.Function]:
    """The main graph and the functions, subgraphs not entered."""
    yield model.graph
    yield from model.functions.values()


def _nodes(graph: ir.Graph | ir.Function) -> Iterator[tuple[ir.Node, int]]:
    """All nodes with the depth of their graph, without recursion: depth is the attacker's."""
    stack = [(graph, 1)]
    while stack:
        graph, depth = stack.pop()
        for node in graph:
            yield node, depth
            stack.extend((inner, depth + 1) for inner in _subgraphs(node))


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            yield from attribute.as_graphs()


def _tensors(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    for outer in _graphs(model):
        inner = [graph for node, _ in _nodes(outer) for graph in _subgraphs(node)]
        for graph in [outer, *inner] if isinstance(outer, ir.Graph) else inner:
            for name, value in graph.initializers.items():
                if value.const_value is not None:
                    yield name, value.const_value
        for node, _ in _nodes(outer):
            for attribute in node.attributes.values():
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    yield f"{node.name}.{attribute.name}", attribute.as_tensor()
                elif attribute.type == ir.AttributeType.TENSORS:
                    for tensor in attribute.as_tensors():
                        yield f"{node.name}.{attribute.name}", tensor


def _place_external_data(model: ir.Model, source: str, path: Path | None) -> None:
    for name, tensor in _tensors(model):
        if isinstance(tensor, ir.ExternalTensor):
            if path is None:
                raise ModelError(
                    f"{source} keeps tensor {name!r} in the file {tensor.location!s}: "
                    "give the path of the model, so that its folder is known"
                )
            tensor.base_dir = str(path.parent.resolve())


def _check_size(model: ir.Model, limits: Limits) -> None:
    """Count as if functions were inlined: a few that call each other twice explode."""
    calls = {
        name: {n.op_identifier() for n, _ in _nodes(f)} & model.functions.keys()
        for name, f in model.functions.items()
    }
    inlined: dict[ir.OperatorIdentifier, tuple[int, int]] = {}
    try:
        for name in TopologicalSorter(calls).static_order():
            inlined[name] = _inlined_size(model.functions[name], inlined)
    except CycleError as error:
        cycle = " -> ".join(f"{domain}.{op}" for domain, op, _ in error.args[1])
        raise ModelError(f"the model's functions call each other in a cycle: {cycle}") from error
    nodes, depth = _inlined_size(model.graph, inlined)
    size = sum(tensor.nbytes for _, tensor in _tensors(model))
    for what, value, limit in (("nodes", nodes, limits.nodes),
                               ("levels of nested graphs", depth, limits.nesting),
                               ("bytes of tensors", size, limits.bytes)):  # fmt: skip
        if value > limit:
            raise ModelLimitError(
                f"the model has {value} {what}, over the limit of {limit} (see Limits)"
            )


def _inlined_size(
    graph: ir.Graph | ir.Function, inlined: Mapping[ir.OperatorIdentifier, tuple[int, int]]
) -> tuple[int, int]:
    nodes, deepest = 0, 1
    for node, depth in _nodes(graph):
        inner_nodes, inner_depth = inlined.get(node.op_identifier(), (1, 1))
        nodes += inner_nodes
        deepest = max(deepest, depth + inner_depth - 1)
    return nodes, deepest


def _check_imports(imports: Mapping[str, int], source: str) -> None:
    known = onnx.defs.onnx_opset_version()
    for domain, version in imports.items():
        if domain in ("", "ai.onnx") and not 1 <= version <= known:
            raise ModelError(
                f"{source} needs opset {version}; the installed onnx {onnx.__version__} knows "
                f"1 to {known}: update onnx, or export for an older opset"
            )


def _check_opsets(model: ir.Model, source: str) -> None:
    imports = model.graph.opset_imports
    if "ai.onnx" in imports:  # the same domain by its other name; nodes are normalised already
        imports.setdefault("", imports.pop("ai.onnx"))
    _check_imports(imports, source)
    if "" not in imports and any(node.domain == "" for node, _ in _nodes(model.graph)):
        raise ModelError(f"{source} imports no opset of the domain ai.onnx")


def _check_values(model: ir.Model, source: str, limits: Limits) -> None:
    """Every tensor has the bytes that its shape says, every declared value fits the limits."""
    for name, tensor in _tensors(model):
        # Strings have no fixed size; other classes hold an array made by the caller.
        if isinstance(tensor, ir.ExternalTensor | ir.TensorProtoTensor):
            try:
                if tensor.dtype != ir.DataType.STRING:
                    tensor.numpy()
            except (OSError, *_INVALID) as error:
                raise ModelError(f"{source}: tensor {name!r}: {_first_line(error)}") from error
    declared = [*model.graph.inputs, *(out for n, _ in _nodes(model.graph) for out in n.outputs)]
    for value in declared:
        if value.shape is None:
            continue
        elements = 1
        for dim in value.shape:
            if isinstance(dim, int) and dim < 0:
                raise ModelError(f"{source}: value {value.name!r} is declared {value.shape}")
            elements *= dim if isinstance(dim, int) else 1
        # Strings have no fixed size: at least one byte each.
        sized = value.dtype is not None and value.dtype != ir.DataType.STRING
        if elements * (value.dtype.itemsize if sized else 1) > limits.bytes:
            raise ModelLimitError(
                f"{source}: value {value.name!r} is declared {value.shape}, "
                f"over the limit of {limits.bytes} bytes"
            )


def specialise(model: ir.Model, shapes: Mapping[str, int | Sequence[int | None]] | None) -> None:
    """Give values to symbolic dims, in place.

    A key is the name of a dim (value: an int) or of an input (value: its shape; None keeps a
    dim as it is).

    Raises:
        ModelError: an unknown name, a rank that differs, or a dim given two values.
    """
    if not shapes:
        return
    binding = _Binding(model)
    for key, given in shapes.items():
        if isinstance(given, Sequence) and not isinstance(given, str):
            binding.input(key, given)
        else:
            binding.dim(key, given)
    binding.apply()


class _Binding:
    """The sizes given to symbolic dims so far."""

    def __init__(self, model: ir.Model):
        self.model = model
        self.inputs = {v.name: v for v in model.graph.inputs if not v.is_initializer()}
        self.by_name: dict[str, int] = {}
        self.by_place: dict[tuple[str, int], int] = {}  # dims without a name

    def dim(self, name: str, size: int) -> None:
        """Bind the dim ``name`` wherever it occurs."""
        symbols = {d.value for v in self.inputs.values() for d in v.shape or ()
                   if not isinstance(d, int) and d.value}  # fmt: skip
        if name not in symbols:
            if name in self.inputs:
                raise ModelError(f"input {name!r} needs a shape: a list of sizes, not {size!r}")
            raise ModelError(f"no symbolic dim {name!r}; the model has {sorted(symbols)}")
        self._bind(name, _size(name, size))

    def input(self, name: str, sizes: Sequence[int | None]) -> None:
        """Bind the dims of the input ``name``."""
        if name not in self.inputs:
            raise ModelError(f"no input {name!r}; the model has {sorted(self.inputs)}")
        value = self.inputs[name]
        if value.shape is None:
            value.shape = ir.Shape([None] * len(sizes))
        if len(sizes) != len(value.shape):
            raise ModelError(f"input {name!r} has rank {len(value.shape)}, not {len(sizes)}")
        for axis, (dim, size) in enumerate(zip(value.shape, sizes, strict=True)):
            if size is None:
                continue
            size = _size(f"{name} axis {axis}", size)
            if isinstance(dim, int):
                if dim != size:
                    raise ModelError(f"input {name!r} axis {axis} is {dim}, not {size}")
            elif dim.value is None:
                self.by_place[name, axis] = size
            else:
                self._bind(dim.value, size)

    def _bind(self, name: str, size: int) -> None:
        if self.by_name.setdefault(name, size) != size:
            raise ModelError(
                f"symbolic dim {name!r} is given two values: {self.by_name[name]} and {size}"
            )

    def apply(self) -> None:
        """Write the sizes into the model."""
        for name, value in self.inputs.items():
            if value.shape is not None:
                value.shape = ir.Shape([
                    dim if isinstance(dim, int)
                    else self.by_name.get(dim.value, self.by_place.get((name, axis), dim))
                    for axis, dim in enumerate(value.shape)
                ])  # fmt: skip
        # Symbolic dims further down were named for the general sizes ("2*N"): inference finds
        # what they are now. Dims declared static hold for all sizes.
        for node, _ in _nodes(self.model.graph):
            for value in node.outputs:
                if value.shape is not None and not value.shape.is_static():
                    value.shape = ir.Shape([
                        dim if isinstance(dim, int) else self.by_name.get(dim.value)
                        for dim in value.shape
                    ])  # fmt: skip


def _size(what: str, size: object) -> int:
    try:
        number = index(size)
    except TypeError as error:
        raise ModelError(f"{what}: {size!r} is not a size") from error
    if number < 0:
        raise ModelError(f"{what}: {number} is not a size")
    return number
