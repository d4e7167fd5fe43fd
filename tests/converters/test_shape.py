"""Operators that change a shape: static, symbolic and run-time targets."""

import numpy as np
import pytest
from onnx import parser

from tests.oracle import check_node, node_model
from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError, RunError

X = np.arange(24, dtype="float32").reshape(2, 3, 4)


def ints(*values):
    return np.array(values, "int64")


@pytest.mark.parametrize("shape", [(4, -1), (0, -1), (24,), (0, 0, 2, 2), (2, -1, 0)])
@pytest.mark.parametrize("known, symbolic", [(True, False), (True, True), (False, False)])
def test_reshape(shape, known, symbolic):
    check_node("Reshape", [X, ints(*shape)], constants=[1] if known else [], symbolic=symbolic)


@pytest.mark.parametrize("known", [True, False])
def test_reshape_takes_zero_as_a_size(known):
    check_node("Reshape", [X[:0], ints(5, 0)], {"allowzero": 1}, constants=[1] if known else [])


def test_reshape_of_a_wrong_size_is_refused():
    with pytest.raises(ConversionError, match="24 elements"):
        check_node("Reshape", [X, ints(5, 5)], constants=[1], expected=[X])


@pytest.mark.parametrize("axes", [(0, -2), (2,)])
@pytest.mark.parametrize("known", [True, False])
def test_squeeze_and_unsqueeze(axes, known):
    constants = [1] if known else []
    check_node("Squeeze", [X.reshape(1, 24, 1, 1), ints(*axes)], constants=constants)
    check_node("Unsqueeze", [X, ints(*axes)], constants=constants)


def test_axes_as_attributes_and_symbolic_dims():
    check_node("Squeeze", [X.reshape(1, 6, 4)], {"axes": [0]}, opset=11, symbolic=True)
    check_node("Unsqueeze", [X], {"axes": [1, 4]}, opset=11, symbolic=True)
    check_node("Squeeze", [X.reshape(1, 24, 1)])


def test_squeeze_of_what_turns_out_to_be_1():
    check_node("Squeeze", [X.reshape(1, 6, 1, 4)], symbolic=True, opt_levels=(0, 3))
    undeclared = convert_and_build(node_model("Squeeze", [X], symbolic=True), "llvm")
    (y,) = undeclared.run(None, {"x0": X})
    np.testing.assert_array_equal(y, X)
    (y,) = undeclared.run(None, {"x0": X[:1]})
    np.testing.assert_array_equal(y, X[0])


def test_empty_tensors():
    check_node("Flatten", [X[:0]], {"axis": 0})
    check_node("Unsqueeze", [X[:0], ints(0)], constants=[1])
    check_node("Squeeze", [X[:0, :, :1], ints(2)], constants=[1])


def test_shape_size_flatten_transpose():
    check_node("Shape", [X], {"start": -2, "end": 10}, symbolic=True)
    check_node("Shape", [X], {"start": 1, "end": -1})
    check_node("Size", [X], symbolic=True)
    check_node("Flatten", [X], {"axis": -1}, symbolic=True)
    check_node("Flatten", [X], {"axis": 0})
    check_node("Transpose", [X], symbolic=True)
    check_node("Transpose", [X.astype("uint8")], {"perm": [1, 0, 2]})


def test_sizes_that_do_not_fit_are_an_error_of_the_run():
    """Elements were left out, or read from beyond the last."""
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]>'
        "g (float[n, 3, 1] x, int64[2] shape, int64[1] axis, int64[3] size)"
        " => (float[a, 2] pairs, float[b, c] y, float[d, e] rows, float[f, g, h] many)"
        "<int64[2] two = {-1, 2}> { pairs = Reshape (x, two) y = Reshape (x, shape)"
        " rows = Squeeze (x, axis) many = Expand (x, size) }"
    )
    built = convert_and_build(model, "llvm", opt_level=1)
    x = np.ones((2, 3, 1), "float32")
    feeds = {"x": x, "shape": ints(3, 2), "axis": ints(2), "size": ints(2, 3, 4)}
    assert [y.shape for y in built.run(None, feeds)] == [(3, 2), (3, 2), (2, 3), (2, 3, 4)]
    odd = {"x": x[:1], "shape": ints(3, 1), "size": ints(1, 3, 1)}
    wrong = [{"shape": ints(4, 2)}, {"shape": ints(-1, -1)}, {"axis": ints(0)},
             {"size": ints(5, 3, 1)}]  # fmt: skip
    for change in (odd, *wrong):
        with pytest.raises(RunError):
            built.run(None, feeds | change)
