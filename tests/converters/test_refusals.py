"""Nodes that ONNX does not allow are refused by name, not read as something else."""

import re

import pytest
from onnx import parser
from tvm_ext.frontend import check_declared, convert, load

from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError

X = "(float[2, 3] x)"
PAIR = "(float[2, 3] x, int64[2, 3] i)"
IMAGE = "(float[1, 3, 4, 4] x)"

WRONG_AXES = [
    (PAIR, "y = Gather <axis = {axis}> (x, i)"),
    (PAIR, "y = GatherElements <axis = {axis}> (x, i)"),
    (PAIR, "y = ScatterElements <axis = {axis}> (x, i, x)"),
    (X, "y = Concat <axis = {axis}> (x, x)"),
    (X, "y = Softmax <axis = {axis}> (x)"),
    (X, "y = Hardmax <axis = {axis}> (x)"),
    (X, "y, z = Split <axis = {axis}> (x)"),
    (X, "a = Constant <value_ints = [{axis}]> () y = Squeeze (x, a)"),
    (X, "a = Constant <value_ints = [{axis}]> () y = ReduceSum (x, a)"),
    (X, "a = Constant <value_ints = [{axis}]> () b = Constant <value_ints = [0]> () "
        "y = Slice (x, b, b, a)"),
    (X, "y = LayerNormalization <axis = {axis}> (x, x)"),
    (PAIR, "y = OneHot <axis = {axis}> (i, d, x)"),
    ("(float[2, 3] x, bool[2] c)", "y = Compress <axis = {axis}> (x, c)"),
    (X, "y = Unique <axis = {axis}> (x)"),
    ("(float[2, 3] x, int64[3] n)",
     "y = ReverseSequence <batch_axis = {axis}, time_axis = 0> (x, n)"),
    ("(uint8[2, 3] x, float[3] s)", "y = DequantizeLinear <axis = {axis}> (x, s)"),
    (X, "y = ArgMax <axis = {axis}> (x)"),
]  # fmt: skip

CONTRADICTIONS = [
    (X, "a = Constant <value_ints = [1, 1]> () y = Unsqueeze (x, a)", "all different"),
    (X, "y = Flatten <axis = 3> (x)", "axis 3 of a tensor of rank 2"),
    (X, "y = ReduceMean <axes = [0, -2]> (x)", "all different"),
    (X, "a = Constant <value_ints = [1, 1]> () y = Pad (x, a)", "2 pads for 2 axes"),
    (X, "k = Constant <value_ints = [9]> () y, i = TopK (x, k)", "the 9 largest of 3"),
    (X, "k = Constant <value_ints = [-1]> () y, i = TopK (x, k)", "the -1 largest of 3"),
    (X, "k = Constant <value_ints = [1, -2]> () y = Tile (x, k)", r"the shape \[2, -6\]"),
    (IMAGE, "y = MaxPool <kernel_shape = [9, 9]> (x)", r"the shape \[1, 3, -4, -4\]"),
    (IMAGE, "y = DepthToSpace <blocksize = 2> (x)", "channels is 3, which is no multiple of 4"),
    ("(float[1, 3, 4, 4] x, float[2] s)", "y = InstanceNormalization (x, s, s)",
     "2 elements for 3 channels"),
    ("(float[1, 3, 4, 4] x, float[5, 3, 7, 7] w)", "y = Conv (x, w)",
     r"the shape \[1, 5, -2, -2\]"),
    (X, "y = Transpose <perm = [0, 0]> (x)", r"perm \[0, 0\] of a tensor of rank 2"),
    (X, "a = Constant <value_ints = [-1, -1]> () y = Reshape (x, a)", "one dim may be -1"),
    (X, "a = Constant <value_ints = [-2, -3]> () y = Reshape (x, a)", "one dim may be -1"),
    ("(float[n, 3] x, int64 i)", "y = ScatterElements (x, i, x)", "indices of rank 0"),
    ("(float[2, 3] x, int64[4, 3] i)", "y = GatherElements <axis = 1> (x, i)",
     "axis 0 of the indices is 4, more than 2"),
    ("(float[2, 3] x, int64[4, 3] i, float[4, 3] u)", "y = ScatterElements <axis = 1> (x, i, u)",
     "axis 0 of the indices is 4, more than 2"),
    ("(float[2, 3] x, int64[2, 3] i, float[2, 1] u)", "y = ScatterElements <axis = 1> (x, i, u)",
     r"the shape \[2, 1\] must be \[2, 3\]"),
    ("(float[2, 3] x, int64[4, 1] i, float[4, 2] u)", "y = ScatterND (x, i, u)",
     r"the shape \[4, 2\] must be \[4, 3\]"),
    ("(float[2, 3] x, float[2] s)", "y = LayerNormalization (x, s)",
     "dims 2 and 3 do not broadcast"),
    ("(float[2, 3] x, float[3] s, float[2, 2, 3] b)", "y = LayerNormalization (x, s, b)",
     "do not broadcast"),
    ("(float[4, 3, 5] x, int64[3, 5] i)", "y = NegativeLogLikelihoodLoss (x, i)",
     r"the shape \[3, 5\] must be \[4, 5\]"),
    ("(float[4, 3, 5] x, int64[4, 5] i, float[2] w)", "y = NegativeLogLikelihoodLoss (x, i, w)",
     r"the shape \[2\] must be \[3\]"),
    ("(float[1, 1, 4, 4] x, float[6] r, float[4] s)",
     'y = Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (x, r, s)',
     r"the shape \[6\] must be \[8\]"),
    (IMAGE, "s = Constant <value_floats = [1.0, 2.0]> () y = Resize (x, , s)",
     r"the shape \[2\] must be \[4\]"),
]  # fmt: skip

UNDEFINED = [
    (IMAGE, "y = MaxPool <kernel_shape = [2, 2], strides = [0, 1]> (x)", r"strides is \[0, 1\]"),
    (IMAGE, "y = MaxPool <kernel_shape = [2, -2]> (x)", r"kernel_shape is \[2, -2\]"),
    (IMAGE, "y = AveragePool <kernel_shape = [2, 2], pads = [0, -1, 0, 0]> (x)", "at least 0"),
    (IMAGE, "y = LRN <size = 4611686018427387904> (x)", "size is 4611686018427387904"),
    ("(float[1, 3, 4, 4] x, float[6, 3, 1, 1] w)", "y = Conv <group = 0> (x, w)", "group is 0"),
    (IMAGE, "y = SpaceToDepth <blocksize = -1> (x)", "blocksize is -1"),
    ("(float[2, 1, 3] x, float[1, 16, 3] w, float[1, 16, 4] r)",
     "y = LSTM <hidden_size = -1> (x, w, r)", "hidden_size is -1"),
    (X, "y = ReduceMax <keepdims = 2> (x)", "keepdims is 2; it has to be 0 or 1"),
    (PAIR, "y = Add (x, i)", r"tensor\(float\) and tensor\(int64\); they have to be alike"),
    (PAIR, "y = Sigmoid (i)", r"input X is tensor\(int64\); it has to be one of"),
    (PAIR, "y = Gather (x, x)", r"input indices is tensor\(float\)"),
    (X, "y = Transpose <perm = [0, 0]> (x)", r"given perm=\[0, 0\], \[2,3\]"),
    (IMAGE, "y = Softmax <axis = 7> (x)", "axis=7"),
    ("(float[2, 3] x, int64[4] p)", 'y = Pad <mode = "zeros"> (x, p)',
     "mode is 'zeros'; it has to be one of constant, edge"),
    (IMAGE, 'y = MaxPool <auto_pad = "SAME", kernel_shape = [2, 2]> (x)', "one of NOTSET, SAME_"),
    ("(float[1, 3, 4, 4] x, float[4] s)", 'y = Resize <mode = "area"> (x, , s)', "mode is 'area'"),
    (IMAGE, 'y = DepthToSpace <mode = "linear", blocksize = 1> (x)', "one of CRD, DCR"),
    ("(float[2, 1, 3] x, float[1, 16, 3] w, float[1, 16, 4] r)",
     'y = LSTM <direction = "both", hidden_size = 4> (x, w, r)', "direction is 'both'"),
]  # fmt: skip

MICROSOFT = [
    ("(uint8[4, 8] x, int64[2] i, float[4, 1] s)",
     "y = com.microsoft.GatherBlockQuantized <block_size = 4, bits = 8> (x, i, s)",
     "axis 1 of the scales is 1, less than 2"),
    ("(uint8[4, 8] x, int64[2] i, float[4, 4] s, uint8[4, 1] z)",
     "y = com.microsoft.GatherBlockQuantized <block_size = 4> (x, i, s, z)",
     "axis 1 of the zero points is 2, less than 4"),
    ("(float[2, 1, 5, 5] x, float[3, 3] r, int32[3] i, int32[2] n)",
     "y = com.microsoft.CropAndResize (x, r, i, n)", r"the shape \[3, 3\] must be \[3, 4\]"),
    ("(int64[3, 5] x, float[2, 9] s)", "y = com.microsoft.NGramRepeatBlock <ngram_size = 2> (x, s)",
     r"the shape \[2, 9\] must be \[3, 9\]"),
    ("(float[2, 3, 8] x, float[8, 24] w, float[24] b, int32[2, 2] m)",
     "y = com.microsoft.Attention <num_heads = 2> (x, w, b, m)",
     r"the shape \[2, 2\] must be \[2, 3\]"),
    ("(float[2, 64] x, uint8[100] b)",
     "n = Constant <value_ints = [64, 3]> () y = com.microsoft.MatMulFpQ4 (x, b, n)",
     "the number of bytes is 100, less than 126"),
]  # fmt: skip

# Of which the inference of onnx 1.23 crashes, or does not end.
FAULTY = [
    (X, "y = LayerNormalization <axis = 2147483648> (x, x)", "axis is 2147483648"),
    (X, "y = LayerNormalization <axis = -9223372036854775808> (x, x)", "axis is -9223372036854"),
    (PAIR, "y = GatherND <batch_dims = -2147483648> (x, i)", "batch_dims is -2147483648"),
    (X, 'y = Einsum <equation = "......->"> (x)', "at most one ellipsis"),
]

# Graphs of control flow, whose inputs and outputs are too many or too few.
STEP = """body = g (int64 i, bool c, float[2, 3] a) => (bool going, float[2, 3] o) {
    going = Not(c) o = Exp(a) }"""
ROW = "body = g (float[3] a, float[3] b) => (float[3] o, float[3] p) { o = Add(a, b) p = Exp(b) }"
BRANCHES = """then_branch = g () => (float[2, 3] o) { o = Relu(x) },
    else_branch = h () => (float[2, 3] p, float[2, 3] q) { p = Relu(x) q = Exp(x) }"""
LOOP = "(int64 n, bool c, float[2, 3] x)"
SCAN = "(float[3] s, float[2, 3] x)"
GRAPHS = [
    (LOOP, f"y = If (c) <{BRANCHES}>", "a branch has 2 outputs, the node has 1"),
    (LOOP, f"y = Loop (n, c, x, x) <{STEP}>", "graph 'g' has 3 inputs; it has to have 4"),
    (LOOP, f"y, z = Loop (n, c, x) <{STEP}>", "has 2 outputs, the condition among them"),
    (SCAN, f"y, z = Scan (s, x) <{ROW}, num_scan_inputs = 3>", "it has to be between 1 and 2"),
    (SCAN, f"y, z, w = Scan (s, x) <{ROW}, num_scan_inputs = 1>", "2 outputs, the node has 3"),
    (SCAN, f"y, z = Scan (s, x) <{ROW}, num_scan_inputs = 1, scan_output_axes = [0, 1]>",
     "scan_output_axes are [0, 1]; there have to be 1"),
    ("(seq(float[3]) x)", f"y, z = SequenceMap (x) <{ROW}>", "has 2 inputs; it has to have 1"),
]  # fmt: skip

SPLIT = "y, a, b = Split <num_outputs = 2> (x)"


def refusal(inputs, body, check, opset=17):
    """What ``check`` says of the node, given the loaded model."""
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}, "ai.onnx.ml" : 3, '
        f'"com.microsoft" : 1]> '
        f"g {inputs} => (float y) <int64 d = {{3}}> {{ {body} }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ConversionError) as caught:
        check(load(model))
    (node,) = caught.value.nodes
    return node.reason


@pytest.mark.parametrize("axis", [-4, 5])
@pytest.mark.parametrize("inputs, body", WRONG_AXES, ids=lambda text: text.split(" (")[0])
def test_an_axis_that_is_none(inputs, body, axis):
    assert f"axis {axis}" in refusal(inputs, body.format(axis=axis), convert).replace("=", " ")


@pytest.mark.parametrize("inputs, body, reason", CONTRADICTIONS, ids=lambda text: text[:30])
def test_a_node_that_contradicts_its_inputs(inputs, body, reason):
    assert re.search(reason, refusal(inputs, body, convert))


UNTOLD = [
    ("(float[n] x)", "y = LRN <size = 3> (x)", r"it does not take float32\[n\], size=3"),
    ("(float[n] x, float[n, 3, 4, 2] i)", "y = GridSample (x, i)", "it does not take"),
    (
        "(float[n] x)",
        f"y = LSTM <hidden_size = 2, activation_alpha = {[0.5] * 99}> (x, x, x)",
        r"alpha=\[0.5, .*0.5, \.\.\. 99 in all\], hidden",
    ),
]


@pytest.mark.parametrize("inputs, body, reason", UNTOLD, ids=lambda text: text[:30])
def test_operands_that_break_a_converter(inputs, body, reason):
    """What is raised beneath it, by TVM or by Python, is not what the user is told."""
    found = refusal(inputs, body, convert)
    assert re.search(reason, found) and "Error" not in found


@pytest.mark.parametrize("inputs, body, reason", UNDEFINED, ids=lambda text: text[:30])
def test_a_node_that_onnx_does_not_define(inputs, body, reason):
    assert re.search(reason, refusal(inputs, body, check_declared))


def test_keys_of_another_kind():
    body = 'y = ai.onnx.ml.LabelEncoder <keys_strings = ["a"], values_int64s = [1]> (x)'
    assert "the keys are strings, its input is float32" in refusal(X, body, convert)


@pytest.mark.parametrize("inputs, body, reason", MICROSOFT, ids=lambda text: text[:40])
def test_sizes_of_operators_of_microsoft(inputs, body, reason):
    assert re.search(reason, refusal(inputs, body, convert))


@pytest.mark.parametrize("inputs, body, reason", GRAPHS, ids=lambda text: text[:30])
def test_graphs_with_other_inputs_or_outputs(inputs, body, reason):
    assert reason in refusal(inputs, body, check_declared)


@pytest.mark.parametrize("inputs, body, reason", FAULTY, ids=lambda text: text[:30])
def test_a_node_at_which_onnx_crashes(inputs, body, reason):
    assert reason in refusal(inputs, body, check_declared)


def test_a_split_into_more_than_it_names():
    reason = "num_outputs is 2, and it has 3 outputs"
    assert refusal("(float[6] x)", SPLIT, check_declared, opset=18) == reason
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18, "own" : 1]>
        g (float[6] x) => (float[2] y) {{ y = own.part (x) }}
        <domain: "own", opset_import: ["" : 18]> part (x) => (y) {{ {SPLIT} }}"""
    )
    with pytest.raises(ConversionError, match=reason):
        convert_and_build(model)


@pytest.mark.parametrize("op_type, x", [("QuantizeLinear", "float"), ("DequantizeLinear", "uint8")])
@pytest.mark.parametrize(
    "scale, zero, attributes, reason",
    [
        ("[2, 2]", "[2, 2]", "axis = 1, block_size = 2", "axis 1 of the scale is 2, less than 3"),
        ("[1, 3]", "[1, 3]", "axis = 1, block_size = 2", "axis 0 of the scale is 1, less than 2"),
        ("[2, 3]", "[2, 1]", "axis = 1, block_size = 2", "axis 1.* is 1, not 3"),
        ("[6]", "[3]", "axis = 1", "3 and 6 do not broadcast"),
        ("", "[3]", "axis = 1", "axis 0.* is 3, not 1"),
    ],
)
def test_scales_that_are_too_few(op_type, x, scale, zero, attributes, reason):
    inputs = f"({x}[2, 6] x, float{scale} s, uint8{zero} z)"
    body = f"y = {op_type} <{attributes}> (x, s, z)"
    assert re.search(reason, refusal(inputs, body, convert, opset=21))
