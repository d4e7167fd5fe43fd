"""The rule of blocked maximum pools: numbers, what is stored, what is declined; oracle: numpy."""

import itertools

import numpy as np
import pytest
import tvm
from tvm import te, topi

from tvm_ext import targets
from tvm_ext.ops.conv2d_blocked import pack_channels
from tvm_ext.ops.pooling import max_pool
from tvm_ext.passes.lift_channels import lift_channels
from tvm_ext.schedules.llvm.pool import PoolBlocked

LANES = 8


def pool(shape, window, epilogue=topi.abs):
    """The kernel of a pool over blocked channels."""
    x = te.placeholder(shape, name="x")
    func = te.create_prim_func([x, epilogue(max_pool(x, *window))])
    return lift_channels(func, LANES, len(shape))


def largest(x, kernel, strides, dilations, before, outputs):
    """By the definition, window by window."""
    result = np.full((*x.shape[:2], *outputs), -np.inf, x.dtype)
    for place in itertools.product(*map(range, outputs)):
        for tap in itertools.product(*map(range, kernel)):
            steps = zip(place, strides, tap, dilations, before, strict=True)
            at = [p * stride + k * d - b for p, stride, k, d, b in steps]
            if all(0 <= i < size for i, size in zip(at, x.shape[2:], strict=True)):
                here = (..., *place)
                result[here] = np.maximum(result[here], x[(..., *at)])
    return result


@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((1, 16, 12, 16), ([3, 3], [2, 2], [1, 1], [1, 1], [6, 8])),
        ((2, 8, 7, 5), ([5, 5], [1, 1], [1, 1], [2, 2], [7, 5])),
        ((1, 8, 9, 16), ([2, 2], [2, 2], [1, 1], [0, 0], [5, 8])),
        ((3, 8, 6, 11), ([3, 2], [1, 3], [2, 4], [2, 1], [6, 4])),
        ((1, 8, 1, 1), ([3, 3], [1, 1], [1, 1], [1, 1], [1, 1])),
        ((1, 8, 3, 4, 4), ([1, 3, 3], [1, 1, 1], [1, 1, 1], [0, 1, 1], [3, 4, 4])),
        ((2, 16, 5, 4, 7), ([3, 2, 3], [2, 1, 2], [1, 2, 1], [1, 1, 1], [3, 4, 4])),
        ((1, 8, 4, 3, 8), ([2, 3, 2], [2, 1, 2], [1, 1, 1], [0, 2, 0], [2, 5, 4])),
    ],
)
def test_a_blocked_pool_is_right_and_stores_nothing(shape, window):
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape).astype("float32")
    x[rng.random(shape) < 0.1] = -np.inf
    x[rng.random(shape) < 0.02] = np.nan
    sch = PoolBlocked().apply(pool(shape, window), targets.host_target(), False)
    stored = sch.mod["main"].body.block.alloc_buffers
    assert {buffer.ty.storage_scope for buffer in stored} == {"local"}
    expected = pack_channels(np.abs(largest(x, *window)), LANES)
    out = tvm.runtime.tensor(np.empty_like(expected))
    given = tvm.runtime.tensor(pack_channels(x, LANES))
    tvm.compile(sch.mod, targets.host_target())["main"](given, out)
    np.testing.assert_array_equal(out.numpy(), expected)


@pytest.mark.parametrize(
    ("shape", "window"),
    [
        # The last window begins behind the image: its maximum is that of no element.
        ((1, 8, 4, 4), ([2, 2], [5, 1], [1, 1], [0, 0], [2, 4])),
        ((1, 8, 4, 13 * 2 + 1), ([3, 3], [1, 1], [1, 1], [1, 0], [4, 23])),  # 23 is prime
        ((1, 8, 8), ([3], [1], [1], [1], [8])),
    ],
)
def test_other_pools_are_declined(shape, window):
    assert PoolBlocked().apply(pool(shape, window), targets.host_target(), False) is None
