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

from ..inference_faults import fault_of, has_faulty_functions
from ..maps import map_type
from ..traverse import subgraphs
from .rule import constant

__all__ = ["infer_by_onnx", "infer_shapes", "mark_misjudged", "without_misjudged"]

_log = logging.getLogger(__name__)

_POOLINGS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_OTHER_SIZES = frozenset({"axes", "keep_aspect_ratio_policy"})  # sizes are not those of all dims
_LONG = 1 << 20  # elements
_FEW = 64  # sizes: no more are those of one tensor
_INTEGERS = frozenset({ir.DataType.INT32, ir.DataType.INT64})
_UNKNOWN = "tvm_ext.unknown"  # a domain in which nothing is inferred
_MISJUDGED = "tvm_ext.misjudged"


def infer_shapes(model: ir.Model) -> ir.Model:
    """Infer with onnx what depends on symbolic dims; folding infers the rest."""
    if any(value.shape is None or not value.shape.is_static() for value in model.graph.inputs):
        infer_by_onnx(model)
        found: set[ir.Node] = set()
        while new := [
            n for n in model.graph if n not in found and (_infer_rest(n) or _infer_kept(n))
        ]:
            found.update(new)
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


def _infer_kept(node: ir.Node) -> bool:
    """Find the dims of a Resize that are those of its operand; whether any was new.

    torch begins the sizes with ``Slice(Shape(x), 0, 2)``, of which onnx says nothing.
    """
    if node.op_type != "Resize" or node.domain or node.attributes.keys() & _OTHER_SIZES:
        return False
    sizes = _producer(node.inputs[-1], "Concat")
    part = None if sizes is None else _producer(sizes.inputs[0], "Slice")
    shape = None if part is None else _producer(part.inputs[0], "Shape")
    x, after = node.inputs[0], node.outputs[0].shape
    if part is None or shape is None or after is None or x.shape is None:
        return False
    first, last, *_ = (constant(value) for value in part.inputs[1:])
    steps = [constant(value) for value in part.inputs[4:]]
    if first is None or last is None or any(step is None or step.item() != 1 for step in steps):
        return False
    if shape.inputs[0] is not x or shape.attributes or first.item() != 0 or last.item() < 0:
        return False
    kept = min(int(last.item()), len(x.shape))
    dims = [*list(x.shape)[:kept], *list(after)[kept:]]
    if dims == list(after):
        return False
    node.outputs[0].shape = ir.Shape(dims)
    return True


def _producer(value: ir.Value | None, operator: str) -> ir.Node | None:
    """The node that gives ``value``, if it is this operator of ONNX."""
    node = None if value is None else value.producer()
    return node if node is not None and (node.domain, node.op_type) == ("", operator) else None


def infer_by_onnx(model: ir.Model, data_prop: bool = True) -> None:
    """Infer what onnx can, in place; ``data_prop``: also from values that are known."""
    with without_misjudged(model):
        try:
            if data_prop and _has_large_numbers(model):
                ShapeInferencePass(check_type=False, strict_mode=False, data_prop=False)(model)
                data_prop = not _has_long_vectors(model)
            ShapeInferencePass(check_type=False, strict_mode=False, data_prop=data_prop)(model)
        except ir.serde.SerdeError as error:  # maps, of which onnx_ir has no type
            _log.debug("nothing is inferred: %s", error)


def _has_long_vectors(model: ir.Model) -> bool:
    """Whether a vector is so long that onnx must not ask for its elements.

    It makes a dim of each, known or not, which takes seconds and GiB where they are 10 million.
    """
    return any(
        value.shape is not None
        and len(value.shape) == 1
        and isinstance(value.shape[0], int)
        and value.shape[0] > _LONG
        for value in _values(model)
    )


def _has_large_numbers(model: ir.Model) -> bool:
    """Whether there may be such vectors: one is there, or a constant may be the length of one."""
    return _has_long_vectors(model) or any(
        tensor.dtype in _INTEGERS
        and tensor.size <= _FEW
        and not all(node.op_type == "Slice" for node in value.consumers())
        and (tensor.numpy() > _LONG).any()
        for value in _values(model)
        if (tensor := value.const_value) is not None
    )


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    yield from model.graph.initializers.values()
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        yield from node.outputs
        for graph in subgraphs(node):
            yield from graph.initializers.values()


def mark_misjudged(node: ir.Node) -> None:
    """Let onnx infer nothing of ``node``: converters have found that it does so wrongly."""
    node.meta[_MISJUDGED] = True


@contextmanager
def without_misjudged(model: ir.Model) -> Iterator[None]:
    """Hide the nodes whose shape onnx infers wrongly, and those at which its inference crashes:
    of faults, or of inputs without a type, maps."""
    opset, faulty = model.opset_imports.get("", 0), has_faulty_functions(model)
    misjudged = {
        node: node.domain
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if _is_misjudged(node, opset)
        or fault_of(node) is not None
        or (faulty and node.op_identifier() in model.functions)
        or any(x is not None and map_type(x) for x in node.inputs)
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
