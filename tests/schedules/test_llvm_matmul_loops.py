"""Batched products of symbolic shape, as attention multiplies."""

import re

import numpy as np
import pytest
from onnx import parser

from tests.onnxruntime_oracle import run_onnxruntime
from tvm_ext import convert_and_build

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[b,4,m,k] q, float[b,4,k,n] v, float[b,1,1,n] mask, float[n,8] w)
  => (float[b,4,m,n] y, float[b,4,m,8] u) {
  half = Constant<value = float {0.5}>()
  scores = MatMul(q, v)
  scaled = Mul(scores, half)
  y = Add(scaled, mask)
  powers = Exp(y)
  u = MatMul(powers, w)
}"""
# Rows 6, 4, 2 and 1; columns 64, 16, 4 and 1, of the widest vectors.
SIZES = [(1, 1, 1, 1), (2, 13, 64, 129), (3, 7, 5, 86), (1, 1, 64, 47), (2, 3, 0, 5)]
SIZES += [(0, 3, 4, 2), (1, 0, 3, 3), (1, 2, 3, 0)]


@pytest.fixture(scope="module")
def compiled():
    return convert_and_build(parser.parse_model(MODEL), "llvm")


@pytest.mark.parametrize(("b", "m", "k", "n"), SIZES)
def test_any_shape(compiled, b, m, k, n):
    random = np.random.default_rng(0)
    shapes = {"q": (b, 4, m, k), "v": (b, 4, k, n), "mask": (b, 1, 1, n), "w": (n, 8)}
    feeds = {x: random.standard_normal(d).astype("float32") / 4 for x, d in shapes.items()}
    expected = run_onnxruntime(parser.parse_model(MODEL), feeds)
    for got, want in zip(compiled.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 5), (0, 0, 0), (3, 4, 0), (3, 0, 5)])
def test_static_sizes_of_0(m, k, n):
    """Rows and columns are divided among tasks."""
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[2,{m},{k}] a, float[2,{k},{n}] b) '
        f"=> (float[2,{m},{n}] y) {{ y = MatMul(a, b) }}"
    )
    (result,) = convert_and_build(model, "llvm").run(
        None, {"a": np.ones((2, m, k), "float32"), "b": np.ones((2, k, n), "float32")}
    )
    np.testing.assert_array_equal(result, np.full((2, m, n), k, "float32"))


def test_they_are_register_tiles(compiled):
    """On whole vectors of sums, and one copy of them, whether they run in parallel or not."""
    functions = {
        part.partition("(")[0].rpartition("@")[2]: part
        for part in compiled.sources()["llvm"].split("\ndefine ")[1:]
    }
    products = [
        text for name, text in functions.items() if "tvmx_kernel_" in name and "matmul" in name
    ]
    assert len(products) == 2
    for kernel in products:
        (loop,) = re.findall(r"@(__tvm_parallel_lambda[.\d]*)", kernel)
        assert "x float> @llvm.fmuladd" in functions[loop]
        assert "@tvmx_alone" in kernel
        assert "@llvm.fmuladd" not in kernel


FEW = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,77] a, float[77,101] b, float[101] bias, float[8,33] c, float[33,2500] d,
   float[2,1,3,20] e, float[5,20,513] f, float[1,k] h, float[k,n] i, double[2,9] o, double[9,40] q)
  => (float[1,101] ab, float[8,2500] cd, float[2,5,3,513] ef, float[1,n] hi, double[2,40] oq) {
  product = MatMul(a, b)
  shifted = Add(product, bias)
  ab = Tanh(shifted)
  cd = MatMul(c, d)
  ef = MatMul(e, f)
  hi = MatMul(h, i)
  oq = MatMul(o, q)
}"""


def test_few_rows_are_no_reason_to_pack():
    model = parser.parse_model(FEW)
    compiled = convert_and_build(model, "llvm")
    assert "packed" not in compiled.sources()["select"]
    random = np.random.default_rng(0)
    for k, n in [(4, 64), (7, 1100), (1, 5), (0, 3), (6, 0)]:
        feeds = {}
        for value in model.graph.input:
            dims = value.type.tensor_type.shape.dim
            shape = [{"k": k, "n": n}.get(d.dim_param, d.dim_value) for d in dims]
            dtype = "float64" if value.type.tensor_type.elem_type == 11 else "float32"
            feeds[value.name] = random.standard_normal(shape).astype(dtype)
        expected = run_onnxruntime(model, feeds)
        for got, want in zip(compiled.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


TURNED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,768] a, float[50,768] b, float[50] bias, float[2,7,32] c, float[2,19,32] d,
   float[3,16] e, float[n,16] f, double[5,8] h, double[16,8] i, float[4,33] o, float[40,33] q)
  => (float[1,50] ab, float[2,7,19] cd, float[3,n] ef, double[5,16] hi, float[4,40] oq) {
  product = Gemm<transB = 1>(a, b, bias)
  ab = Tanh(product)
  turned_d = Transpose<perm = [0, 2, 1]>(d)
  cd = MatMul(c, turned_d)
  turned_f = Transpose(f)
  ef = MatMul(e, turned_f)
  hi = Gemm<transB = 1>(h, i)
  oq = Gemm<transB = 1>(o, q)
}"""


def test_columns_in_memory_are_not_turned():
    """But where the depth is no whole vectors: 33."""
    model = parser.parse_model(TURNED)
    compiled = convert_and_build(model, "llvm")
    kernels = [symbol for symbol, _ in compiled.executor.plan.kernels]
    assert sum("transpose" in symbol for symbol in kernels) == 1
    random = np.random.default_rng(0)
    for n in (1, 16, 37, 0):
        feeds = {}
        for value in model.graph.input:
            dims = value.type.tensor_type.shape.dim
            shape = [n if d.dim_param else d.dim_value for d in dims]
            dtype = "float64" if value.type.tensor_type.elem_type == 11 else "float32"
            feeds[value.name] = random.standard_normal(shape).astype(dtype)
        expected = run_onnxruntime(model, feeds)
        for got, want in zip(compiled.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
