"""Declared types and shapes that contradict what the nodes give, at every opt level."""

import numpy as np
import onnx.reference
import pytest
from onnx import TensorProto, helper

from tvm_ext import convert_and_build
from tvm_ext.errors import ModelError

VALUE = helper.make_tensor_value_info
FLOAT = TensorProto.FLOAT


def gelu(element=FLOAT, shape=(2, 3), *, result=FLOAT, result_shape=(2, 3)):
    """GELU by Erf, one operator after its recognition; ``e`` inside is declared as given."""
    nodes = [
        helper.make_node("Div", ["x", "root_of_two"], ["a"]),
        helper.make_node("Erf", ["a"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["b"]),
        helper.make_node("Mul", ["x", "b"], ["c"]),
        helper.make_node("Mul", ["c", "half"], ["y"]),
    ]
    constants = {"root_of_two": 2**0.5, "one": 1.0, "half": 0.5}
    graph = helper.make_graph(
        nodes,
        "gelu",
        [VALUE("x", FLOAT, (2, 3))],
        [VALUE("y", result, result_shape)],
        [helper.make_tensor(name, FLOAT, [], [value]) for name, value in constants.items()],
        value_info=[VALUE("e", element, shape)],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.parametrize("opt_level", range(4))
@pytest.mark.parametrize(
    "model, message",
    [
        (gelu(result=TensorProto.INT32), "'y' is declared INT32, but Mul gives FLOAT"),
        (gelu(result=TensorProto.FLOAT16), "'y' is declared FLOAT16, but Mul gives FLOAT"),
        (gelu(result_shape=(2, 4)), r"'y' is declared \[2, 4\], but Mul gives \[2, 3\]"),
        (gelu(result_shape=(2, 3, 1)), r"'y' is declared \[2, 3, 1\], but Mul gives \[2, 3\]"),
        (gelu(TensorProto.INT8), "'e' is declared INT8, but Erf gives FLOAT"),
        (gelu(shape=(3, 2)), r"'e' is declared \[3, 2\], but Erf gives \[2, 3\]"),
    ],
)
def test_a_contradiction_is_refused_by_name_whatever_is_rewritten(model, message, opt_level):
    with pytest.raises(ModelError, match=message):
        convert_and_build(model, "llvm", opt_level=opt_level)


def test_a_contradiction_in_a_branch_is_refused():
    def branch(name, element):
        node = helper.make_node("Cast", ["x"], [name], to=FLOAT)
        return helper.make_graph([node], name, [], [VALUE(name, element, (2,))])

    choice = helper.make_node(
        "If", ["c"], ["y"],
        then_branch=branch("t", FLOAT), else_branch=branch("e", TensorProto.DOUBLE),
    )  # fmt: skip
    inputs = [VALUE("c", TensorProto.BOOL, ()), VALUE("x", TensorProto.INT64, (2,))]
    graph = helper.make_graph([choice], "choice", inputs, [VALUE("y", FLOAT, (2,))])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    with pytest.raises(ModelError, match="'e' is declared DOUBLE, but Cast gives FLOAT"):
        convert_and_build(model, "llvm")


@pytest.mark.parametrize("opt_level", [0, 3])
def test_symbolic_declarations_contradict_nothing(opt_level):
    compiled = convert_and_build(
        gelu(shape=("a", "b"), result_shape=(None, 3)), "llvm", opt_level=opt_level
    )
    x = np.linspace(-3, 3, 6, dtype="float32").reshape(2, 3)
    expected = onnx.reference.ReferenceEvaluator(gelu()).run(None, {"x": x})[0]
    np.testing.assert_allclose(compiled(x), expected, rtol=1e-5, atol=1e-6)
