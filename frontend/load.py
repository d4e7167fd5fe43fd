"""Read an ONNX model from wherever it is, under limits: models are untrusted input."""

import os
from itertools import count
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError

from tvm_ext.errors import ModelError, ModelLimitError

from .checker import check
from .limits import Limits, check_size
from .maps import map_type, without_maps
from .sparse import dense
from .traverse import nodes, subgraphs, tensors
from .validity import INVALID, check_imports, check_opsets, check_values, first_line

__all__ = ["load"]

_UNKNOWN = {-1, "-1", "?", "None"}


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
        check_size(model, limits)
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
    check_opsets(result, source)
    _forget_unknown_dims(result)
    check_values(result, source, limits)
    _check_inputs(result, source)
    _name_each_output(result.graph)
    _forget_carried_dims(result)
    return result


def _forget_unknown_dims(model: ir.Model) -> None:
    """What exporters write for a dim of any size is no size, and no name that makes dims equal."""
    graphs = [model.graph, *(inner for node, _ in nodes(model.graph) for inner in subgraphs(node))]
    results = (out for node, _ in nodes(model.graph) for out in node.outputs)
    for value in (*(value for graph in graphs for value in graph.inputs), *results):
        dims = [] if value.shape is None else [getattr(d, "value", d) for d in value.shape]
        if not _UNKNOWN.isdisjoint(dims):
            value.shape = ir.Shape(None if dim in _UNKNOWN else dim for dim in dims)


def _check_inputs(model: ir.Model, source: str) -> None:
    """Nodes say what outputs and values inside are, but nothing what an input is."""
    for value in model.graph.inputs:
        if value.type is None and map_type(value) is None:
            raise ModelError(
                f"input {value.name!r} of {source} has no type: declare its element type and shape"
            )


def _forget_carried_dims(model: ir.Model) -> None:
    """A Loop may change dims that it carries: of its body's inputs, what its results confirm stays.

    Exporters declare the dims of the first trip, and folding would take those for all.
    """
    for node, _ in nodes(model.graph):
        attribute = node.attributes.get("body") if node.op_type == "Loop" else None
        if attribute is not None and attribute.type == ir.AttributeType.GRAPH:
            body = attribute.as_graph()
            for before, after in zip(body.inputs[2:], body.outputs[1:], strict=False):
                if before.shape is not None:
                    known = [] if after.shape is None else list(after.shape)
                    same = len(known) == len(before.shape)
                    before.shape = ir.Shape(
                        d if same and d == known[k] else None for k, d in enumerate(before.shape)
                    )


def _name_each_output(graph: ir.Graph) -> None:
    """Give an output that is declared again a name of its own, as results are told apart by it."""
    taken = {value.name for node in graph for value in node.outputs}
    taken |= {value.name for value in (*graph.inputs, *graph.initializers.values())}
    for k, value in enumerate(graph.outputs):
        if value in graph.outputs[:k]:
            names = (f"{value.name}_{number}" for number in count(2))
            name = next(name for name in names if name not in taken)
            taken.add(name)
            copy = ir.Value(name=name, type=value.type, shape=value.shape)
            graph.append(ir.Node("", "Identity", [value], outputs=[copy]))
            graph.outputs[k] = copy


def _from_path(path: Path, limits: Limits) -> ir.Model:
    try:
        str(path).encode()  # as the checker reads it
        if not path.is_file():
            found = "it is no regular file" if path.exists() else "no such file"
            raise ModelError(f"cannot read {path}: {found}")
        if path.stat().st_size > limits.bytes:
            raise ModelLimitError(
                f"{path} has {path.stat().st_size} bytes, over the limit of {limits.bytes}"
            )
        proto = _parse(path.read_bytes(), str(path), limits)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name, or no UTF-8
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
    check_imports(((entry.domain, entry.version) for entry in proto.opset_import), source)
    try:
        plain = dense(without_maps(proto, source), limits)
        model = ir.from_proto(plain)
        _keep_types(model.graph, plain.graph)
        _place_external_data(model, source, path)
        check_size(model, limits)
        if _sort(model):
            proto, path = ir.to_proto(model), None
        check(proto, path)
    except (ModelError, RecursionError, EncodeError, *INVALID) as error:
        if isinstance(error, ModelError):
            raise
        if isinstance(error, RecursionError | EncodeError):
            raise ModelLimitError(f"{source} nests graphs too deeply") from error
        raise ModelError(f"{source} is not valid ONNX: {first_line(error)}") from error
    return model


def _sort(model: ir.Model) -> bool:
    """Put each node behind those that it reads; whether any was not.

    Runtimes do so, and tools rely on it (what turns models into float16); the checker does not.
    """
    before = list(ir.traversal.RecursiveGraphIterator(model.graph))
    model.graph.sort()
    return before != list(ir.traversal.RecursiveGraphIterator(model.graph))


def _keep_types(graph: ir.Graph, proto: onnx.GraphProto) -> None:
    """Give inputs and initializers the types that outputs of their names took: those may have
    none, or fewer dims that are known."""
    for value, declared in zip(graph.inputs, proto.input, strict=True):
        if value.type is None or value.is_graph_output():
            ir.serde.deserialize_value_info_proto(declared, value)
    _keep_initializer_types(graph)


def _keep_initializer_types(graph: ir.Graph) -> None:
    for value in graph.initializers.values():
        if value.type is None and value.const_value is not None:
            value.dtype, value.shape = value.const_value.dtype, value.const_value.shape


def _sorted_clone(model: ir.Model) -> ir.Model:
    try:
        clone = model.clone()
        clone.graph.sort()
        _keep_initializer_types(clone.graph)
    except RuntimeError as error:  # of the cloner
        raise ModelError(
            "the given model is not valid ONNX: a node reads what no node before it gives; "
            "model.graph.sort() puts them in order, where they are no cycle"
        ) from error
    except INVALID as error:
        raise ModelError(f"the given model is not valid ONNX: {first_line(error)}") from error
    return clone


def _place_external_data(model: ir.Model, source: str, path: Path | None) -> None:
    for name, tensor in tensors(model):
        if isinstance(tensor, ir.ExternalTensor):
            if path is None:
                raise ModelError(
                    f"{source} keeps tensor {name!r} in the file {tensor.location!s}: "
                    "give the path of the model, so that its folder is known"
                )
            tensor.base_dir = str(path.parent.resolve())
            if os.path.islink(tensor.path):
                raise ModelError(
                    f"{source} keeps tensor {name!r} in the file {tensor.location!s}, which is a "
                    "link: put the file itself beside the model"
                )
            if not os.path.lexists(tensor.path):
                raise ModelError(
                    f"{source} keeps tensor {name!r} in the file {tensor.location!s}, which is not "
                    "there: keep it beside the model"
                )
