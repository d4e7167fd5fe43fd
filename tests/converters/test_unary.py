"""Mathematics of one tensor; oracle: onnx.reference in float64."""

import numpy as np
import pytest

from tests.oracle import check_node

X = np.array([[0.0, -0.0, 1e-4, -0.7, 1.0, 3.5, -12.0], [60, -80, 1, 2, 3, 4, 5]], "float32")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("op_type", ["Sinh", "Cosh"])
def test_hyperbolic(op_type, dtype):
    x = np.clip(X, -9, 9).astype(dtype)
    check_node(op_type, [x], rtol=2e-3 if dtype == "float16" else 1e-6)


def test_erf_of_integers_truncates():
    x = np.array([0, 1, -2, 7], "int8")
    check_node("Erf", [x], expected=[np.array([0, 0, 0, 1], "int8")])
