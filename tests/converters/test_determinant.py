"""Det; oracle: numpy in float64."""

import numpy as np
import pytest

from tests.oracle import check_node

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 3, 5, 5), (0, 2, 2)])
def test_determinant(shape, symbolic):
    x = RNG.normal(size=shape).astype("float32")
    check_node("Det", [x], symbolic=symbolic, rtol=1e-4)


def test_pivots_that_are_zero():
    x = np.array([[[0, 1], [1, 0]], [[0, 0], [0, 0]]], "float32")
    check_node("Det", [x], expected=[np.array([-1, 0], "float32")])
