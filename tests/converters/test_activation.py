"""Activation and unary functions: relative accuracy everywhere, NaN and infinities."""

import math

import numpy as np
import pytest

from tests.oracle import check_node

TAIL = np.array([1e-30, 1e-8, 1e-4, 0.1, 0.7, 3, 20, 80], "float32")
X = np.concatenate([-TAIL[::-1], [0.0], TAIL]).astype("float32")


@pytest.mark.parametrize(
    "op_type", ["Exp", "Tanh", "Erf", "Sigmoid", "Softplus", "Mish", "Elu", "HardSwish"]
)
def test_relative_accuracy_from_tiny_to_saturated(op_type):
    check_node(op_type, [X], rtol=2e-6, atol=1e-37)


def test_atanh_keeps_small_arguments():
    x = np.array([-0.99, -1e-6, 1e-30, 0.3], "float32")
    check_node("Atanh", [x], rtol=1e-6, atol=0, expected=[np.arctanh(x.astype("float64"))])


def test_log_of_singular_and_subnormal_arguments():
    x = np.array([0, -1, np.inf, np.nan, 1e-42], "float32")
    with np.errstate(all="ignore"):
        check_node("Log", [x], rtol=1e-6, expected=[np.log(x.astype("float64"))])


@pytest.mark.parametrize("op_type", ["Relu", "Clip", "Sign", "LeakyRelu"])
def test_nan_passes(op_type):
    x = np.array([np.nan, -1, 2], "float32")
    check_node(op_type, [x])


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate):
    x = X[np.abs(X) < 10].astype("float64")
    exact = x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    smooth = x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    check_node(
        "Gelu",
        [x.astype("float32")],
        {"approximate": approximate},
        expected=[exact if approximate == "none" else smooth],
    )


def test_clip_takes_the_upper_bound_where_the_bounds_cross():
    low, high = np.array(5, "int8"), np.array(-5, "int8")
    x = np.array([-9, 0, 9], "int8")
    check_node("Clip", [x, low, high], expected=[np.full(3, -5, "int8")])
    check_node("Clip", [x, None, high], expected=[np.minimum(x, high)], constants=(2,))


def test_mish_of_large_numbers():
    check_node("Mish", [np.array([3e38, 60, -3e38], "f4")], opset=18)


@pytest.mark.parametrize("op_type", ["Softplus", "Mish", "Gelu"])
def test_bfloat16(op_type):
    x = np.linspace(-4, 4, 37).astype("bfloat16")
    check_node(op_type, [x], rtol=1e-2, atol=1e-2, opt_levels=(0, 3))
