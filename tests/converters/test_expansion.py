"""Expand and Tile to static, symbolic and run-time shapes."""

import numpy as np
import pytest

from tests.oracle import check_node

X = np.arange(6, dtype="float32").reshape(2, 1, 3)


@pytest.mark.parametrize("constants, symbolic", [([1], False), ([1], True), ([], False)])
def test_expand_and_tile(constants, symbolic):
    for shape in ([4, 2, 5, 3], [1, 1], [2, 0, 3]):
        check_node("Expand", [X, np.array(shape, "int64")], constants=constants, symbolic=symbolic)
    for repeats in ([2, 3, 1], [1, 2, 3], [3, 0, 2]):
        check_node("Tile", [X, np.array(repeats)], constants=constants, symbolic=symbolic)
    empty = np.zeros((2, 0, 3), "float32")
    check_node("Tile", [empty, np.array([2, 3, 2])], constants=constants, symbolic=symbolic)
    trailing = X.transpose(0, 2, 1)  # the axis that memory is contiguous along is not the last
    check_node("Tile", [trailing, np.array([2, 7, 1])], constants=constants, symbolic=symbolic)


def test_bfloat16_is_repeated():
    one = np.array([[1.5], [2.5]], "bfloat16")
    repeated = one.repeat(40, 1)
    check_node("Expand", [one, np.array([2, 40])], constants=(1,), expected=[repeated])
    check_node("Tile", [one, np.array([1, 40])], constants=(1,), expected=[repeated])


def test_the_first_tile_repeats_one_axis():
    count, axis = np.float32(3), np.float32(2)
    check_node("Tile", [X, count, axis], opset=1, constants=(1, 2), expected=[np.tile(X, 3)])
