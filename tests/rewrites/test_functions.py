"""Model-local functions are inlined; operators without a converter become their ONNX body."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator
from tvm_ext.frontend.rewrites import expand
from tvm_ext.frontend.rewrites.inline import inline_functions

from tvm_ext.errors import ModelError

from .checking import assert_same

CALLS = """
<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
g (float[3] x) => (float[3] y) {{ a = f.swish(x) y = f.twice(a) }}
<opset_import: ["" : {opset}, "f" : 1], domain: "f"> swish (x) => (y)
{{ s = {body} y = Mul(x, s) }}
<opset_import: ["" : 17, "f" : 1], domain: "f"> twice (x) => (y)
{{ a = f.swish(x) y = f.swish(a) }}
"""


def test_functions_that_call_functions():
    proto = parser.parse_model(CALLS.format(opset=17, body="Sigmoid(x)"))
    assert assert_same(proto, inline_functions(ir.from_proto(proto))) == ["Sigmoid", "Mul"] * 3


def test_a_function_for_an_older_opset_that_means_the_same():
    proto = parser.parse_model(CALLS.format(opset=14, body="Sigmoid(x)"))
    result = inline_functions(ir.from_proto(proto))
    assert [node.op_type for node in result.graph] == ["Sigmoid", "Mul"] * 3


def test_a_function_for_an_older_opset_that_means_something_else():
    proto = parser.parse_model(CALLS.format(opset=12, body="Softmax(x)"))
    with pytest.raises(ModelError, match=r"f\.swish .* differ in Softmax"):
        inline_functions(ir.from_proto(proto))


@pytest.fixture(scope="module")
def cases():
    return {case.name: case for case in load_model_tests(kind="node")}


@pytest.mark.parametrize("name", [
    "test_celu",  # depends on the node
    "test_elu",  # its attribute by reference
    "test_gelu_tanh_2",
    "test_attention_4d",  # fewer outputs than the body names
    "test_layer_normalization_2d_axis0",
    "test_sce_none_weights",  # a function of functions
    "test_center_crop_pad_crop_negative_axes_hwc",
    "test_reduce_l1_negative_axes_keep_dims_random",
    "test_mvn",
])  # fmt: skip
def test_the_body_gives_what_the_operator_gives(name, cases, monkeypatch):
    case = cases[name]
    operator = case.model.graph.node[0].op_type
    converted = expand.lookup
    monkeypatch.setattr(
        expand, "lookup",
        lambda domain, op_type, opset:
            (converted(domain, op_type, opset)[0], None if op_type == operator else object()),
    )  # fmt: skip
    result = expand.expand_functions(ir.from_proto(case.model))
    assert operator not in [node.op_type for node in result.graph]
    inputs, expected = case.data_sets[0]
    names = [value.name for value in case.model.graph.input]
    feeds = dict(zip(names, inputs, strict=True))
    got = ReferenceEvaluator(ir.to_proto(result)).run(None, feeds)
    for have, want in zip(got, expected, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


def test_an_operator_with_a_converter_is_left(cases):
    result = expand.expand_functions(ir.from_proto(cases["test_relu"].model))
    assert [node.op_type for node in result.graph] == ["Relu"]
