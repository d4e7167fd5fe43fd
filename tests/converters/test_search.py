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


def test_unsigned_numbers_sort_above_signed_ones():
    x = np.array([1, 2**63, 2**64 - 1, 0], "uint64")
    want = [np.array([2**64 - 1, 2**63], "uint64"), np.array([2, 1])]
    check_node("TopK", [x, np.array([2])], constants=(1,), outputs=2, expected=want, rtol=0)
