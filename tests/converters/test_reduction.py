"""Reductions: where the axes come from, empty sets, NaN."""

import numpy as np
import pytest

from tests.oracle import check_node, node_model
from tvm_ext import convert_and_build

RNG = np.random.default_rng(3)
X = RNG.uniform(0.5, 2, (3, 5, 2)).astype("float32")


@pytest.mark.parametrize("op_type", ["ReduceL2", "ReduceLogSumExp", "ReduceMean", "ReduceProd"])
def test_axes_as_attribute_and_as_constant(op_type):
    check_node(op_type, [X], {"axes": [-1, 0]}, opset=11)
    check_node(op_type, [X, np.array([1])], {"keepdims": 0}, opset=18, constants=(1,))


@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes_at_run_time(keepdims):
    check_node("ReduceSum", [X, np.array([-1, 0])], {"keepdims": keepdims}, opset=13)


def test_no_axes_is_all_or_none():
    empty = np.array([], "int64")
    check_node("ReduceMax", [X, empty], {"noop_with_empty_axes": 0}, opset=18)
    check_node("ReduceSumSquare", [X, empty], {"noop_with_empty_axes": 1}, opset=18,
               expected=[X * X])  # fmt: skip


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    "op_type, value", [("ReduceMax", -np.inf), ("ReduceMin", np.inf), ("ReduceSum", 0.0)]
)
def test_nothing_to_reduce(op_type, value, symbolic):
    check_node(op_type, [np.zeros((2, 0), "f4"), np.array([1])], opset=18, constants=(1,),
               symbolic=symbolic, expected=[np.full((2, 1), value, "f4")])  # fmt: skip


def test_nan_is_the_extreme():
    x = np.array([[1, np.nan, 2]], "f4")
    check_node("ReduceMax", [x], expected=[np.array([[np.nan]], "f4")])
    check_node("ReduceMin", [-x], expected=[np.array([[np.nan]], "f4")])


def test_bool_extremes():
    x = np.array([[True, False], [True, True]])
    check_node("ReduceMin", [x, np.array([1])], opset=20, constants=(1,))


@pytest.mark.parametrize("last", [0, 1])
def test_first_or_last_of_equal_extremes(last):
    x = np.array([[3, 1, 3], [-np.inf, -np.inf, -np.inf]], "f4")
    check_node("ArgMax", [x], {"axis": 1, "select_last_index": last})


def test_running_sum():
    for constants in [(1,), ()]:
        check_node("CumSum", [X, np.array(-2)], {"reverse": 1, "exclusive": 1},
                   constants=constants)  # fmt: skip


@pytest.mark.parametrize(("shape", "axis"), [((3, 41), 1), ((2, 5, 19), 1), ((1, 7), 0)])
def test_running_sum_along_any_axis(shape, axis):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    for flags in {}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1}:
        check_node("CumSum", [x, np.array(axis)], flags, constants=(1,))
    check_node("CumSum", [x, np.array(axis)], {"reverse": 1}, constants=(1,), symbolic=True)


def test_any_number_of_elements_known_at_run_time():
    model = node_model("ReduceSum", [np.ones(5, "f4")], {"keepdims": 0}, symbolic=True)
    compiled = convert_and_build(model, "llvm", opt_level=0)
    for count in (0, 1, 15, 16, 17, 63, 64, 65, 200):
        assert compiled(np.ones(count, "f4")) == count


def test_nothing_to_reduce_beside_an_empty_axis():
    check_node("ReduceSum", [np.zeros((3, 0, 2), "f4")], {"axes": [0, 2]}, opset=11)


def test_mean_over_nothing():
    check_node("ReduceMean", [np.zeros((2, 0, 3), "f4")], {"axes": [1]}, opset=11,
               expected=[np.full((2, 1, 3), np.nan, "f4")])  # fmt: skip


def test_bfloat16_logarithms_of_sums():
    x = X.astype("bfloat16")
    check_node("ReduceLogSumExp", [x, np.array([1])], constants=(1,), rtol=1e-2, opt_levels=(0, 3))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_running_sums_of_nothing(axis):
    model = node_model("CumSum", [X[:2, :0, None], np.array(axis)], {"reverse": 1}, constants=(1,))
    result = convert_and_build(model, "llvm", opt_level=0).run(None, {"x0": X[:2, :0, None]})[0]
    assert np.shape(result) == X[:2, :0, None].shape
