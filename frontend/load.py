"""Read an ONNX model from wherever it is, under limits: models are untrusted input."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from tvm_ext.errors import ModelError, ModelLimitError

__all__ = ["Limits", "load", "specialise"]


@dataclass(frozen=True)
class Limits:
    """What a model may ask of this process before it is refused.

    Attributes:
        bytes: size of the model file, and of all its tensors together.
        nodes: nodes in all graphs and functions.
        nesting: depth of subgraphs.
    """

    bytes: int = 16 << 30
    nodes: int = 200_000
    nesting: int = 32


def load(model: object, limits: Limits | None = None) -> ir.Model:
    """The model as onnx_ir, checked against ``limits`` and the installed onnx.

    ``model`` is a path, the bytes of a file, an ``onnx.ModelProto`` or an ``onnx_ir.Model``
    (used as it is; the caller's object is never changed). External data is read only from
    inside the model's own folder.

    Raises:
        ModelError: unreadable, truncated, not ONNX, or an opset that is not known.
        ModelLimitError: larger than ``limits``.
    """
    limits = limits or Limits()
    if isinstance(model, ir.Model):
        result = model.clone()
    elif isinstance(model, onnx.ModelProto):
        result = _from_proto(model, "the given ModelProto")
    elif isinstance(model, bytes | bytearray | memoryview):
        result = _from_proto(_parse(bytes(model), "the given bytes", limits), "the given bytes")
    elif isinstance(model, str | os.PathLike):
        result = _from_path(Path(model), limits)
    else:
        raise ModelError(
            f"cannot read a model from {type(model).__name__}; "
            "give a path, bytes, onnx.ModelProto or onnx_ir.Model"
        )
    _check_limits(result, limits)
    _check_opsets(result)
    return result


def _from_path(path: Path, limits: Limits) -> ir.Model:
    try:
        size = path.stat().st_size
        if size > limits.bytes:
            raise ModelLimitError(f"{path} has {size} bytes, over the limit of {limits.bytes}")
        proto = _parse(path.read_bytes(), str(path), limits)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    _check_external_data(proto, path)
    model = _from_proto(proto, str(path))
    ir.external_data.set_base_dir(model.graph, str(path.parent.resolve()))
    return model


def _parse(data: bytes, source: str, limits: Limits) -> onnx.ModelProto:
    if len(data) > limits.bytes:
        raise ModelLimitError(f"{source} has {len(data)} bytes, over the limit of {limits.bytes}")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(f"{source} is not an ONNX model, or is truncated") from error
    if not proto.HasField("graph") or not (proto.opset_import or proto.ir_version):
        raise ModelError(f"{source} is not an ONNX model: it has no graph or no opset")
    return proto


def _check_external_data(proto: onnx.ModelProto, path: Path) -> None:
    """Refuse locations outside the model's folder, links included, before anything is opened."""
    folder = path.parent.resolve()
    for tensor in onnx.external_data_helper._get_all_tensors(proto):
        if not onnx.external_data_helper.uses_external_data(tensor):
            continue
        location = onnx.external_data_helper.ExternalDataInfo(tensor).location
        file = folder / location
        if not file.resolve().is_relative_to(folder):
            raise ModelError(f"tensor {tensor.name!r} points outside the model's folder: {location}")
        if file.is_symlink() or not file.is_file():
            raise ModelError(f"tensor {tensor.name!r}: no regular file {location} beside the model")


def _from_proto(proto: onnx.ModelProto, source: str) -> ir.Model:
    try:
        onnx.checker.check_model(proto) if proto.ByteSize() < 2**31 - 1 else None
        return ir.from_proto(proto)
    except (onnx.checker.ValidationError, ValueError, TypeError, KeyError, RecursionError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ModelError(f"{source} is not valid ONNX: {first}") from error


def _check_limits(model: ir.Model, limits: Limits) -> None:
    nodes, deepest = 0, 0
    stack = [(graph, 1) for graph in (model.graph, *model.functions.values())]
    while stack:
        graph, depth = stack.pop()
        deepest = max(deepest, depth)
        for node in graph:
            nodes += 1
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                    stack.append((attribute.as_graph(), depth + 1))
                elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
                    stack.extend((g, depth + 1) for g in attribute.as_graphs())
    size = sum(v.const_value.nbytes for v in model.graph.initializers.values()
               if v.const_value is not None)
    for what, value, limit in (("nodes", nodes, limits.nodes),
                               ("levels of nested graphs", deepest, limits.nesting),
                               ("bytes of tensors", size, limits.bytes)):
        if value > limit:
            raise ModelLimitError(f"the model has {value} {what}, over the limit of {limit}")


def _check_opsets(model: ir.Model) -> None:
    newest = onnx.defs.onnx_opset_version()
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx"))
    if opset is None:
        if any(node.domain in ("", "ai.onnx") for node in model.graph):
            raise ModelError("the model imports no opset of the domain ai.onnx")
        return
    if not 1 <= opset <= newest:
        raise ModelError(f"the model needs opset {opset}; the installed onnx knows 1 to {newest}")


def specialise(model: ir.Model, shapes: Mapping[str, int | Sequence[int | None]] | None) -> None:
    """Give values to symbolic dims, in place.

    A key is the name of a dim (value: an int) or of an input (value: its shape; None keeps a
    dim as it is).

    Raises:
        ModelError: an unknown name, a rank that differs, or a dim given two values.
    """
    if not shapes:
        return
    inputs = {v.name: v for v in model.graph.inputs if v.name not in model.graph.initializers}
    by_name: dict[str, int] = {}
    by_place: dict[tuple[str, int], int] = {}

    def bind(value: ir.Value, axis: int, size: int) -> None:
        dim = value.shape[axis]
        if isinstance(dim, int):
            if dim != size:
                raise ModelError(f"input {value.name!r} axis {axis} is {dim}, not {size}")
        elif dim.value is None:
            by_place[value.name, axis] = size
        elif by_name.setdefault(dim.value, size) != size:
            raise ModelError(
                f"symbolic dim {dim.value!r} is given two values: {by_name[dim.value]} and {size}"
            )

    symbols = {d.value for v in inputs.values() if v.shape for d in v.shape
               if not isinstance(d, int) and d.value}
    for key, given in shapes.items():
        if isinstance(given, int):
            if key not in symbols:
                raise ModelError(f"no symbolic dim {key!r}; the model has {sorted(symbols)}")
            _positive(key, given)
            if by_name.setdefault(key, given) != given:
                raise ModelError(f"symbolic dim {key!r} is given two values")
            continue
        if key not in inputs:
            raise ModelError(f"no input {key!r}; the model has {sorted(inputs)}")
        value = inputs[key]
        if value.shape is None:
            value.shape = ir.Shape([None] * len(given))
        if len(given) != len(value.shape):
            raise ModelError(f"input {key!r} has rank {len(value.shape)}, not {len(given)}")
        for axis, size in enumerate(given):
            if size is not None:
                _positive(f"{key} axis {axis}", size)
                bind(value, axis, int(size))
    _apply(model, by_name, by_place)


def _positive(what: str, size: int) -> None:
    if size < 0:
        raise ModelError(f"{what}: {size} is not a size")


def _apply(model: ir.Model, by_name: dict[str, int], by_place: dict[tuple[str, int], int]) -> None:
    for value in model.graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape([
                dim if isinstance(dim, int)
                else by_name.get(dim.value, by_place.get((value.name, axis), dim))
                for axis, dim in enumerate(value.shape)
            ])
    # What was declared downstream was declared for the general sizes: let inference find it.
    for node in model.graph:
        for value in node.outputs:
            if value.shape is not None and not value.shape.is_static():
                value.shape = ir.Shape([
                    by_name.get(dim.value, dim) if not isinstance(dim, int) else dim
                    for dim in value.shape
                ])
