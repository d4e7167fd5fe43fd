"""MatMul, Transpose and Add become one Gemm, where that is the same."""

import logging

import numpy as np
import pytest
from tvm_ext.frontend.rewrites.rule import FUSED

from tvm_ext import convert_and_build

from .checking import assert_same, feeds_for, model, operators, rewritten, run

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


def test_a_sum_along_the_rows_by_an_axis_of_opset_6_stays(caplog):
    proto = model("g (float[5, 4] x) => (float[5, 5] y) "
                  "{ p = MatMul(x, w) y = Add <axis = 0, broadcast = 1> (p, b) }",
                  6, w=W, b=bias(5))  # fmt: skip
    with caplog.at_level(logging.DEBUG, "tvm_ext.frontend.rewrites"):
        assert operators(rewritten(proto)) == ["Gemm", "Add"]
    assert "Add of opset 6 or older, with an axis" in caplog.text
    x = bias(5, 4)
    (y,) = convert_and_build(proto, "llvm").run(None, {"x": x})
    np.testing.assert_allclose(y, x @ W + bias(5)[:, None], rtol=1e-5, atol=1e-6)


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
    ("(float[4] x) => (float[5] y) { y = MatMul(x, w) }", 18, "ranks 1 and 2"),
    ("(float[2, 5, 6] x) => (float[2, 4, 6] y) { y = MatMul(w, x) }", 18, "ranks 2 and 3"),
])  # fmt: skip
def test_products_that_must_stay_and_why(graph, opset, reason, caplog):
    proto = model("g " + graph, opset, w=W)
    with caplog.at_level(logging.DEBUG, "tvm_ext.frontend.rewrites"):
        assert assert_same(proto, rewritten(proto, 1)) == ["MatMul"]
    assert reason in caplog.text


@pytest.mark.parametrize("leading", ["2, 3", "N, 3", "2, N", "N, M", "2, N, M"])
@pytest.mark.parametrize("shape", [(5,), (1, 5), (1,), ()])
def test_a_product_of_any_rank_and_its_sum_are_one_gemm(leading, shape):
    proto = model(
        f"g (float[{leading}, 4] x) => (float[{leading}, 5] y) {{"
        "  p = MatMul(x, w) y = Add(b, p) }",
        w=W, b=bias(*shape),
    )  # fmt: skip
    result = rewritten(proto, 1)
    assert assert_same(proto, result) == ["Gemm"]
    assert result.graph.node(0).domain == FUSED


@pytest.mark.parametrize("opset", [9, 18])
def test_a_transposed_matrix_of_run_time_goes_into_the_product_of_any_rank(opset):
    proto = model("g (float[N, 3, 4] x, float[5, 4] v) => (float[N, 3, 5] y) "
                  "{ t = Transpose <perm = [1, 0]> (v) y = MatMul(x, t) }", opset)  # fmt: skip
    result = rewritten(proto, 1)
    assert assert_same(proto, result) == ["Gemm"]
    assert result.graph.node(0).attributes.get_int("transB") == 1


@pytest.mark.parametrize("opset", [7, 9, 10])
def test_gemm_without_bias_before_the_opset_that_has_it(opset):
    proto = model("g (float[N, 4] x) => (float[N, 5] y) { y = MatMul(x, w) }", opset, w=W)
    result = rewritten(proto, 1)
    assert assert_same(proto, result) == ["Gemm"]
    assert result.graph.node(0).domain == FUSED


def test_products_in_branches_of_branches():
    inner = "y = If (d) <then_branch = t () => (float[3, 5] a) { a = MatMul(x, w) }, " \
            "else_branch = e () => (float[3, 5] b) { b = Identity(z) }>"  # fmt: skip
    proto = model(
        "g (float[3, 4] x, float[3, 5] z, bool c, bool d) => (float[3, 5] r) { r = If (c) "
        f"<then_branch = u () => (float[3, 5] y) {{ {inner} }}, "
        "else_branch = v () => (float[3, 5] n) { m = MatMul(x, w) n = Neg(m) }> }", w=W,
    )  # fmt: skip
    feeds = feeds_for(proto) | {"c": np.array(True), "d": np.array(True)}
    compiled = convert_and_build(proto, "llvm")
    for c, d in ((True, True), (True, False), (False, False)):
        own = feeds | {"c": np.array(c), "d": np.array(d)}
        np.testing.assert_allclose(compiled(**own), run(proto, own)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opt_level", [1, 2, 3])
@pytest.mark.parametrize("dims", ["3, 4", "2, 3, 4", "2, 1, 3, 4"])
def test_product_sum_and_activation_are_one_kernel_at_any_rank(dims, opt_level):
    proto = model(f"g (float[{dims}] x) => (float[{dims[:-1]}5] y) "
                  "{ p = MatMul(x, w) s = Add(p, b) y = Relu(s) }", w=W, b=bias(5))  # fmt: skip
    compiled = convert_and_build(proto, "llvm", opt_level=opt_level)
    feeds = feeds_for(proto)
    np.testing.assert_allclose(compiled(**feeds), run(proto, feeds)[0], rtol=1e-5, atol=1e-6)
    assert len(compiled.profile(feeds).kernels) == 1
