"""Reductions on llvm: lanes, trees and shares against numpy in float64."""

import numpy as np
import pytest
from tvm import te, tirx, topi
from tvm.tirx import ForKind

from tests.schedules.kernels import WIDE, loops, prim_func, run, schedule
from tvm_ext.ops.search import arg_extremum
from tvm_ext.schedules.llvm import BlockByBlock

RULES = (BlockByBlock(),)
X, Y = (tirx.Var(name, "int64") for name in "xy")


def check(declared, shape, axes, fold=topi.sum, oracle=np.sum, array=None, dtype="float32"):
    x = te.placeholder(declared, dtype, "x")
    sch = schedule(RULES, prim_func(x, fold(x, axes)), WIDE)
    if array is None:
        array = np.random.default_rng(0).uniform(-1, 1, shape).astype(dtype)
    expected = np.asarray(oracle(array.astype("float64"), axis=axes))
    (got,) = run(sch, [array], [(expected.shape, dtype)])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("declared, shape, axes", [
    ((5, 1), (5, 1), (1,)), ((5, 17), (5, 17), (1,)), ((64, 1001), (64, 1001), (1,)),
    ((1537, 128), (1537, 128), (1,)), ((1001,), (1001,), (0,)), ((512, 513), (512, 513), (0, 1)),
    ((700, 24), (700, 24), (0,)), ((3000, 3), (3000, 3), (0,)), ((4, 63, 50), (4, 63, 50), (1,)),
    ((3, 64, 300), (3, 64, 300), (0, 2)), ((2, 24, 7, 7), (2, 24, 7, 7), (2, 3)),
    ((3, 5, 16), (3, 5, 16), (0, 2)),  # of lanes there is one step
    ((1, 3, 14, 14, 16), (1, 3, 14, 14, 16), (2, 3)), ((2, 3, 5, 85), (2, 3, 5, 85), (3,)),
    ((19, 1001), (19, 1001), (0,)), ((5, 33, 17, 40), (5, 33, 17, 40), (1, 2)),
    ((64, 12545), (64, 12545), (0,)), ((3, 32, X), (3, 32, 77), (1,)),
    ((X, 24), (3, 24), (1,)), ((X, Y), (3, 5), (1,)), ((X, Y), (70, 1001), (1,)),
    ((X, Y), (70, 37), (0,)), ((X, Y), (70, 37), (0, 1)),
], ids=str)  # fmt: skip
def test_sum(declared, shape, axes):
    check(declared, shape, axes)


@pytest.mark.parametrize(
    "fold, oracle",
    [(topi.max, np.max), (topi.min, np.min), (topi.prod, np.prod)],
    ids=["max", "min", "prod"],
)
def test_other_operations(fold, oracle):
    check((7, 133), (7, 133), (1,), fold, oracle)
    check((133, 40), (133, 40), (0,), fold, oracle)


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64"])
def test_dtypes(dtype):
    array = np.random.default_rng(0).integers(-99, 99, (9, 1003)).astype(dtype)
    check((9, 1003), (9, 1003), (1,), array=array, dtype=dtype)


@pytest.mark.parametrize("shape, axis", [((6, 1001), 1), ((3, 21, 50), 1), ((70, 24), 0)])
def test_argmax(shape, axis):
    x = te.placeholder(shape, "float32", "x")
    array = np.random.default_rng(0).integers(0, 9, shape).astype("float32")
    sch = schedule(RULES, prim_func(x, topi.argmax(x, axis)), WIDE)
    expected = array.argmax(axis)
    (got,) = run(sch, [array], [(expected.shape, "int32")])
    np.testing.assert_array_equal(
        array.max(axis),
        np.take_along_axis(array, np.expand_dims(got.astype("int64"), axis), axis).squeeze(axis),
    )


def test_nan_and_infinity_stay_in_their_row():
    array = np.ones((4, 133), "float32")
    array[1, 5], array[2, 132] = np.nan, np.inf
    x = te.placeholder((4, 133), "float32", "x")
    sch = schedule(RULES, prim_func(x, topi.sum(x, 1)), WIDE)
    (got,) = run(sch, [array], [((4,), "float32")])
    np.testing.assert_array_equal(got, [133, np.nan, np.inf, 133])


def row_sum(rows, length):
    x, r = te.placeholder((rows, length), "float32", "x"), te.reduce_axis((0, length), "r")
    return prim_func(x, te.compute((rows,), lambda i: te.sum(x[i, r], axis=r), "total"))


def test_a_row_sum_keeps_partial_sums_in_lanes_and_folds_them_by_halves():
    sch = schedule(RULES, row_sum(1536, 128), WIDE)
    row, *_, unrolled, lane = loops(sch, "total_rf_update")
    assert row.kind == ForKind.PARALLEL
    assert (unrolled.kind, lane.kind) == (ForKind.UNROLLED, ForKind.VECTORIZED)
    assert int(unrolled.extent) * int(lane.extent) == 64
    assert int(loops(sch, "total_update")[-1].extent) == 2


def test_a_single_long_row_is_cut_among_the_cores():
    sch = schedule(RULES, row_sum(1, 1 << 20), WIDE)
    text = sch.mod.script()
    assert text.count("T.parallel(2)") == 1


def test_all_of_a_tensor_of_symbolic_size_is_cut_into_equal_parts_of_lanes():
    """Beside what stands for no elements, which is in no loop, nothing was taken apart."""
    x, r = te.placeholder((X * 768,), "float32", "x"), te.reduce_axis((0, X * 768), "r")
    total = te.compute((), lambda: te.sum(x[r], axis=r), "total")
    nothing = tirx.const(-1, "float32")
    result = te.compute((), lambda: tirx.Select(X > 0, total(), nothing), "result")
    size = te.placeholder((X,), "float32", "size")
    sch = schedule(RULES, prim_func(size, x, result), WIDE)
    text = sch.mod.script()
    assert text.count("T.parallel(T.int64(2))") == 1
    assert "T.vectorized(T.int64(16))" in text
    for rows, expected in ((0, -1), (1, 768), (133, 133 * 768)):
        arrays = [np.ones(count, "float32") for count in (rows, rows * 768)]
        (got,) = run(sch, arrays, [((), "float32")])
        assert got == expected


def test_kept_contiguous_axis_becomes_the_lanes():
    x, r = te.placeholder((500, 96), "float32", "x"), te.reduce_axis((0, 500), "r")
    func = prim_func(x, te.compute((96,), lambda j: te.sum(x[r, j], axis=r), "total"))
    *_, reduced, _, lane = loops(schedule(RULES, func, WIDE), "total_update")
    assert (lane.kind, int(reduced.extent)) == (ForKind.VECTORIZED, 500)


def test_a_clipped_extent_is_no_vector_of_guarded_elements():
    wide = tirx.Select(X == 1, Y, tirx.const(1, "int64"))  # as where axes are known at run time
    x, r = te.placeholder((9, 500, wide), "float32", "x"), te.reduce_axis((0, 500), "r")
    total = te.compute((9, wide), lambda i, j: te.sum(x[i, r, j], axis=r), "total")
    _, reduced, column = loops(schedule(RULES, prim_func(x, total, X, Y), WIDE), "total_update")
    assert (int(reduced.extent), column.kind) == (500, ForKind.SERIAL)


def test_a_long_kept_axis_is_read_along_rows_several_at_once():
    x, r = te.placeholder((8, 500, 200), "float32", "x"), te.reduce_axis((0, 500), "r")
    func = prim_func(x, te.compute((8, 200), lambda i, j: te.sum(x[i, r, j], axis=r), "total"))
    *_, reduced, vector, row, lane = loops(schedule(RULES, func, WIDE), "total_update")
    assert [int(loop.extent) for loop in (reduced, vector, row, lane)] == [100, 13, 5, 16]
    assert (row.kind, lane.kind) == (ForKind.UNROLLED, ForKind.VECTORIZED)


def test_places_of_extrema_have_a_tail_not_a_guard_on_each_element():
    x = te.placeholder((21, 5, 65), "float32", "x")
    sch = schedule(RULES, prim_func(x, arg_extremum(x, 0, True, True, False)), WIDE)
    assert any("partition" in str(loop.annotations) for loop in loops(sch, "place_update"))
    array = np.random.default_rng(0).integers(-4, 4, (21, 5, 65)).astype("float32")
    array[3, 0, :], array[:, 1, 64] = np.nan, -np.inf
    (got,) = run(sch, [array], [((1, 5, 65), "int64")])
    np.testing.assert_array_equal(got, array.argmax(0, keepdims=True))
