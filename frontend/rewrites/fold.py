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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants_ir

from .infer import without_misjudged

__all__ = ["RANDOM", "evaluated", "fold_constants", "is_random"]

_log = logging.getLogger(__name__)
_FOLDER = logging.getLogger("onnxscript.optimizer._constant_folding")

RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
})  # fmt: skip
# Kept so that quantisation stays visible, but for what makes 8-bit weights.
_QUANTISED = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
# A few passes over their operands: folded whatever their size. Others (Conv, Resize, Einsum, ...)
# may cost far more than their operands' size suggests.
_CHEAP = frozenset({
    "Abs", "Add", "BatchNormalization", "Cast", "Ceil", "Clip", "Concat", "Div", "Equal", "Exp",
    "Expand", "Flatten", "Floor", "Gather", "Greater", "InstanceNormalization",
    "LayerNormalization", "Less", "Log", "Max", "Mean", "Min", "Mul", "Neg", "Pad", "Pow",
    "QuantizeLinear", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Round", "Sigmoid", "Sign",
    "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Transpose", "Unsqueeze",
    "Where",
})  # fmt: skip
# Operators of several outputs, of which some may be left out.
_SEVERAL = frozenset({"BatchNormalization", "LayerNormalization", "Split"})
# What numpy's reference of onnx gets wrong: Softmax before opset 13, LRN of borders, sums of
# absolute values, groups, slopes of fewer dims, masks of one row, pools of other than images.
_WRONG_IN_REFERENCE = frozenset({
    "Attention", "ConvTranspose", "GlobalMaxPool", "Hardmax", "LRN", "LogSoftmax",
    "LpNormalization", "MeanVarianceNormalization", "PRelu", "Softmax",
})  # fmt: skip
_EVALUATION_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError,
                      ValueError)  # fmt: skip
_LARGEST_PRODUCT = 1 << 30  # multiply-adds of a MatMul, which numpy leaves to BLAS
_BY_BLAS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_SMALL = 1 << 13  # elements that any operator may read
_LARGEST_RESULT = 1 << 20  # bytes a node may add to the model; more only if it drops as many
_WIDER = 8  # times as many bytes as it drops may come of a Cast: of weights that are stored narrow
_UNLIMITED = 1 << 62


def fold_constants(model: ir.Model) -> ir.Model:
    """Fold until nothing more is known; types and shapes are inferred on the way."""
    _name_cast_types(model)
    _fold_single(model)
    _forget_running_statistics(model)
    while _fold_several(model):
        _fold_single(model)
    return model


def _fold_single(model: ir.Model) -> None:
    """Fold what gives one output: onnxscript."""
    splits = set(_splits(model))
    try:
        with without_misjudged(model), _quiet():
            fold_constants_ir(model, onnx_shape_inference=True, input_size_limit=_UNLIMITED,
                              output_size_limit=_UNLIMITED, should_fold=_affordable)  # fmt: skip
    except RuntimeError as error:
        # onnxscript 0.7 fails on some valid nodes (SplitToSequence whose split is no constant). It
        # replaces nodes one by one, so what is folded so far stands, and the rest is converted.
        _log.debug("folding stops: %s: %s", error, error.__cause__)
    if model.opset_imports.get("", 18) < 18:
        for node in set(_splits(model)) - splits:  # of a SplitToSequence, whose parts are alike
            node.attributes.pop("num_outputs", None)


def _splits(model: ir.Model) -> Iterator[ir.Node]:
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    return (node for node in nodes if node.op_type == "Split" and not node.domain)


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing is said of nodes that cannot be evaluated or give NaN: the model has them so."""
    level = _FOLDER.level
    _FOLDER.setLevel(logging.ERROR)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        _FOLDER.setLevel(level)


def _fold_several(model: ir.Model) -> bool:
    """Fold what gives several outputs, which onnxscript leaves: parts of a constant, and weights
    standardised by a BatchNormalization that trains. Whether there was any."""
    folded = [node for node in model.graph if node.op_type in _SEVERAL and _fold_node(model, node)]
    model.graph.remove(folded, safe=True)
    return bool(folded)


def _fold_node(model: ir.Model, node: ir.Node) -> bool:
    """Make the outputs of ``node`` initializers, if it is known and worth it."""
    operands = [value for value in node.inputs if value is not None]
    known = all(value.const_value is not None for value in operands)
    if not known or node.domain or not _is_worth_it(node) or any(
        value.is_graph_output() for value in node.outputs
    ):  # fmt: skip
        return False
    arrays = [None if value is None else value.const_value.numpy() for value in node.inputs]
    results = evaluated(node, model.opset_imports[""], arrays)
    if results is None:
        return False
    for value, array in zip(node.outputs, results, strict=False):
        if value.uses():
            name, value.name = value.name, None
            tensor = ir.tensor(array, name=name)
            constant = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype),
                                const_value=tensor)  # fmt: skip
            model.graph.register_initializer(constant)
            ir.convenience.replace_all_uses_with(value, constant)
    return True


def evaluated(
    node: ir.Node, opset: int, arrays: Sequence[np.ndarray | None]
) -> tuple[np.ndarray, ...] | None:
    """The outputs of ``node``, of ONNX's own domain, for such inputs, by onnx's reference.

    None where that refuses: the node is wrong, and its converter says why.
    """
    names = ["" if array is None else f"x{k}" for k, array in enumerate(arrays)]
    feeds = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
    try:
        reference = ReferenceEvaluator(_model_of(node, opset, names, feeds))
        with np.errstate(all="ignore"):
            return tuple(reference.run(None, feeds))
    except _EVALUATION_ERRORS as error:
        _log.debug("%s is not evaluated: %s", node.op_type, error)
        return None


def _model_of(
    node: ir.Node, opset: int, names: Sequence[str], feeds: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    """``node`` alone, with operands of these ``names``; "" for one that is left out."""
    proto = ir.to_proto(node)
    proto.input[:] = names
    proto.output[:] = [f"y{k}" for k in range(len(node.outputs))]
    given = [
        helper.make_tensor_value_info(x, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for x, a in feeds.items()
    ]
    asked = list(map(helper.make_empty_tensor_value_info, proto.output))
    graph = helper.make_graph([proto], node.op_type, given, asked)
    version = helper.make_opsetid("", node.version or opset)
    return helper.make_model(graph, opset_imports=[version])


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


def _forget_running_statistics(model: ir.Model) -> None:
    """Let a BatchNormalization that trains, and whose statistics no one reads, not wait for the
    old ones: exporters compute them from the weights that it standardises."""
    for node in model.graph:
        trains = node.attributes.get_int("training_mode", 0)
        if node.op_type != "BatchNormalization" or not trains or None in node.inputs:
            continue
        _, scale, _, *statistics = node.inputs
        alike = scale.dtype is not None and all(x.dtype == scale.dtype for x in statistics)
        if alike and not any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
            for k in range(3, len(node.inputs)):
                node.replace_input_with(k, scale)
    common.RemoveUnusedNodesPass()(model)


def is_random(node: ir.Node) -> bool:
    """Whether two runs of ``node`` may differ."""
    trains = node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None
    return node.op_type in RANDOM or trains


def _affordable(node: ir.Node) -> bool:
    """What onnxscript asks."""
    single = len(node.outputs) == 1 and node.op_type not in _SEVERAL
    return single and _is_worth_it(node)


def _is_worth_it(node: ir.Node) -> bool:
    """Whether ``node``, whose operands are known, is cheap and does not make the model larger."""
    if (
        is_random(node)
        or node.op_type in _WRONG_IN_REFERENCE
        or (node.op_type == "BatchNormalization" and _trains_in_reference(node))
        or (node.op_type in _QUANTISED and not _makes_bytes(node))
    ):
        return False
    if any(v is not None and v.dtype == ir.DataType.STRING for v in (*node.inputs, *node.outputs)):
        return False
    operands = [value.const_value for value in node.inputs if value is not None]
    small = sum(operand.size for operand in operands) <= _SMALL
    if not (small or node.op_type in _CHEAP or _is_affordable_product(node)):
        return False
    sizes = [_bytes(value) for value in node.outputs if value.uses() or value.is_graph_output()]
    if None in sizes:
        return False
    dropped = sum(v.const_value.nbytes for v in node.inputs if v and len(v.uses()) == 1)
    wider = _WIDER if node.op_type == "Cast" else 1
    return sum(sizes) <= max(_LARGEST_RESULT, wider * dropped)


def _trains_in_reference(node: ir.Node) -> bool:
    """Whether numpy's reference takes a BatchNormalization for one that trains: all before 14."""
    version = node.version or (node.graph and node.graph.opset_imports.get("")) or 0
    return version < 14


def _is_affordable_product(node: ir.Node) -> bool:
    """Whether ``node`` multiplies two matrices at little cost: low-rank updates of weights."""
    if node.op_type not in ("MatMul", "Gemm"):
        return False
    left, right = (value.const_value for value in node.inputs[:2])
    if left.dtype not in _BY_BLAS or not left.shape:
        return False
    common = left.shape[0 if node.attributes.get_int("transA", 0) else -1]
    return left.size * right.size <= _LARGEST_PRODUCT * max(common, 1)


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
