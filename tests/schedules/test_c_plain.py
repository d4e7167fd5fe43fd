"""Loops that are printed as C: which one is innermost, and where results are finished."""

import pytest
import tvm_ffi
from tvm import te, tirx, topi
from tvm.target import Target

from tests.schedules.kernels import WIDE, prim_func, schedule
from tvm_ext.export.source.lowering import lower_to_loops
from tvm_ext.schedules.c import C_SOURCE

C = Target("c")


def loops(stmt):
    """Nested lists of (extent, body); what is no loop is left out."""
    if isinstance(stmt, tirx.SeqStmt):
        return [each for child in stmt.seq for each in loops(child)]
    if isinstance(stmt, tirx.For):
        return [(int(stmt.extent), loops(stmt.body))]
    return []


def lowered(*tensors):
    sch = schedule(C_SOURCE, prim_func(*tensors), C)
    return lower_to_loops(sch.mod["main"].with_attr("target", C.with_host(C)))


def test_rows_of_a_convolution_are_innermost_and_finished_where_they_are_made():
    x, w = te.placeholder((1, 3, 9, 12), name="x"), te.placeholder((5, 3, 3, 3), name="w")
    y = topi.nn.relu(topi.nn.conv2d_nchw(x, w, 1, 1, 1))
    row = (12, [])
    padding, convolution = loops(lowered(x, w, y).body)
    assert padding == (3, [(11, [(14, [])])])
    assert convolution == (5, [(9, [row, (3, [(3, [(3, [row])])]), row])])


def test_sums_over_neighbours_are_kept_in_a_variable():
    x, w = te.placeholder((6, 50), name="x"), te.placeholder((7, 50), name="w")
    body = lowered(x, w, topi.nn.dense(x, w)).body
    assert loops(body) == [(6, [(7, [(50, [])])])]
    found = []
    tvm_ffi.structural_walk(body, (tirx.AllocBuffer, found.append))
    assert [list(map(int, alloc.buffer.ty.shape)) for alloc in found] == [[1, 1]]


def test_only_loops_that_pay_for_threads_are_parallel():
    def kinds(rows):
        x, w = te.placeholder((rows, 64), name="x"), te.placeholder((64, 64), name="w")
        body = lowered(x, w, topi.matmul(x, w)).body
        while isinstance(body, tirx.SeqStmt):
            body = body.seq[-1]
        return body.kind

    assert kinds(64) == tirx.ForKind.PARALLEL
    assert kinds(2) == tirx.ForKind.SERIAL


def test_rows_that_are_too_long_are_cut_where_they_divide():
    x, w = te.placeholder((4, 8), name="x"), te.placeholder((8, 3000), name="w")
    ((_, inner),) = loops(lowered(x, w, topi.matmul(x, w)).body)
    assert inner == [(12, [(250, []), (8, [(250, [])])])]


def test_other_targets_are_declined():
    x = te.placeholder((4, 8), name="x")
    with pytest.raises(AssertionError, match="no rule"):
        schedule(C_SOURCE, prim_func(x, topi.nn.relu(x)), WIDE)


def test_rows_that_need_their_own_sums_only_are_computed_one_by_one():
    x = te.placeholder((6, 40), name="x")
    row = (40, [])
    assert loops(lowered(x, topi.nn.softmax(x)).body) == [(6, [row] * 4)]
    k = te.reduce_axis((0, 40), "k")
    total = te.compute((6,), lambda i: te.sum(x[i, k], axis=k), "total")
    other = te.compute((6, 40), lambda i, j: x[i, j] - total[5 - i], "other")
    assert loops(lowered(x, other).body) == [(6, [row]), (6, [row])]
