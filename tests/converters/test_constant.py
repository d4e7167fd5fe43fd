"""Tensors made from attributes, shapes and scalars."""

import numpy as np
import pytest
from onnx import numpy_helper, parser

from tests.oracle import check_node
from tvm_ext import convert_and_build


def array(value, dtype="float32"):
    return np.array(value, dtype)


@pytest.mark.parametrize(
    "attributes, expected",
    [
        ({"value_int": 3}, array(3, "int64")),
        ({"value_ints": [1, 2]}, array([1, 2], "int64")),
        ({"value_float": 0.5}, array(0.5)),
        ({"value_floats": [0.5]}, array([0.5])),
        ({"value": numpy_helper.from_array(array([[True]], "bool"))}, array([[True]], "bool")),
    ],
)
def test_constant(attributes, expected):
    check_node("Constant", [], attributes, expected=[expected])


def test_constant_of_shape():
    seven = numpy_helper.from_array(array([7], "int8"))
    for shape in ([2, 3], [0, 2], []):
        check_node("ConstantOfShape", [array(shape, "int64")])
    check_node("ConstantOfShape", [array([2, 3], "int64")], {"value": seven}, constants=[0])
    for number, dtype in (2**64 - 1, "uint64"), (1.7e308, "float64"), (-(2**63), "int64"):
        value = numpy_helper.from_array(np.array([number], dtype))
        check_node("ConstantOfShape", [array([2, 3], "int64")], {"value": value})
    for endless in -np.inf, np.nan:
        value = numpy_helper.from_array(array([endless]))
        check_node("ConstantOfShape", [array([2, 3], "int64")], {"value": value})


@pytest.mark.parametrize(
    "start, limit, delta, dtype",
    [
        (1, 8, 0.75, "float32"),
        (10, -3, -2, "int32"),
        (1, -8, 2, "int64"),
    ],
)
@pytest.mark.parametrize("constants", [[0, 1, 2], []])
def test_range(start, limit, delta, dtype, constants):
    scalars = [array(v, dtype) for v in (start, limit, delta)]
    check_node("Range", scalars, constants=constants)


@pytest.mark.parametrize("step", [-1, -2, 3])
def test_range_to_or_from_a_symbolic_size(step):
    ends = "last, minus_one" if step < 0 else "zero, n"
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["": 18]>
        g (float[rows, n] x) => (int64[m] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64 minus_one = {{-1}}, int64 step = {{{step}}}>
        {{
            size = Shape<start = 1>(x)
            n = Squeeze(size)
            last = Sub(n, one)
            y = Range({ends}, step)
        }}""")
    compiled = convert_and_build(model, "llvm")
    for n in (7, 1, 0):
        wanted = np.arange(n - 1, -1, step) if step < 0 else np.arange(0, n, step)
        np.testing.assert_array_equal(compiled(np.zeros((2, n), "float32")), wanted)


@pytest.mark.parametrize("start, step", [(0.0, 1.0), (2.0, 3.0), (9.0, -2.0), (0.5, 1.0)])
def test_range_of_floats_up_to_a_symbolic_size(start, step):
    """Detectors make the places of their anchors so: there are as many as pixels."""
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["": 18]>
        g (float[rows, n] x) => (float[m] y)
        <float start = {{{start}}}, float step = {{{step}}}>
        {{
            size = Shape<start = 1>(x)
            n = Squeeze(size)
            limit = Cast<to = 1>(n)
            y = Range(start, limit, step)
        }}""")
    compiled = convert_and_build(model, "llvm")
    assert (len(compiled.executor.plan.read) == 0) is (start != 0.5)  # else it is computed
    for n in (7, 1, 0, 12):
        np.testing.assert_array_equal(
            compiled(np.zeros((2, n), "float32")), np.arange(start, n, step, "float32")
        )


def test_one_hot():
    check_node(
        "OneHot",
        [array([0, -1, 2], "int64"), array(3, "int64"), array([-1, 4])],
        {"axis": 0},
        constants=[1],
    )
    # 7 is out of range: nothing is hot.
    check_node(
        "OneHot",
        [array([[0, 7]], "int32"), array(3, "int64"), array([0, 1], "bool")],
        {"axis": 1},
        expected=[array([[[1, 0], [0, 0], [0, 0]]], "bool")],
    )


def test_eye_like():
    check_node("EyeLike", [np.zeros((3, 5), "float32")], {"k": 1, "dtype": 9}, symbolic=True)


@pytest.mark.parametrize("k", [-2, 0, 9])
def test_trilu(k):
    x = np.arange(30, dtype="int8").reshape(2, 3, 5)
    check_node("Trilu", [x, array(k, "int64")], {"upper": 0})
    check_node("Trilu", [x, array(k, "int64")], constants=[1], symbolic=True)


def test_folded_shapes_in_the_first_opset():
    x = np.zeros((2, 3), "float32")
    check_node("Shape", [x], opset=1, opt_levels=(1,))
