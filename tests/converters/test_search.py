"""TopK; oracle: onnx.reference."""

import numpy as np
import pytest

from tests.oracle import check_node

X = np.random.default_rng(0).normal(size=(3, 5, 4)).astype("float32")


@pytest.mark.parametrize("constants, symbolic", [((1,), False), ((1,), True), ((), False)])
@pytest.mark.parametrize("k", [0, 3, 5])
def test_top_k(k, constants, symbolic):
    check_node("TopK", [X, np.array([k])], {"axis": 1, "largest": 0}, outputs=2,
               constants=constants, symbolic=symbolic)  # fmt: skip
