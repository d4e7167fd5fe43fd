"""Sparse initializers and constants as dense ones: runtimes read them so, onnx_ir does not."""

from collections.abc import Iterator
from itertools import chain
from math import prod

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvm_ext.errors import ModelLimitError

from .checker import graphs
from .limits import Limits

__all__ = ["dense"]


def dense(proto: onnx.ModelProto, limits: Limits) -> onnx.ModelProto:
    """``proto``, its sparse initializers and constants dense.

    Raises:
        ModelLimitError: one is larger than ``limits`` allow.
        ValueError: one has other indices than values, or some beyond its dims.
    """
    if not _has_any(proto):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for graph in graphs(copy.graph):
        graph.initializer.extend(_dense(each, limits) for each in graph.sparse_initializer)
        del graph.sparse_initializer[:]
    for constant in _constants(copy):
        value = _dense(constant.sparse_tensor, limits)
        constant.CopyFrom(helper.make_attribute("value", value))
    return copy


def _has_any(proto: onnx.ModelProto) -> bool:
    initializers = (graph.sparse_initializer for graph in graphs(proto.graph))
    return any(initializers) or any(True for _ in _constants(proto))


def _constants(proto: onnx.ModelProto) -> Iterator[onnx.AttributeProto]:
    """The sparse values of ``Constant`` nodes, also in functions."""
    nodes = chain(
        *(graph.node for graph in graphs(proto.graph)),
        *(function.node for function in proto.functions),
    )
    for node in nodes:
        if node.op_type == "Constant" and not node.domain:
            yield from (a for a in node.attribute if a.name == "sparse_value")


def _dense(sparse: onnx.SparseTensorProto, limits: Limits) -> onnx.TensorProto:
    name, dims = sparse.values.name, tuple(sparse.dims)
    values = numpy_helper.to_array(sparse.values).ravel()
    indices = numpy_helper.to_array(sparse.indices)
    if min(dims, default=0) < 0 or prod(dims) * values.itemsize > limits.bytes:
        raise ModelLimitError(
            f"sparse tensor {name!r} has the shape {list(dims)}, over the limit of "
            f"{limits.bytes} bytes (see Limits)"
        )
    places = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dims)
    if len(places) != len(values) or np.any((places < 0) | (places >= prod(dims))):
        raise ValueError(f"sparse tensor {name!r} has indices that do not fit its values")
    array = np.zeros(prod(dims), values.dtype)
    array[places] = values
    return numpy_helper.from_array(array.reshape(dims), name)
