"""Nodes that ONNX does not allow are refused by name, not read as something else."""

import re

import pytest
from onnx import parser
from tvm_ext.frontend import convert, load

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
    (IMAGE, "y = DepthToSpace <blocksize = 2> (x)", "3 channels in blocks of 2 x 2"),
    ("(float[1, 3, 4, 4] x, float[2] s)", "y = InstanceNormalization (x, s, s)",
     "2 elements for 3 channels"),
    ("(float[1, 3, 4, 4] x, float[5, 3, 7, 7] w)", "y = Conv (x, w)",
     r"the shape \[1, 5, -2, -2\]"),
]  # fmt: skip


def refusal(inputs, body):
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> '
        f"g {inputs} => (float y) <int64 d = {{3}}> {{ {body} }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ConversionError) as caught:
        convert(load(model))
    (node,) = caught.value.nodes
    return node.reason


@pytest.mark.parametrize("axis", [-4, 5])
@pytest.mark.parametrize("inputs, body", WRONG_AXES, ids=lambda text: text.split(" (")[0])
def test_an_axis_that_is_none(inputs, body, axis):
    assert f"axis {axis}" in refusal(inputs, body.format(axis=axis)).replace("=", " ")


@pytest.mark.parametrize("inputs, body, reason", CONTRADICTIONS, ids=lambda text: text[:30])
def test_a_node_that_contradicts_its_inputs(inputs, body, reason):
    assert re.search(reason, refusal(inputs, body))
