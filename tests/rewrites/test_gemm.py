"""MatMul, Transpose and Add become one Gemm, where that is the same."""

import logging

import numpy as np
import onnx_ir as ir
import pytest
from tvm_ext.frontend.rewrites.matmul_to_gemm import BatchedMatMulToGemm
from tvm_ext.frontend.rewrites.rule import rewriting

from .checking import assert_same, model, rewritten

W = np.random.default_rng(1).normal(size=(4, 5)).astype("float32")


def bias(*shape):
    return np.random.default_rng(2).normal(size=shape).astype("float32")


@pytest.mark.parametrize("shape", [(5,), (1, 5), (1,), (1, 1), ()])
@pytest.mark.parametrize("order", ["p, b", "b, p"])
def test_product_and_sum_are_one_gemm(shape, order):
    proto = model(
        f"g (float[N, 4] x) => (float[N, 5] y) {{ p = MatMul(x, w) y = Add({order}) }}",
        w=W, b=bias(*shape),
    )  # fmt: skip
    assert assert_same(proto, rewritten(proto, 1)) == ["Gemm"]


def test_a_product_without_bias():
    proto = model("g (float[N, 4] x) => (float[N, 5] y) { y = MatMul(x, w) }", w=W)
    result = rewritten(proto, 1)
    assert assert_same(proto, result) == ["Gemm"]
    assert len(result.graph.node(0).inputs) == 2


@pytest.mark.parametrize("graph, b, kept", [
    # [3, 5] and [7, 5] against one row: the sum is larger than the product.
    ("(float[1, 4] x) => (float[7, 5] y) { p = MatMul(x, w) y = Add(p, b) }", bias(7, 5), "Add"),
    ("(float[N, 4] x) => (float[2, N, 5] y) { p = MatMul(x, w) y = Add(p, b) }",
     bias(2, 1, 5), "Add"),
    # The product is read twice.
    ("(float[N, 4] x) => (float[N, 5] y) { p = MatMul(x, w) q = Add(p, b) y = Mul(p, q) }",
     bias(5), "Add"),
    ("(float[N, 4] x) => (float[N, 5] y, float[N, 5] p) { p = MatMul(x, w) y = Add(p, b) }",
     bias(5), "Add"),
])  # fmt: skip
def test_sums_that_must_stay(graph, b, kept):
    proto = model("g " + graph, w=W, b=b)
    assert kept in assert_same(proto, rewritten(proto, 1))


def test_one_column_does_not_take_a_row_as_its_bias():
    proto = model("g (float[N, 4] x) => (float[N, 5] y) { p = MatMul(x, w) y = Add(p, b) }",
                  w=W[:, :1].copy(), b=bias(5))  # fmt: skip
    assert assert_same(proto, rewritten(proto, 1)) == ["Gemm", "Add"]


def test_a_bias_known_at_run_time_only_stays():
    proto = model("g (float[N, 4] x, float[5] b) => (float[N, 5] y) "
                  "{ p = MatMul(x, w) y = Add(p, b) }", w=W)  # fmt: skip
    assert assert_same(proto, rewritten(proto, 1)) == ["Gemm", "Add"]


@pytest.mark.parametrize("graph", [
    "(float[N, 4] x) => (float[N, 5] y) { t = Transpose <perm = [1, 0]> (w) y = MatMul(x, t) }",
    "(float[N, 4] x) => (float[N, 5] y) { t = Transpose(w) y = Gemm <alpha = 2.0> (x, t) }",
])  # fmt: skip
def test_a_transposed_constant_is_absorbed(graph):
    proto = model("g " + graph, w=W.T.copy())
    assert assert_same(proto, rewritten(proto, 1)) == ["Gemm"]


def test_transposed_operands_become_attributes():
    proto = model("g (float[4, 3] x, float[5, 4] w) => (float[3, 5] y) "
                  "{ s = Transpose(x) t = Transpose(w) y = MatMul(s, t) }")  # fmt: skip
    result = rewritten(proto, 1)
    assert assert_same(proto, result) == ["Gemm"]
    attributes = result.graph.node(0).attributes
    assert (attributes["transA"].value, attributes["transB"].value) == (1, 1)


def test_a_transpose_with_another_reader_stays():
    proto = model("g (float[3, 4] x, float[5, 4] w) => (float[3, 5] y, float[4, 5] z) "
                  "{ t = Transpose(w) y = MatMul(x, t) z = Relu(t) }")  # fmt: skip
    assert sorted(assert_same(proto, rewritten(proto, 1))) == ["Gemm", "Relu", "Transpose"]


@pytest.mark.parametrize("graph, opset, reason", [
    ("(float[2, 3, 4] x) => (float[2, 3, 5] y) { y = MatMul(x, w) }", 18, "ranks 3 and 2"),
    ("(float[4] x) => (float[5] y) { y = MatMul(x, w) }", 18, "ranks 1 and 2"),
    ("(float[N, 4] x) => (float[N, 5] y) { y = MatMul(x, w) }", 9, "before opset 11"),
])  # fmt: skip
def test_products_that_must_stay_and_why(graph, opset, reason, caplog):
    proto = model("g " + graph, opset, w=W)
    with caplog.at_level(logging.DEBUG, "tvm_ext.frontend.rewrites"):
        assert assert_same(proto, rewritten(proto, 1)) == ["MatMul"]
    assert reason in caplog.text


@pytest.mark.parametrize("leading", ["2, 3", "N, 3", "2, N", "N, M", "2, N, M"])
@pytest.mark.parametrize("zero_bias", [False, True])
def test_a_batched_product_between_reshapes(leading, zero_bias):
    proto = model(f"g (float[{leading}, 4] x) => (float[{leading}, 5] y) {{ y = MatMul(x, w) }}",
                  w=W)  # fmt: skip
    result = rewriting(BatchedMatMulToGemm, zero_bias=zero_bias)(ir.from_proto(proto))
    names = assert_same(proto, result)
    assert "MatMul" not in names
    gemm = next(node for node in result.graph if node.op_type == "Gemm")
    assert len(gemm.inputs) == (3 if zero_bias else 2)
