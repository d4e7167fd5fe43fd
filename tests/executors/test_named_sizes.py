"""Formulas of sizes have names while passes run, and are formulas again behind them."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from tvm_ext.executors import lowering
from tvm_ext.executors.named_sizes import (
    name_conditions,
    name_quotients,
    tell_conditions,
    tell_quotients,
)
from tvm_ext.schedules.statements import is_unseen, unseen


def halves(condition=None):
    """``y[i] = x[i // 3 * 3]`` over half of ``n`` rows, if a condition of ``n`` holds."""
    n = tirx.Var("n", "int64")
    x = te.placeholder((n,), "float32", "x")
    y = te.compute(((n + 1) // 2,), lambda i: x[i // 3 * 3], "y")
    func = te.create_prim_func([x, y])
    if condition is not None:
        size = func.params[0].ty.shape[0]
        block = func.body.block
        body = tirx.IfThenElse(condition(size), block.body, None)
        root = tvm.s_tir.SBlock([], [], [], "root", body)
        func = func.with_body(tvm.s_tir.SBlockRealize([], tirx.const(True), root))
    return tvm.IRModule({"main": func})


def seen(kind, code):
    found = []
    tvm_ffi.structural_walk(code, (kind, found.append))
    return found


def test_quotients_of_sizes_have_names_those_of_loops_do_not():
    before = halves()
    named = name_quotients(before)
    loops = seen(tirx.For, named["main"].body)
    assert loops and all(isinstance(loop.extent, tirx.Var) for loop in loops)
    (store,) = seen(tirx.BufferStore, named["main"].body)
    assert [int(division.b) for division in seen(tirx.FloorDiv, store.value.indices)] == [3]
    tvm.ir.assert_structural_equal(tell_quotients(named), before)


@pytest.mark.parametrize("hidden", [False, True])
def test_unseen_conditions_have_names(hidden):
    def condition(size):
        plain = size * 7 <= (size + 5) // 6 * 40
        return tirx.all(size > 3, unseen(plain) if hidden else plain)

    before = halves(condition)
    named = name_conditions(before)
    assert [isinstance(each.b, tirx.Var) for each in seen(tirx.And, named["main"].body)] == [hidden]
    assert not any(map(is_unseen, seen(tvm.ir.Call, named["main"].body)))
    tvm.ir.assert_structural_equal(tell_conditions(named), before)


def test_what_is_read_from_memory_has_no_name():
    n = tirx.Var("n", "int64")
    x = te.placeholder((n,), "int64", "x")
    y = te.compute((n,), lambda i: x[0] // n + i, "y")
    module = tvm.IRModule({"main": te.create_prim_func([x, y])})
    assert len(seen(tirx.FloorDiv, name_quotients(module)["main"].body)) == 1


def test_a_buffer_whose_size_was_told_by_a_name():
    n = tirx.Var("n", "int64")
    half = (n + 1) // 2
    x = te.placeholder((n, 4), "float32", "x")
    double = te.compute((half, 4), lambda i, j: x[i * 2, j] * 2.0, "double")
    y = te.compute((half, 4), lambda i, j: double[half - 1 - i, 3 - j] + double[i, j], "y")
    kernel = tvm.s_tir.Schedule(te.create_prim_func([x, y])).mod
    library = tvm.compile(kernel, tvm.target.Target("llvm"), tir_pipeline=lowering.TIR_PIPELINE)
    for rows in 1, 7, 12:
        given = np.random.default_rng(rows).normal(size=(rows, 4)).astype("float32")
        got = np.empty((-(-rows // 2), 4), "float32")
        library["main"](given, got)
        np.testing.assert_array_equal(got, 2 * given[::2][::-1, ::-1] + 2 * given[::2])
