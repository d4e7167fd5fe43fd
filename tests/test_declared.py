"""Declared types and shapes that contradict what the nodes give, at every opt level."""

import numpy as np
import onnx.reference
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

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
        (gelu(TensorProto.INT8), "'e' is declared INT8, but Erf gives FLOAT"),
    ],
)
def test_another_element_type_is_refused_by_name_whatever_is_rewritten(model, message, opt_level):
    with pytest.raises(ModelError, match=message):
        convert_and_build(model, "llvm", opt_level=opt_level)


@pytest.mark.parametrize("opt_level", [0, 3])
@pytest.mark.parametrize(
    "inner, result, warning",
    [
        ((3, 2), (2, 3), "'e' is declared [3, 2], but Erf gives [2, 3]"),
        ((2, 3), (2, 4), "'y' is declared [2, 4], but Mul gives [2, 3]"),
        ((6,), (2, 3, 1), "'y' is declared [2, 3, 1], but Mul gives [2, 3]"),
    ],
)
def test_another_shape_is_left_out_with_a_warning(inner, result, warning, opt_level, caplog):
    model = gelu(shape=inner, result_shape=result)
    same_as_onnxruntime(model, {"x": np.linspace(-3, 3, 6, dtype="f4").reshape(2, 3)}, opt_level)
    assert warning in caplog.text


def same_as_onnxruntime(model, feeds, opt_level=3):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    got = convert_and_build(model, "llvm", opt_level=opt_level).run(None, feeds)
    for ours, theirs in zip(got, session.run(None, feeds), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_another_shape_that_only_converters_see_is_not_trusted_by_rewrites(caplog):
    model = parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
    g (float[n, 3] x) => (float[n, 3] y, int64[1] width)
    <float[n, 4] r> {
      s = Shape (x)
      zero = Constant <value_ints = [0]> ()
      three = Constant <value_ints = [3]> ()
      rows = Gather (s, zero)
      shape = Concat <axis = 0> (rows, three)
      r = Reshape (x, shape)
      width = Shape <start = 1> (r)
      y = Relu (r)
    }""")
    x = np.linspace(-3, 3, 6, dtype="f4").reshape(2, 3)
    y, width = convert_and_build(model, "llvm").run(None, {"x": x})
    assert width.tolist() == [3]
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    assert caplog.text.count("'r' is declared [n, 4], but Reshape gives [n, 3]") == 1


def test_another_shape_of_an_initializer_is_left_out(caplog):
    model = parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
    g (float[2, 3] x) => (float[2, 3] y, int64[2] size)
    <float[1, 3] w = {1, 2, 3}> {
      y = Add (x, w)
      size = Shape (w)
    }""")
    model.graph.value_info.append(VALUE("w", FLOAT, (3, 1)))
    y, size = convert_and_build(model, "llvm").run(None, {"x": np.zeros((2, 3), "f4")})
    assert y.tolist() == [[1, 2, 3]] * 2 and size.tolist() == [1, 3]
    assert "'w' is declared [3, 1], but the initializer gives [1, 3]" in caplog.text
    model.graph.value_info[0].type.tensor_type.elem_type = TensorProto.INT32
    with pytest.raises(ModelError, match="'w' is declared INT32, but the initializer gives FLOAT"):
        convert_and_build(model, "llvm")


def test_the_name_of_another_size_is_left_out():
    """Rewrites would take the Expand away: ``r`` has the shape of ``x``, its declaration says."""
    model = parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
    g (float[n, 3] x, float[m, 3] z) => (float[k, 3] y) {
      r = Relu (z)
      size = Shape (x)
      y = Expand (r, size)
    }""")
    model.graph.value_info.append(VALUE("r", FLOAT, ("n", 3)))
    x, z = np.zeros((2, 3), "f4"), np.ones((1, 3), "f4")
    assert convert_and_build(model, "llvm")(x, z).tolist() == [[1, 1, 1]] * 2


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
