"""Constant folding: nodes whose inputs are known, and shapes that are static.

Before::

    s = Shape(x)             x is float[2, 3, 4]
    n = Gather(s, 1)
    t = Transpose(w)         w is an initializer

After: ``n`` and ``t`` are initializers.

Identity and Dropout (of inference) go, as do ``If`` with a known condition and sequences that
are only built to be indexed. onnxscript folds; what may be folded is decided here, because it
evaluates first and looks at the size of the result afterwards.
"""

import logging
from math import prod

import onnx_ir as ir
from onnxscript.optimizer import fold_constants_ir

from .infer import without_misjudged

__all__ = ["RANDOM", "fold_constants", "is_random"]

_log = logging.getLogger(__name__)

RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
})  # fmt: skip
# Kept so that quantisation stays visible, but for what makes 8-bit weights.
_QUANTISED = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
# One pass over their operands: folded whatever their size. Others (Conv, MatMul, Resize, ...)
# may cost far more than their operands' size suggests.
_CHEAP = frozenset({
    "Add", "Cast", "Clip", "Concat", "Div", "Flatten", "Gather", "Mul", "Neg", "QuantizeLinear",
    "Reciprocal", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum",
    "ReduceSumSquare", "Reshape", "Slice", "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze",
})  # fmt: skip
_SMALL = 1 << 13  # elements that any operator may read
_LARGEST_RESULT = 1 << 20  # bytes a node may add to the model; more only if it drops as many
_UNLIMITED = 1 << 62


def fold_constants(model: ir.Model) -> ir.Model:
    """Fold until nothing more is known; types and shapes are inferred on the way."""
    _name_cast_types(model)
    try:
        with without_misjudged(model):
            fold_constants_ir(model, onnx_shape_inference=True, input_size_limit=_UNLIMITED,
                              output_size_limit=_UNLIMITED, should_fold=_affordable)  # fmt: skip
    except RuntimeError as error:
        # onnxscript 0.7 fails on some valid nodes (SplitToSequence whose split is no constant). It
        # replaces nodes one by one, so what is folded so far stands, and the rest is converted.
        _log.debug("folding stops: %s: %s", error, error.__cause__)
    return model


def _name_cast_types(model: ir.Model) -> None:
    """Make ``CastLike`` a ``Cast``: onnxscript does that too, but forgets the attributes."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type != "CastLike" or node.domain != "" or node.inputs[1].dtype is None:
            continue
        to = ir.AttrInt64("to", int(node.inputs[1].dtype))
        cast = ir.Node(
            "", "Cast", node.inputs[:1], [to, *node.attributes.values()], num_outputs=1,
            name=node.name, metadata_props=node.metadata_props,
        )  # fmt: skip
        ir.convenience.replace_nodes_and_values(
            node.graph, node, [node], [cast], node.outputs, cast.outputs
        )


def is_random(node: ir.Node) -> bool:
    """Whether two runs of ``node`` may differ."""
    trains = node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None
    return node.op_type in RANDOM or trains


def _affordable(node: ir.Node) -> bool:
    if is_random(node) or (node.op_type in _QUANTISED and not _makes_bytes(node)):
        return False
    if any(v is not None and v.dtype == ir.DataType.STRING for v in (*node.inputs, *node.outputs)):
        return False
    operands = [value.const_value for value in node.inputs if value is not None]
    if node.op_type not in _CHEAP and sum(operand.size for operand in operands) > _SMALL:
        return False
    sizes = [_bytes(value) for value in node.outputs]
    if None in sizes:
        return False
    dropped = sum(v.const_value.nbytes for v in node.inputs if v and len(v.uses()) == 1)
    return sum(sizes) <= max(_LARGEST_RESULT, dropped)


def _makes_bytes(node: ir.Node) -> bool:
    """Whether ``node`` quantises float32 to 8 bits by float32 scales, not in blocks."""
    types = [value.dtype for value in (*node.inputs[:2], *node.outputs)]
    plain = not any(node.attributes.get_int(name, 0) for name in ("block_size", "precision"))
    float_, narrow = ir.DataType.FLOAT, (ir.DataType.INT8, ir.DataType.UINT8)
    is_quantize = node.op_type == "QuantizeLinear"
    return is_quantize and types[:2] == [float_, float_] and types[2] in narrow and plain


def _bytes(value: ir.Value) -> int | None:
    """The size of a tensor of known type and static shape."""
    if value.dtype is None or value.shape is None or not value.shape.is_static():
        return None
    return int(prod(value.shape) * value.dtype.itemsize)
