"""Mathematics of one tensor; oracle: onnx.reference in float64."""

import numpy as np
import onnx
import pytest

from tests.oracle import check_node, node_model
from tvm_ext import convert_and_build

X = np.array([[0.0, -0.0, 1e-4, -0.7, 1.0, 3.5, -12.0], [60, -80, 1, 2, 3, 4, 5]], "float32")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("op_type", ["Sinh", "Cosh"])
def test_hyperbolic(op_type, dtype):
    x = np.clip(X, -9, 9).astype(dtype)
    check_node(op_type, [x], rtol=2e-3 if dtype == "float16" else 1e-6)


def test_erf_of_integers_truncates():
    x = np.array([0, 1, -2, 7], "int8")
    check_node("Erf", [x], opset=9, expected=[np.array([0, 0, 0, 1], "int8")])


def test_trigonometry_of_any_number():
    """4 ulp: random bits, what is nearest to multiples of pi / 2, both zeros, infinities, NaN."""
    bits = np.random.default_rng(0).integers(0, 2**32, 20000, dtype="uint64").astype("uint32")
    near = (np.arange(1, 9000) * (np.pi / 2)).astype("float32")
    worst = [16367173 * 2.0**72, 0.0, -0.0, 1e-40, -1e-7, np.inf, -np.inf, np.nan, 0.5, 1.0]
    x = np.concatenate([bits.view("float32"), near, -near, np.float32(worst)])
    functions = {"Sin": np.sin, "Cos": np.cos, "Tan": np.tan, "Atan": np.arctan}
    nodes = "".join(f"y{op} = {op}(x) " for op in functions)
    outputs = ", ".join(f"float[{x.size}] y{op}" for op in functions)
    head = '<ir_version: 10, opset_import: ["": 22]>'
    model = onnx.parser.parse_model(f"{head} g (float[{x.size}] x) => ({outputs}) {{ {nodes} }}")
    results = convert_and_build(model, "llvm").run(None, {"x": x})
    for got, function in zip(results, functions.values(), strict=True):
        with np.errstate(invalid="ignore"):
            want = function(x.astype("float64"))
        assert np.array_equal(np.isnan(got), np.isnan(want))
        known = ~np.isnan(want)
        ulp = np.spacing(np.abs(want[known]).astype("float32"))
        assert (np.abs(got[known] - want[known]) <= 4 * ulp).all()
        assert np.array_equal(np.signbit(got[x == 0]), np.signbit(want[x == 0]))


@pytest.mark.parametrize(
    ("op_type", "function", "ulps"), [("Exp", np.exp, 1), ("Tanh", np.tanh, 3)]
)
def test_exponentials_of_any_number(op_type, function, ulps):
    """Random bits, the ends of the range, subnormal results, both zeros, infinities, NaN."""
    bits = np.random.default_rng(0).integers(0, 2**32, 20000, dtype="uint64").astype("uint32")
    ends = np.linspace(-105, 90, 20000).astype("float32")
    worst = [
        88.72284,
        88.7229,
        -87.3366,
        -103.97,
        -103.98,
        0.0,
        -0.0,
        1e-40,
        np.inf,
        -np.inf,
        np.nan,
    ]
    x = np.concatenate([bits.view("float32"), ends, np.float32(worst)])
    model = node_model(op_type, [x])
    got = convert_and_build(model, "llvm")(x)
    with np.errstate(over="ignore", invalid="ignore"):
        want = function(x.astype("float64"))
        rounded = want.astype("float32")
    known = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~known], rounded[~known])
    error = np.abs(got[known] - want[known]) / np.spacing(np.abs(rounded[known]))
    assert error.max() <= ulps


def test_tanh_and_elu_of_doubles():
    """3 ulp: random bits, what is near 0 and 1, both zeros, infinities, NaN, subnormal numbers."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**64, 20000, dtype="uint64").view("float64")
    near = rng.standard_normal(20000) * 10.0 ** rng.uniform(-20, 2, 20000)
    worst = [0.0, -0.0, 5e-324, -1e-310, 0.17328, -19.1, 22.0, -709.0, np.inf, -np.inf, np.nan]
    x = np.concatenate([bits, near, worst])
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 22]> g (double[{x.size}] x) => '
        f"(double[{x.size}] t, double[{x.size}] e) {{ t = Tanh(x) e = Elu(x) }}"
    )
    results = convert_and_build(model, "llvm").run(None, {"x": x})
    with np.errstate(over="ignore", invalid="ignore"):
        wide = x.astype("longdouble")
        expected = np.tanh(wide), np.where(wide < 0, np.expm1(wide), wide)
    for got, want in zip(results, expected, strict=True):
        assert np.array_equal(np.isnan(got), np.isnan(want))
        known = np.isfinite(want)
        assert np.array_equal(got[~known], want[~known].astype("float64"), equal_nan=True)
        error = np.abs(got[known] - want[known]) / np.spacing(np.abs(want[known].astype("float64")))
        assert error.max() <= 3
        assert np.array_equal(np.signbit(got[x == 0]), np.signbit(x[x == 0]))
