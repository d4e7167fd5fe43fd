"""Softmax, LogSoftmax and Hardmax; oracle: onnx.reference in float64."""

import numpy as np
import pytest

from tests.oracle import check_node

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 5)).astype("float32")


def flattened(function, x, axis):
    """What opsets below 13 compute: the axes from ``axis`` on are one row."""
    return function(x.astype("float64").reshape(int(np.prod(x.shape[:axis])), -1)).reshape(x.shape)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def hardmax(x):
    return np.eye(x.shape[-1])[x.argmax(-1)]


NUMPY = {"Softmax": softmax, "LogSoftmax": lambda x: np.log(softmax(x)), "Hardmax": hardmax}


@pytest.mark.parametrize("op_type", sorted(NUMPY))
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_axis(op_type, axis):
    check_node(op_type, [X], {"axis": axis})


@pytest.mark.parametrize("op_type", sorted(NUMPY))
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_before_opset_13_the_input_is_a_matrix(op_type, axis):
    check_node(op_type, [X], {"axis": axis}, opset=11,
               expected=[flattened(NUMPY[op_type], X, axis)])  # fmt: skip


def test_large_values_and_infinities():
    x = np.array([[1e30, 1e30, -np.inf], [-3e38, 3e38, 0], [-1e4, -1e4, -1e4]], "float32")
    check_node("Softmax", [x])
    check_node("LogSoftmax", [x[2:]])


def test_rows_of_infinity_or_nan_give_nan():
    x = np.array([[-np.inf, -np.inf], [np.inf, 0], [np.nan, 1], [1, 1]], "float32")
    expected = np.array([[np.nan] * 2] * 3 + [[0.5] * 2])
    check_node("Softmax", [x], expected=[expected])


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_narrow_and_wide_floats(dtype):
    """A float16 sum of 4096 equal terms would stop at 2048."""
    x = np.zeros((1, 4096), dtype)
    check_node("Softmax", [x], expected=[np.full_like(x, 1 / 4096)])


def test_hardmax_takes_the_first_of_equals():
    check_node("Hardmax", [np.array([[1, 3, 3], [-np.inf] * 3], "float32")],
               expected=[np.array([[0, 1, 0], [1, 0, 0]], "float32")])  # fmt: skip


def test_symbolic_dims():
    check_node("Softmax", [X], {"axis": 1}, opset=11, symbolic=True,
               expected=[flattened(softmax, X, 1)])  # fmt: skip
