"""The element-wise rule of llvm: values on hostile shapes, and the structure of the loops."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi
from tvm.tirx import ForKind

from tests.schedules.kernels import WIDE, kinds, loops, prim_func, run, schedule
from tvm_ext.schedules.llvm import Elementwise

RULES = (Elementwise(),)
X, Y, Z = (tirx.Var(name, "int64") for name in "xyz")


def values(shape, seed=0):
    array = np.random.default_rng(seed).standard_normal(shape).astype("float32")
    if array.size > 3:
        array.flat[::7] = np.nan
        array.flat[1::11] = np.inf
    return array


@pytest.mark.parametrize("declared, shape", [
    ((1001,), (1001,)), ((3, 17), (3, 17)), ((1, 1), (1, 1)), ((), ()), ((0, 3), (0, 3)),
    ((2, 3, 225, 7), (2, 3, 225, 7)), ((70001,), (70001,)), ((3, 40001), (3, 40001)),
    ((X,), (1,)), ((X,), (5003,)), ((X, 24), (3, 24)), ((3, X), (3, 1001)), ((X, Y), (17, 1)),
], ids=str)  # fmt: skip
def test_broadcast_chain(declared, shape):
    x = te.placeholder(declared, "float32", "x")
    b = te.placeholder((*(1 for _ in declared[:-1]), *declared[-1:]), "float32", "b")
    y = topi.multiply(topi.add(x, b), tirx.const(2, "float32"))
    sch = schedule(RULES, prim_func(x, b, y), WIDE)
    a, c = values(shape), values((*(1 for _ in shape[:-1]), *shape[-1:]), 1)
    (got,) = run(sch, [a, c], [(shape, "float32")])
    np.testing.assert_array_equal(got, (a + c) * np.float32(2))


@pytest.mark.parametrize("declared, shape, axes", [
    ((17, 33), (17, 33), (1, 0)), ((128, 769), (128, 769), (1, 0)),
    ((2, 12, 24, 64), (2, 12, 24, 64), (0, 2, 1, 3)), ((3, 24, 5, 5), (3, 24, 5, 5), (0, 2, 3, 1)),
    ((X, Y), (33, 70), (1, 0)), ((X, 3, Y), (5, 3, 1), (2, 1, 0)),
], ids=str)  # fmt: skip
def test_transpose(declared, shape, axes):
    x = te.placeholder(declared, "float32", "x")
    a = values(shape)
    expected = a.transpose(axes)
    sch = schedule(RULES, prim_func(x, topi.transpose(x, axes)), WIDE)
    (got,) = run(sch, [a], [(expected.shape, "float32")])
    np.testing.assert_array_equal(got, expected)


def test_data_movement_with_guards():
    x, y = te.placeholder((2, 3, 9, 7), "float32", "x"), te.placeholder((2, 5, 9, 7), "float32")
    joined = topi.concatenate([x, y], axis=1)
    padded = topi.nn.pad(joined, (0, 0, 1, 2), (0, 0, 0, 3), 7.0)
    sch = schedule(RULES, prim_func(x, y, padded), WIDE)
    a, b = values((2, 3, 9, 7)), values((2, 5, 9, 7), 1)
    expected = np.pad(
        np.concatenate([a, b], 1), ((0, 0), (0, 0), (1, 0), (2, 3)), constant_values=7
    )
    (got,) = run(sch, [a, b], [(expected.shape, "float32")])
    np.testing.assert_array_equal(got, expected)


def test_gather_and_strided_slice():
    table, rows = te.placeholder((50, 24), "float32"), te.placeholder((7,), "int64")
    picked = topi.strided_slice(topi.take(table, rows, 0, mode="clip"), (0, 23), (7, 0), (2, -3))
    sch = schedule(RULES, prim_func(table, rows, picked), WIDE)
    a, i = values((50, 24)), np.array([0, 49, 3, 3, 17, 1, 8])
    (got,) = run(sch, [a, i], [((4, 8), "float32")])
    np.testing.assert_array_equal(got, a[i][0:7:2, 23:0:-3])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int64", "uint8"])
def test_dtypes(dtype):
    x = te.placeholder((3, 131), dtype, "x")
    a = np.arange(3 * 131).reshape(3, 131) % 50
    sch = schedule(RULES, prim_func(x, topi.add(x, x)), WIDE)
    array = a.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    (got,) = run(sch, [array], [((3, 131), array.dtype)])
    np.testing.assert_array_equal(got.astype("int64"), 2 * a)


def test_large_work_is_shared_and_small_work_is_not():
    def kernel(n):
        x = te.placeholder((n,), "float32", "x")
        return prim_func(x, te.compute((n,), lambda i: x[i] + 1.0, "y"))

    large = kinds(schedule(RULES, kernel(1 << 20), WIDE), "y")
    assert large == [ForKind.PARALLEL, ForKind.SERIAL, ForKind.VECTORIZED]
    assert kinds(schedule(RULES, kernel(768), WIDE), "y") == [ForKind.SERIAL, ForKind.VECTORIZED]


def test_neighbouring_axes_become_one_and_producers_vanish():
    x, b = te.placeholder((1, 64, 7, 7), "float32", "x"), te.placeholder((1, 64, 1, 1), "float32")
    shifted = te.compute(x.shape, lambda n, c, h, w: x[n, c, h, w] + b[n, c, 0, 0], "shifted")
    y = te.compute(x.shape, lambda *i: te.max(shifted(*i), 0.0), "y")
    sch = schedule(RULES, prim_func(x, b, y), WIDE)
    channel, _, lane = loops(sch, "y")
    assert (int(channel.extent), int(lane.extent), lane.kind) == (64, 16, ForKind.VECTORIZED)
    assert 'sblock("shifted")' not in sch.mod.script()


def test_an_expensive_producer_that_is_read_often_is_kept():
    s = te.placeholder((8,), "float32", "s")
    power = te.compute((8,), lambda c: te.exp(s[c]), "power")
    y = te.compute((8, 4096), lambda c, i: power[c] + 1.0, "y")
    sch = schedule(RULES, prim_func(s, y), WIDE)
    assert len(loops(sch, "power")) == 1
    (got,) = run(sch, [np.zeros(8, "float32")], [((8, 4096), "float32")])
    np.testing.assert_allclose(got, 2)


def test_reductions_and_other_targets_are_declined():
    x = te.placeholder((4, 8), "float32")
    with WIDE:
        assert Elementwise().apply(prim_func(x, topi.sum(x, 1)), WIDE, False) is None
        cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
        assert Elementwise().apply(prim_func(x, topi.exp(x)), cuda, False) is None


@pytest.mark.parametrize("by_memory", [False, True])
def test_a_loop_is_not_cut_where_a_compared_integer_is_read_from_memory(by_memory):
    """LoopPartition would take the value for a bound, and write beyond the buffer."""
    x, k = te.placeholder((4, 5), "int64", "x"), te.placeholder((), "int64", "k")
    bound = k() if by_memory else tirx.const(2, "int64")
    y = te.compute((4, 5), lambda i, j: tirx.Select(j - i <= bound, x[i, j], x[i, j] + k()))
    text = schedule(RULES, prim_func(x, k, y), WIDE).mod.script()
    assert ("pragma_loop_partition_hint" in text) != by_memory


@pytest.mark.parametrize("length", [X, tirx.max(X - 5, 0), tirx.Select(X < 5, 2 * X, X - 5)])
def test_a_loop_is_not_cut_where_its_length_is_clipped(length):
    """LoopPartition would begin the last part where the length without the clip ends, below 0."""
    x = te.placeholder((4, X), "float32", "x")
    y = te.compute((4, length), lambda i, j: x[i, j] * 2, "y")
    sch = schedule(RULES, prim_func(x, y), WIDE)
    assert ("pragma_loop_partition_hint" in sch.mod.script()) == (length is X)


def test_a_row_is_cut_where_a_guard_changes_and_each_part_runs_in_vectors():
    x, y = (te.placeholder((64, width), "float32") for width in (512, 500))
    sch = schedule(RULES, prim_func(x, y, topi.concatenate([x, y], axis=1)), WIDE)
    assert kinds(sch, "T_concat")[-1] == ForKind.VECTORIZED
    assert "pragma_loop_partition_hint" in sch.mod.script()
    a, b = values((64, 512)), values((64, 500), 1)
    (got,) = run(sch, [a, b], [((64, 1012), "float32")])
    np.testing.assert_array_equal(got, np.concatenate([a, b], 1))
