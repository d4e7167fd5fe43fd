"""Static models as one C function: addresses, threads, libraries beside each other."""

import threading

import numpy as np
import pytest
from onnx import parser

from tvm_ext import convert_and_build, load


def model(body, signature="float[3, 37] x) => (float[3, 37] y"):
    return parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17]> g ({signature}) {{ {body} }}'
    )


def run(onnx_model, *arrays, **options):
    return convert_and_build(onnx_model, "llvm", **options)(*arrays)


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("offset", [4, 8, 36])
def test_inputs_at_any_address(offset):
    raw = np.zeros(4 * 3 * 37 + 64, np.uint8)
    x = raw[offset : offset + 4 * 3 * 37].view("float32").reshape(3, 37)
    x[...] = floats(3, 37)
    product = model("t = Transpose(x) y = MatMul(x, t)", "float[3, 37] x) => (float[3, 3] y")
    np.testing.assert_allclose(run(product, x), x @ x.T, rtol=1e-5, atol=1e-5)


def test_kernels_named_as_functions_of_libc():
    """An operator names its kernel; `exp` and `memset` are also what kernels call."""
    x = floats(3, 37)
    np.testing.assert_allclose(run(model("y = Exp(x)"), x, opt_level=0), np.exp(x), rtol=2e-6)


def test_models_beside_each_other_and_from_many_threads(tmp_path):
    sums = convert_and_build(model("y = Add(x, x)"), "llvm")
    squares = convert_and_build(model("y = Mul(x, x)"), "llvm")
    sums.save(tmp_path / "sums.tvmx")
    again = load(tmp_path / "sums.tvmx")
    wrong = []

    def call(seed):
        for k in range(50):
            x = floats(3, 37, seed=100 * seed + k)
            agree = [(sums(x) == x + x), (squares(x) == x * x), (again(x) == x + x)]
            wrong.extend(seed for equal in agree if not equal.all())

    callers = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_an_output_that_is_also_read_is_also_returned():
    body = "y = Relu(x) z = Neg(y) r = Identity(y) v = Reshape(y, s)"
    outputs = "float[3, 37] y, float[3, 37] z, float[3, 37] r, float[37, 3] v, float[3, 37] x"
    signature = f"float[3, 37] x) => ({outputs}) <int64[2] s = {{37, 3}}> {{ {body} }} #"
    text = f'<ir_version: 9, opset_import: ["" : 17]> g ({signature}'.split("#")[0]
    proto, x = parser.parse_model(text), floats(3, 37)
    y, z, r, v, same = convert_and_build(proto, "llvm")(x)
    for got, want in ((y, np.maximum(x, 0)), (z, -y), (r, y), (v, y.reshape(37, 3)), (same, x)):
        np.testing.assert_array_equal(got, want)
    y[...] = 0
    assert v.any() and r.any() and x.any()


def test_the_profile_times_every_kernel():
    built = convert_and_build(
        model("a = Softmax(x) y = CumSum(a, k)", "float[3, 37] x, int64 k) => (float[3, 37] y"),
        "llvm",
    )
    calls, seconds = built._executor.time_kernels([floats(3, 37), np.array(1)], repeat=3)
    assert seconds.shape == (3, len(calls)) and (seconds > 0).all()
