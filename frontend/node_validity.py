"""Whether the attributes and operands of nodes are such as their operators define.

The checker of onnx looks at the number of operands and the kinds of attributes. Here are the values
of attributes, by tables over their names, which mean the same in all operators that have them, the
types of operands, by the schemas of onnx, and what its inference of shapes says of ranks and sizes.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from math import isfinite

import onnx_ir as ir
from onnx import OperatorSetIdProto, TensorProto, TypeProto, defs
from onnx.checker import ValidationError
from onnx.helper import make_opsetid
from onnx.shape_inference import InferenceError, infer_node_outputs

from tvm_ext.errors import UnsupportedNode

from .inference_faults import fault_of
from .refusal import refusal
from .subgraph_counts import wrong_counts
from .table import lookup
from .traverse import nodes, subgraphs

__all__ = ["invalid_nodes"]

_DOMAINS = frozenset({"", "ai.onnx.ml", "ai.onnx.preview", "com.microsoft"})
# Of which com.microsoft has others, too: heads may be 0 there.
_SHARED = frozenset("blocksize dilations epsilon group kernel_shape pads strides".split())

_COUNTS = """block_size blocksize chunk_size dilations group hidden_size kernel_shape kv_num_heads
    n_targets num_groups num_heads num_outputs offset_group output_height output_width
    pooled_shape q_num_heads sample_size size strides""".split()
_FLAGS = """align_corners allowzero antialias broadcast ceil_mode center_point_box
    count_include_pad exclude_outside exclusive fmod input_forget interleaved inverse is_causal
    keepdims largest layout linear_before_reset new_axis noop_with_empty_axes onesided
    output_sequence periodic reverse saturate select_last_index sorted spatial storage_order
    scan_input_directions scan_output_directions training_mode transA transB upper""".split()
_FINITE = "cubic_coeff_a epsilon lambd mean norm_coefficient spatial_scale".split()
_SIDES = "output_padding pads".split()
_PADS = frozenset({"Pad"})  # takes elements away, too

# The values of an attribute in all versions, where an operator is named, of that one.
_CHOICES: dict[str | tuple[str, str], str] = {
    "aggregate_function": "AVERAGE MAX MIN SUM",
    "approximate": "none tanh",
    "auto_pad": "NOTSET SAME_LOWER SAME_UPPER VALID",
    "case_change_action": "LOWER NONE UPPER",
    "cast_to": "TO_FLOAT TO_INT64 TO_STRING",
    "keep_aspect_ratio_policy": "not_larger not_smaller stretch",
    "kernel_type": "LINEAR POLY RBF SIGMOID",
    "map_form": "DENSE SPARSE",
    "nearest_mode": "ceil floor round_prefer_ceil round_prefer_floor",
    "norm": "L1 L2 MAX",
    "padding_mode": "border reflection zeros",
    "pixel_format": "BGR Grayscale RGB",
    "post_transform": "LOGISTIC NONE PROBIT SOFTMAX SOFTMAX_ZERO",
    "round_mode": "down nearest up",
    **dict.fromkeys(
        product(("GRU", "LSTM", "RNN"), ["direction"]), "bidirectional forward reverse"
    ),
    ("BitShift", "direction"): "LEFT RIGHT",
    ("DepthToSpace", "mode"): "CRD DCR",
    ("SpaceToDepth", "mode"): "CRD DCR",
    ("GridSample", "mode"): "bicubic bilinear cubic linear nearest",
    ("Momentum", "mode"): "nesterov standard",
    ("Pad", "mode"): "constant edge reflect wrap",
    ("Resize", "mode"): "cubic linear nearest",
    ("RoiAlign", "mode"): "avg max",
    ("TensorScatter", "mode"): "circular linear",
    ("TfIdfVectorizer", "mode"): "IDF TF TFIDF",
    ("Upsample", "mode"): "bilinear linear nearest",
    ("Resize", "coordinate_transformation_mode"): "align_corners asymmetric half_pixel "
    "half_pixel_symmetric pytorch_half_pixel tf_crop_and_resize tf_half_pixel_for_nn",
    ("RoiAlign", "coordinate_transformation_mode"): "half_pixel output_half_pixel",
    **dict.fromkeys(
        product(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), ["reduction"]),
        "mean none sum",
    ),
    **dict.fromkeys(
        product(("ScatterElements", "ScatterND"), ["reduction"]), "add max min mul none"
    ),
}

_WIDTH = re.compile(r"\d.*|\)$")  # what comes behind the kind of elements
_PREFIX = re.compile(r"^(\[\w+Error\] |\(op_type:[^)]*\): )+")
# Ellipses broadcast there, which onnx wants to be of one rank.
_WIDER = frozenset({"Einsum"})
_MOST = 64  # elements of a constant whose values are told
_INDICES = frozenset({ir.DataType.INT32, ir.DataType.INT64})
_LARGEST = 1 << 31  # more than any tensor has along an axis of a window

Rule = tuple[Callable[[float], bool], str]

_RULES: dict[str, Rule] = (
    dict.fromkeys(_COUNTS, (lambda value: 1 <= value < _LARGEST, "at least 1, and below 2**31"))
    | dict.fromkeys(_FLAGS, (lambda value: value in (0, 1), "0 or 1"))
    | dict.fromkeys(_FINITE, (isfinite, "a finite number"))
    | dict.fromkeys(_SIDES, (lambda value: 0 <= value < _LARGEST, "at least 0, and below 2**31"))
    | {"ratio": (lambda value: 0 <= value <= 1, "between 0 and 1")}
)


def invalid_nodes(model: ir.Model) -> list[UnsupportedNode]:
    """The nodes of ``model``, whose types are inferred, that their operators do not define."""
    found = []
    imports = [make_opsetid(*entry) for entry in model.opset_imports.items()]
    for node, _ in nodes(model.graph):
        opset = model.opset_imports.get(node.domain, 1)
        since, _ = lookup(node.domain, node.op_type, opset)
        reason = next(_contradictions(node, since, imports), None)
        if reason is not None:
            found.append(refusal(node, opset, since, reason))
    return found


def _contradictions(node: ir.Node, since: int, imports: list[OperatorSetIdProto]) -> Iterator[str]:
    if node.domain not in _DOMAINS:
        return
    known = since > 0 and defs.has(node.op_type, node.domain)
    schema = defs.get_schema(node.op_type, since, node.domain) if known else None
    if fault := fault_of(node):
        yield fault
    yield from wrong_counts(node, since)
    yield from _attributes(node, schema)
    if schema is not None:
        yield from _types(node, schema)
        yield from _inferred(node, schema, imports)


def _attributes(node: ir.Node, schema: defs.OpSchema | None) -> Iterator[str]:
    for name, attribute in node.attributes.items():
        if attribute.type == ir.AttributeType.STRING and not attribute.is_ref():
            if attribute.value != _default(schema, name):  # one of which is misspelt
                yield from _choice(node, name, attribute.value)
        rule = _RULES.get(name)
        if rule is None or (name == "pads" and node.op_type in _PADS):
            continue
        if node.domain == "com.microsoft" and name not in _SHARED:
            continue
        if attribute.is_ref() or attribute.value == _default(schema, name):
            continue
        values = attribute.value if isinstance(attribute.value, Iterable) else [attribute.value]
        test, needed = rule
        if not all(isinstance(value, int | float) and test(value) for value in values):
            yield f"{name} is {_text(attribute.value)}; it has to be {needed}"


def _choice(node: ir.Node, name: str, value: str) -> Iterator[str]:
    choices = _CHOICES.get((node.op_type, name), _CHOICES.get(name))
    if choices is not None and node.domain != "com.microsoft" and value not in choices.split():
        yield f"{name} is {value!r}; it has to be one of {', '.join(choices.split())}"


def _default(schema: defs.OpSchema | None, name: str) -> object:
    if schema is None or name not in schema.attributes:
        return None
    value = schema.attributes[name].default_value
    if value.HasField("s"):
        return value.s.decode()
    return value.i if value.HasField("i") else value.f if value.HasField("f") else None


def _text(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple | list) else str(value)


def _types(node: ir.Node, schema: defs.OpSchema) -> Iterator[str]:
    """What is wrong by the node's own version and by the latest: converters know types early."""
    wrong = next(_wrong_types(node, schema), None)
    if wrong is not None:
        latest = defs.get_schema(node.op_type, node.domain)
        if latest.since_version == schema.since_version or any(_wrong_types(node, latest)):
            yield wrong


def _wrong_types(node: ir.Node, schema: defs.OpSchema) -> Iterator[str]:
    variables: dict[str, str] = {}
    for place, value in enumerate(node.inputs):
        given = None if value is None else _type_text(value.type)
        if given is None or not schema.inputs:
            continue
        formal = schema.inputs[min(place, len(schema.inputs) - 1)]
        if not _takes_tensors(formal):
            continue
        if not _is_of(given, formal.types):
            yield f"its input {formal.name} is {given}; it has to be {_alternatives(formal.types)}"
        if formal.is_homogeneous and variables.setdefault(formal.type_str, given) != given:
            yield f"its inputs are {variables[formal.type_str]} and {given}; they have to be alike"


def _is_of(given: str, types: Iterable[str]) -> bool:
    """Whether ``given`` is one of ``types``, or of another width: converters serve more of them."""
    return given in types or _WIDTH.sub("", given) in {_WIDTH.sub("", known) for known in types}


def _takes_tensors(formal: defs.OpSchema.FormalParameter) -> bool:
    """Not so of sequences, which onnx_ir infers to be tensors where a Loop carries them."""
    return any(known.startswith("tensor") for known in formal.types)


def _type_text(type_: ir.TypeProtocol | None) -> str | None:
    """A type as schemas write it; None where it is not known."""
    if isinstance(type_, ir.SequenceType | ir.OptionalType):
        inner = _type_text(type_.elem_type)
        kind = "seq" if isinstance(type_, ir.SequenceType) else "optional"
        return None if inner is None else f"{kind}({inner})"
    if not isinstance(type_, ir.TensorType) or type_.dtype == ir.DataType.UNDEFINED:
        return None
    return f"tensor({type_.dtype.name.lower()})"


def _alternatives(types: Iterable[str]) -> str:
    names = sorted(types)
    return f"one of {', '.join(names)}" if len(names) > 1 else names[0]


def _inferred(
    node: ir.Node, schema: defs.OpSchema, imports: list[OperatorSetIdProto]
) -> Iterator[str]:
    """What onnx has against the shapes of a node's operands.

    They must be static: onnx takes some symbolic dims for 0.
    """
    if (
        node.domain
        or node.op_type in _WIDER
        or any(subgraphs(node))
        or not all(map(_takes_tensors, schema.inputs))
    ):
        return
    read = {value.name: value for value in node.inputs if value is not None}
    types = {name: _type_proto(value) for name, value in read.items()}
    if any(type_ is None for type_ in types.values()):
        return
    data = {name: tensor for name, value in read.items() if (tensor := _known(value)) is not None}
    try:
        infer_node_outputs(
            schema, ir.serde.serialize_node(node), types, data, opset_imports=imports
        )
    except (ValidationError, ValueError):  # of types that onnx_ir infers wrongly, or of no type
        return
    except InferenceError as error:
        text = _PREFIX.sub("", str(error).strip().splitlines()[0])
        yield f"{text.rstrip('.')}, given {_given(node)}"


def _given(node: ir.Node) -> str:
    """The numbers among the attributes, and the shapes of the operands."""
    numbers = ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.FLOAT
    attributes = [
        f"{name}={_text(attribute.value)}"
        for name, attribute in node.attributes.items()
        if attribute.type in numbers
    ]
    shapes = [str(x.shape) for x in node.inputs if x is not None and x.shape is not None]
    return ", ".join([*attributes, *shapes])


def _type_proto(value: ir.Value) -> TypeProto | None:
    if _type_text(value.type) is None or not isinstance(value.type, ir.TensorType):
        return None
    if value.shape is None or not value.shape.is_static():
        return None
    return ir.serde.serialize_value(value).type


def _known(value: ir.Value) -> TensorProto | None:
    """The integers of a small constant: axes, sizes, pads; that there are none, of any type."""
    if value.dtype is not None and value.shape == [0]:  # what is empty counts as left out
        return TensorProto(data_type=value.dtype, dims=[0])
    tensor = value.const_value
    if tensor is None or tensor.size > _MOST or tensor.dtype not in _INDICES:
        return None
    return ir.serde.serialize_tensor(tensor)
