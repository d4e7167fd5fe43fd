"""Inputs that are maps: onnx_ir has no type for them, so they keep theirs as metadata."""

import onnx
import onnx_ir as ir

from tvm_ext.errors import ModelError
from tvm_ext.interface import MapType

__all__ = ["map_type", "without_maps"]

_KEY, _VALUE = "tvm_ext.map.key", "tvm_ext.map.value"


def without_maps(proto: onnx.ModelProto, source: str) -> onnx.ModelProto:
    """``proto``, its inputs, results and values that are maps without a type.

    :func:`map_type` says what such an input is.

    Raises:
        ModelError: an input is a sequence of maps, or an optional one.
    """
    graph = proto.graph
    if not any(_holds_map(v.type) for v in (*graph.input, *graph.output, *graph.value_info)):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for value in copy.graph.input:
        if _holds_map(value.type):
            _keep_as_metadata(value, source)
    for value in (*copy.graph.input, *copy.graph.output, *copy.graph.value_info):
        if _holds_map(value.type):
            value.ClearField("type")
    return copy


def map_type(value: ir.Value) -> MapType | None:
    """What the input ``value`` is if it is a map."""
    known = value.metadata_props
    return MapType(known[_KEY], known[_VALUE]) if _KEY in known else None


def _keep_as_metadata(value: onnx.ValueInfoProto, source: str) -> None:
    kind = value.type.map_type
    if not value.type.HasField("map_type") or not kind.value_type.HasField("tensor_type"):
        raise ModelError(
            f"input {value.name!r} of {source} holds maps inside of something else, or maps to "
            "no scalars: give the model the tensor that is made of it"
        )
    for key, element in ((_KEY, kind.key_type), (_VALUE, kind.value_type.tensor_type.elem_type)):
        value.metadata_props.add(key=key, value=_element(element))


def _element(element: int) -> str:
    dtype = ir.DataType(element)
    return "string" if dtype == ir.DataType.STRING else dtype.numpy().name


def _holds_map(kind: onnx.TypeProto) -> bool:
    form = kind.WhichOneof("value")
    if form in ("sequence_type", "optional_type"):
        return _holds_map(getattr(kind, form).elem_type)
    return form == "map_type"
