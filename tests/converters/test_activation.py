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


@pytest.mark.parametrize("op_type", ["Gelu", "Sigmoid"])
def test_the_bounds_of_formulas_in_epilogues(op_type):
    """3 ulp, of Gelu above -1 only; the limits at both ends, NaN where Gelu is -inf times 0."""
    ends = [-np.inf, -3e38, -100, -88, -1e-38, -0.0, 1e-38, 88, 3e38, np.inf, np.nan]
    x = np.concatenate([np.linspace(-12, 12, 40013), np.linspace(-86.9, 90, 8009), ends])
    x = x.astype("float32")
    if op_type == "Gelu":
        x = x[(x > -1) | (x < -9) | np.isnan(x)]
        expected = [v * math.erfc(-v / math.sqrt(2)) / 2 if v > -9 else 0 * v for v in x.tolist()]
        expected = np.where(np.isfinite(x) & (x < -9), 0, np.array(expected))
    else:
        x = x[(x > -87) | (x < -100) | np.isnan(x)]
        expected = 1 / (1 + np.exp(-np.maximum(x.astype("float64"), -700)))
    check_node(op_type, [x], rtol=3.6e-7, atol=1e-17, expected=[expected])


def test_gelu_below_minus_one():
    x = np.linspace(-9.5, -1, 5003).astype("float32")
    expected = [v * math.erfc(-v / math.sqrt(2)) / 2 for v in x.tolist()]
    check_node("Gelu", [x], rtol=0, atol=2.0**-24, expected=[np.array(expected)])


@pytest.mark.parametrize(
    ("op_type", "attributes", "expected"),
    [
        ("LeakyRelu", {"alpha": 0.0}, [np.nan, np.inf, np.nan, -0.0, 1]),
        ("HardSigmoid", {"alpha": 0.0}, [np.nan, np.nan, np.nan, 0.5, 0.5]),
        ("Selu", {"gamma": 0.0}, [-0.0, np.nan, np.nan, -0.0, 0]),
        ("Celu", {"alpha": 0.0}, [0, np.nan, np.nan, 0, np.nan]),
    ],
)
def test_a_factor_of_zero_keeps_nan_and_infinities(op_type, attributes, expected):
    x = np.array([-np.inf, np.inf, np.nan, -1, 1], "f4")
    check_node(op_type, [x], attributes, expected=[np.array(expected, "f4")], opt_levels=(0, 3))


@pytest.mark.parametrize("constants", [(), (1,)])
def test_clip_of_unsigned_numbers_beyond_int64(constants):
    x, low = np.array([0, 5, 2**63, 2**64 - 1], "uint64"), np.array(2**63 + 7, "uint64")
    check_node("Clip", [x, low], expected=[np.maximum(x, low)], constants=constants)
    check_node("Clip", [x, np.array(3, "uint64")], expected=[np.maximum(x, 3)], constants=constants)


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
