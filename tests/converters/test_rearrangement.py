"""Blocks and sequences of elements that change places."""

import numpy as np
import pytest

from tests.oracle import check_node

X = np.arange(2 * 8 * 3 * 5, dtype="float32").reshape(2, 8, 3, 5)


@pytest.mark.parametrize("symbolic", [False, True])
def test_depth_and_space(symbolic):
    for mode in ("DCR", "CRD"):
        check_node("DepthToSpace", [X], {"blocksize": 2, "mode": mode}, symbolic=symbolic)
    check_node("SpaceToDepth", [X.reshape(2, 2, 6, 10)], {"blocksize": 2}, symbolic=symbolic)


def test_reverse_sequence():
    lengths = np.array([1, 8], "int64")
    check_node("ReverseSequence", [X, lengths], {"time_axis": 1, "batch_axis": 0}, symbolic=True)
    check_node("ReverseSequence", [X[0, :, :2, 0], lengths])
