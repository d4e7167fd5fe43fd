"""Comparison, logic and bits; oracle: numpy."""

import numpy as np
import pytest

from tests.oracle import check_node

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(), (40,)])
@pytest.mark.parametrize("op_type, compute", [("Equal", np.equal), ("Xor", np.logical_xor)])
def test_bools(op_type, compute, shape):
    a, b = (RNG.integers(0, 2, s).astype(bool) for s in (shape, (3, *shape)))
    check_node(op_type, [a, b], expected=[compute(a, b)])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_shifts(dtype):
    x, by = np.array([1, 200, 7], dtype), np.array([3, 1, 0], dtype)
    check_node("BitShift", [x, by], {"direction": "LEFT"}, expected=[x << by])
    check_node("BitShift", [x, by], {"direction": "RIGHT"}, expected=[x >> by])


def test_dims_that_stretch_at_run_time_against_a_constant():
    a, b = RNG.integers(0, 9, (1, 4)), RNG.integers(0, 9, (3, 4))
    check_node("Less", [a, b], symbolic=True, constants=(1,), expected=[a < b])
