"""MatMul, Gemm and Einsum; oracle: numpy in float64."""

import numpy as np
import pytest
from tvm_ext.frontend import convert, load

from tests.oracle import check_model, check_node, node_model
from tvm_ext import convert_and_build
from tvm_ext.errors import RunError

RNG = np.random.default_rng(0)


def data(*shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


@pytest.mark.parametrize(
    "a, b",
    [((7,), (7,)), ((7,), (2, 7, 3)), ((2, 1, 5, 7), (3, 7, 2)), ((3, 7), (7,)), ((3, 0), (0, 2))],
)
def test_matmul_follows_numpy(a, b):
    a, b = data(*a), data(*b)
    expected = np.matmul(a.astype("float64"), b.astype("float64"))
    check_node("MatMul", [a, b], expected=[expected], atol=1e-5)


def test_matmul_over_symbolic_dims():
    a, b = data(5, 3, 7), data(7, 2)
    check_node("MatMul", [a, b], constants=(1,), symbolic=True, atol=1e-5)


@pytest.mark.parametrize("op_type", ["MatMul", "Einsum"])
@pytest.mark.parametrize("a, b", [((2, 3, 5), (1, 5, 4)), ((1, 3, 5), (2, 5, 4)), ((2, 5), (5,))])
def test_dims_that_stretch_at_run_time(op_type, a, b):
    attributes = {"equation": "...ij,...jk->...ik" if len(b) > 1 else "ij,j->i"}
    attributes = attributes if op_type == "Einsum" else {}
    model = node_model(op_type, [data(*a), data(*b)], attributes, symbolic=True)
    for info in model.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            dim.dim_param = f"{info.name}_{axis}"
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    for _ in range(len(a) + len(b) - 2 - len(a[:-2])):
        model.graph.output[0].type.tensor_type.shape.dim.add()
    check_model(model, {"x0": data(*a), "x1": data(*b)}, atol=1e-5)


def test_inner_dims_of_two_names_are_one_depth():
    """Not a product that stretches a depth of 1, as an einsum's would."""
    model = node_model("MatMul", [data(2, 3, 5), data(2, 5, 4)], symbolic=True)
    for info in model.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            dim.dim_param = f"{info.name}_{axis}" if axis else "batch"
    assert "einsum" not in convert(load(model)).module.script()
    built = convert_and_build(model)
    a, b = data(2, 3, 5), data(2, 5, 4)
    np.testing.assert_allclose(built(a, b), a @ b, atol=1e-5)
    for depth in (1, 4):
        with pytest.raises(RunError):
            built(a[..., :depth].copy(), b)


def test_matmul_of_integers_wraps():
    a = np.array([[2**30, 3]], "int32")
    expected = (a.astype("int64") @ np.array([[4], [5]])).astype("int32")
    check_node("MatMul", [a, np.array([[4], [5]], "int32")], expected=[expected])


def test_matmul_sums_float16_in_float32():
    a = np.ones((1, 4096), "float16")
    check_node("MatMul", [a, a.T.copy()], expected=[np.full((1, 1), 4096, "float16")], rtol=0)


@pytest.mark.parametrize("constants", [(), (1,), (1, 2)])
@pytest.mark.parametrize("opset", [6, 7, 13])
def test_gemm(constants, opset):
    attributes = {"alpha": 0.25, "beta": -2.0, "transA": 1, "transB": 1}
    if opset == 6:
        attributes["broadcast"] = 1
    check_node("Gemm", [data(7, 3), data(5, 7), data(5)], attributes, opset=opset,
               constants=constants)  # fmt: skip


def test_gemm_without_c_and_with_beta_zero():
    a, b, nan = data(2, 3), data(3, 4), np.full((2, 4), np.nan, "float32")
    check_node("Gemm", [a, b])
    check_node("Gemm", [a, b, nan], {"beta": 0.0}, expected=[a @ b])


def test_gemm_of_integers():
    a, b = np.arange(6, dtype="int32").reshape(2, 3), np.arange(12, dtype="int32").reshape(3, 4)
    check_node("Gemm", [a, b], {"alpha": 2.0}, expected=[2 * a @ b], constants=(1,))


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk", [(3, 5), (5, 2)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 5), (4, 5, 2)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ii->i", [(4, 4)]),
        ("ii", [(4, 4)]),
        ("i,j,k->kji", [(2,), (3,), (4,)]),
        ("ba...", [(2, 3, 5)]),
        ("i...->...", [(3, 2, 4)]),
    ],
)
def test_einsum(equation, shapes):
    inputs = [data(*shape) for shape in shapes]
    expected = np.einsum(equation, *[x.astype("float64") for x in inputs])
    check_node("Einsum", inputs, {"equation": equation}, expected=[expected], atol=1e-5)


@pytest.mark.parametrize(
    "equation, shapes, symbolic",
    [
        ("bqc,bchw->bqhw", [(2, 17, 33), (2, 33, 9, 10)], False),
        ("bwc,wkc->bwk", [(31, 14, 19), (14, 13, 19)], True),
        ("bi,ijk,bk->jb", [(13, 21), (21, 19, 17), (13, 17)], False),
        ("abc,dcb,xe->ade", [(11, 7, 6), (23, 6, 7), (2, 5)], False),
    ],
)
def test_einsum_as_products(equation, shapes, symbolic):
    """Large enough for matrix products: orders, sums of one operand, more than two, outer ones."""
    inputs = [data(*shape) for shape in shapes]
    expected = np.einsum(equation, *[x.astype("float64") for x in inputs])
    check_node("Einsum", inputs, {"equation": equation}, symbolic=symbolic, expected=[expected],
               rtol=1e-4, atol=1e-3, opt_levels=(3,))  # fmt: skip


def test_a_bias_that_may_have_to_be_stretched():
    """The rows are symbolic, those of the bias are not."""
    a, b, c = (RNG.normal(size=s).astype("float32") for s in ((7, 3), (7, 5), (3, 1)))
    check_node("Gemm", [a, b, c], {"transA": 1}, constants=(1, 2), symbolic=True,
               opt_levels=(0, 3))  # fmt: skip
