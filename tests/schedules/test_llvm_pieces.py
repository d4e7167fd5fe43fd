"""Rows of symbolic length that a condition parts, against numpy; nothing is written beyond."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tests.schedules.kernels import here, prim_func, schedule
from tvm_ext.executors import lowering
from tvm_ext.schedules.llvm import Elementwise

#: The condition as TIR and as numpy see it, of row q and column k among n columns, and whether
#: each of its changes is at a place that is known.
CONDITIONS = {
    "from and up to sizes": (lambda both, q, k, n: both(k >= 3, k < n - 5), True),
    "between two that move": (lambda both, q, k, n: both(q - k <= 1, k - q <= 2), True),
    "below two": (lambda both, q, k, n: both(k < q, k < n - 2), True),
    "above, the column on the right": (lambda both, q, k, n: both(q <= k, 3 < k), True),
    "both at one place": (lambda both, q, k, n: both(n - 4 >= k, n - 3 > k), True),
    "every other": (lambda both, q, k, n: both(k % 2 == 0, k < n - 1), False),
}
AROUND = 512  # elements before and behind the result
SIZES = (5, 5), (40, 33), (33, 40), (100, 70), (50, 1), (1, 50)


def chosen(condition):
    rows, n = tirx.Var("rows", "int64"), tirx.Var("n", "int64")
    x = te.placeholder((rows, n), "float32", "x")

    def element(q, k):
        there = condition(tirx.all, q, k, n)
        return tirx.if_then_else(there, x[q, k] * 2, tirx.const(-1.0, "float32"))

    return schedule((Elementwise(),), prim_func(x, te.compute((rows, n), element, "y")), here())


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions(name):
    condition, is_parted = CONDITIONS[name]
    sch = chosen(condition)
    assert ("T.vectorized" in sch.mod.script()) == is_parted
    library = tvm.compile(sch.mod, here(), tir_pipeline=lowering.TIR_PIPELINE)
    for rows, n in SIZES:
        x = np.random.default_rng(rows * n).normal(size=(rows, n)).astype(np.float32)
        memory = np.full(2 * AROUND + rows * n, 7, np.float32)
        start = AROUND - memory.ctypes.data % 64 // 4  # results start at a cache line
        inside = memory[start : start + rows * n].reshape(rows, n)
        library["main"](tvm.runtime.tensor(x), inside)
        q, k = np.ogrid[:rows, :n]
        np.testing.assert_array_equal(
            inside, np.where(condition(np.logical_and, q, k, n), 2 * x, -1)
        )
        assert (memory[:start] == 7).all() and (memory[start + rows * n :] == 7).all()


def test_a_condition_that_reads_is_asked_for_each_element():
    n = tirx.Var("n", "int64")
    x = te.placeholder((n,), "float32", "x")
    end = te.placeholder((1,), "int64", "end")
    y = te.compute((n,), lambda k: tirx.if_then_else(k < end[0], x[k], x[k] * 3), "y")
    sch = schedule((Elementwise(),), prim_func(x, end, y), here())
    library = tvm.compile(sch.mod, here(), tir_pipeline=lowering.TIR_PIPELINE)
    values = np.arange(40, dtype="float32")
    got = tvm.runtime.tensor(np.empty_like(values))
    library["main"](tvm.runtime.tensor(values), tvm.runtime.tensor(np.array([7])), got)
    np.testing.assert_array_equal(got.numpy(), np.where(np.arange(40) < 7, values, 3 * values))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "bool"])
def test_types_whose_vectors_differ(dtype):
    n = tirx.Var("n", "int64")
    x = te.placeholder((n,), dtype, "x")
    value = tirx.const(1, dtype)
    y = te.compute((n + 40,), lambda k: tirx.if_then_else(k < n, x[k], value), "y")
    sch = schedule((Elementwise(),), prim_func(x, y), here())
    library = tvm.compile(sch.mod, here(), tir_pipeline=lowering.TIR_PIPELINE)
    values = (np.arange(50) % 7 == 0).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    got = tvm.runtime.tensor(np.zeros(90, values.dtype))
    library["main"](tvm.runtime.tensor(values), got)
    np.testing.assert_array_equal(got.numpy(), np.append(values, np.ones(40, values.dtype)))


def test_sums_of_one_term_begin_anew():
    """Without the loop over the terms their block looks like an element-wise one."""
    n = tirx.Var("n", "int64")
    x = te.placeholder((n,), "float32", "x")
    padded = te.compute(
        (n + 2,), lambda k: tirx.if_then_else(tirx.all(k >= 1, k <= n), x[k - 1], 0.0)
    )
    first, end = (tirx.const(bound, "int64") for bound in (0, 1))
    term = te.reduce_axis((first, end), "term")
    y = te.compute((n + 2,), lambda k: te.sum(padded[k + term] * 3, axis=term), "y")
    sch = schedule((Elementwise(),), prim_func(x, y), here())
    library = tvm.compile(sch.mod, here(), tir_pipeline=lowering.TIR_PIPELINE)
    values = np.arange(1, 41, dtype="float32")
    got = tvm.runtime.tensor(np.full(42, 77, np.float32))
    library["main"](tvm.runtime.tensor(values), got)
    np.testing.assert_array_equal(got.numpy(), np.pad(3 * values, 1))
