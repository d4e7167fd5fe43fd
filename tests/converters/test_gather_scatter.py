"""Gathers and scatters: negative, repeated and out-of-range indices."""

import numpy as np
import pytest

from tests.oracle import check_node
from tvm_ext.errors import RunError

X = np.random.default_rng(0).normal(size=(3, 5, 7)).astype("float32")


def indices(low, high, *shape, dtype="int64"):
    return np.random.default_rng(1).integers(low, high, shape).astype(dtype)


@pytest.mark.parametrize("symbolic", [False, True])
def test_gathers(symbolic):
    check_node("Gather", [X, indices(-5, 5, 2, 3)], {"axis": 1}, symbolic=symbolic)
    check_node(
        "GatherElements",
        [X, indices(-7, 7, 3, 5, 2, dtype="int32")],
        {"axis": 2},
        symbolic=symbolic,
    )
    check_node(
        "GatherND",
        [X, indices(-3, 3, 3, 2, 1)],
        {"batch_dims": 1},
        constants=[1],
        symbolic=symbolic,
    )


def test_gather_of_one_known_index():
    for axis, index in [(0, np.array(-3)), (1, np.array([4])), (2, np.array([[-1]], "int32"))]:
        check_node("Gather", [X, index], {"axis": axis}, constants=[1], symbolic=axis != 2)
    with pytest.raises(RunError, match="index on axis 0 is 9, more than 2"):
        check_node("Gather", [X, np.array(9)], constants=[1], expected=[X[2]], symbolic=True)


def test_gather_of_a_scalar_index_and_of_nothing():
    check_node("Gather", [X > 0, np.array(-1)], {"axis": -1}, expected=[(X > 0)[..., -1]])
    check_node("Gather", [X[:0], np.zeros(0, "int64")])
    check_node("GatherND", [X, indices(-3, 3, 4, 2)], opset=11)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_elements(reduction):
    # Without a reduction the result is defined only where no index repeats.
    rows = np.random.default_rng(2).permuted(np.tile(np.arange(-5, 0), (3, 7, 1)), axis=2)
    place = rows[..., :2].transpose(0, 2, 1) if reduction == "none" else indices(-5, 5, 3, 2, 7)
    check_node("ScatterElements", [X, place, X[:, :2]], {"axis": 1, "reduction": reduction})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_nd(reduction):
    place = np.array([[2], [0 if reduction == "none" else 2]])
    check_node("ScatterND", [X, place, X[1:]], {"reduction": reduction})


def test_scatter_of_integers_and_before_reductions():
    x = np.arange(10, dtype="int64")
    check_node("ScatterND", [x, np.array([3]), np.array(5)])
    check_node(
        "Scatter",
        [x.reshape(2, 5), np.array([[1, -1]]), np.array([[7, 8]])],
        {"axis": 1},
        opset=9,
        expected=[[[0, 7, 2, 3, 8], [5, 6, 7, 8, 9]]],
    )


@pytest.mark.parametrize("reduction, expected", [("min", [np.nan, 1]), ("max", [np.nan, 3])])
def test_scatter_propagates_nan(reduction, expected):
    data, updates = np.float32([np.nan, 1]), np.float32([2, 3])
    check_node(
        "ScatterND",
        [data, np.array([[0], [1]]), updates],
        {"reduction": reduction},
        expected=[expected],
    )


def test_scattered_extremes_of_bfloat16():
    data, nan = np.array([1, np.nan, 5], "bfloat16"), np.array([2, 2, np.nan], "bfloat16")
    want = np.array([1, np.nan, np.nan], "float32")
    check_node("ScatterElements", [data, np.arange(3), nan], {"reduction": "min"}, expected=[want])
