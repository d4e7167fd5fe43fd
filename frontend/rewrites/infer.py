"""Symbolic dims inferred through the arithmetic on shapes that exporters write.

Before::

    s = Shape(x)                                            x is float[b, s, 32]
    q = Reshape(y, Concat(Gather(s, 0), Gather(s, 1), 4, 8))    q is float[?, ?, ?, ?]

After: ``q`` is float[b, s, 4, 8], and rules can compare its dims with others.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from ..maps import map_type

__all__ = ["infer_by_onnx", "infer_shapes", "mark_misjudged", "without_misjudged"]

_log = logging.getLogger(__name__)

_POOLINGS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_UNKNOWN = "tvm_ext.unknown"  # a domain in which nothing is inferred
_MISJUDGED = "tvm_ext.misjudged"


def infer_shapes(model: ir.Model) -> ir.Model:
    """Infer with onnx what depends on symbolic dims; folding infers the rest."""
    if any(value.shape is None or not value.shape.is_static() for value in model.graph.inputs):
        infer_by_onnx(model)
        while sum(_infer_rest(node) for node in model.graph):
            infer_by_onnx(model)
    return model


def _infer_rest(node: ir.Node) -> bool:
    """Find the dim of a Reshape that is what is left of its operand; whether that was new.

    onnx does so of static shapes only: of x[N, 64, 256] to [N, -1, 8, 8] it finds no 256.
    """
    if node.op_type != "Reshape" or node.domain or node.inputs[0] is None:
        return False
    before, after = node.inputs[0].shape, node.outputs[0].shape
    if before is None or after is None:
        return False
    symbols = Counter(dim.value for dim in before if not isinstance(dim, int))
    rest = [k for k, dim in enumerate(after) if not isinstance(dim, int) and not symbols[dim.value]]
    kept = Counter(d.value for k, d in enumerate(after) if not isinstance(d, int) and k not in rest)
    whole, part = (prod(d for d in dims if isinstance(d, int)) for dims in (before, after))
    if len(rest) != 1 or None in symbols or kept != symbols or not part or whole % part:
        return False
    dims = list(after)
    dims[rest[0]] = whole // part
    node.outputs[0].shape = ir.Shape(dims)
    return True


def infer_by_onnx(model: ir.Model, data_prop: bool = True) -> None:
    """Infer what onnx can, in place; ``data_prop``: also from values that are known."""
    inference = ShapeInferencePass(check_type=False, strict_mode=False, data_prop=data_prop)
    with without_misjudged(model):
        try:
            inference(model)
        except ir.serde.SerdeError as error:  # maps, of which onnx_ir has no type
            _log.debug("nothing is inferred: %s", error)


def mark_misjudged(node: ir.Node) -> None:
    """Let onnx infer nothing of ``node``: converters have found that it does so wrongly."""
    node.meta[_MISJUDGED] = True


@contextmanager
def without_misjudged(model: ir.Model) -> Iterator[None]:
    """Hide the nodes whose shape onnx infers wrongly, and those of inputs without a type: maps.

    At these its inference crashes.
    """
    opset = model.opset_imports.get("", 0)
    misjudged = {
        node: node.domain
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if _is_misjudged(node, opset) or any(x is not None and map_type(x) for x in node.inputs)
    }
    for node in misjudged:
        node.domain = _UNKNOWN
        model.opset_imports[_UNKNOWN] = 1  # onnx infers nothing where a domain is not imported
    try:
        yield
    finally:
        for node, domain in misjudged.items():
            node.domain = domain
        model.opset_imports.pop(_UNKNOWN, None)


def _is_misjudged(node: ir.Node, opset: int) -> bool:
    if _MISJUDGED in node.meta:
        return True
    if node.domain:
        return False
    if node.op_type == "STFT":  # taken for two-sided, which is not the default
        return "onesided" not in node.attributes
    # Windows that start in the end pad count.
    ceil_mode = bool(node.attributes.get_int("ceil_mode", 0))
    return node.op_type in _POOLINGS and ceil_mode and opset < 22
