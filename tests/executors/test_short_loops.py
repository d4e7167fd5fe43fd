"""Loops that end at the guard of a tail, against numpy; and which keep the guard."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvm_ext.executors import lowering
from tvm_ext.executors.short_loops import shorten_loops
from tvm_ext.executors.small_loops import alone_where_small

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
N = tirx.Var("n", "int64")
SIZES = (0, 1, 7, 8, 9, 16, 31, 64, 100)


def doubled(x, i):
    return x[i] * 2.0


def chosen(x, i):
    return x[tirx.Select(N == 1, tirx.const(0, "int64"), i)] + 1.0


def polynomial(x, i):
    value = x[i]
    for k in range(8):
        value = value * x[i] + float(k)
    return value


def of_numpy(x):
    return polynomial([x], 0)


def backwards(x, i):
    return polynomial(x, N - 1 - i)


#: A formula, numpy's, and whether the guard stays: of neighbours in memory, where much is computed.
FORMULAS = {
    doubled: (lambda x: x * 2, False),
    chosen: (lambda x: x + 1, False),
    polynomial: (of_numpy, True),
    backwards: (lambda x: of_numpy(x[::-1]), False),
}


def kernel(formula, *factors):
    """The formula of each element, in loops of which the last have these trips."""
    x = te.placeholder((N,), "float64", "x")
    sch = tvm.s_tir.Schedule(
        te.create_prim_func([x, te.compute((N,), lambda i: formula(x, i), "y")])
    )
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    sch.split(loop, [None, *factors])
    return sch.mod


def shortened(module):
    """The kernel of ``module`` behind the pass."""
    passes = [tirx.transform.BindTarget(TARGET), *lowering._passes()]
    until = [each.info.name for each in passes].index("ShortenLoops") + 1
    module = tvm.ir.transform.Sequential(passes[:until])(module)
    (function,) = module.functions.values()
    return str(function)


@pytest.mark.parametrize("factors", [(8,), (4, 8), (1,)], ids=str)
@pytest.mark.parametrize("formula", FORMULAS)
def test_values(formula, factors):
    module = kernel(formula, *factors)
    library = tvm.compile(module, TARGET, tir_pipeline=lowering.TIR_PIPELINE)
    for size in SIZES:
        x = np.random.default_rng(size).standard_normal(size)
        got = tvm.runtime.tensor(np.full(size, np.nan))
        library["main"](tvm.runtime.tensor(x), got)
        np.testing.assert_allclose(got.numpy(), FORMULAS[formula][0](x), rtol=1e-12)


@pytest.mark.parametrize("factors", [(8,), (4, 8)], ids=str)
@pytest.mark.parametrize("formula", FORMULAS)
def test_one_loop_is_left_without_a_guard_unless_vectors_with_a_mask_are_quicker(formula, factors):
    text = shortened(kernel(formula, *factors))
    stays = FORMULAS[formula][1]
    assert ("if " in text) == stays
    assert stays or text.count("for ") == 1


def test_a_sum_per_lane_ends_where_the_row_does():
    """Its lanes are not one loop with the trips around them, since each has a place of its own."""
    m = tirx.Var("m", "int64")
    x = te.placeholder((m,), "float64", "x")
    k = te.reduce_axis((0, (m + 7) // 8), "k")
    zero = tirx.const(0.0, "float64")
    sums = te.compute(
        (8,),
        lambda i: te.sum(tirx.if_then_else(k * 8 + i < m, x[k * 8 + i], zero), axis=k),
        "sums",
    )
    library = tvm.compile(te.create_prim_func([x, sums]), TARGET, tir_pipeline="tvm_ext")
    for size in (1, 8, 13, 40):
        array = np.arange(size, dtype="float64")
        got = tvm.runtime.tensor(np.zeros(8))
        library["main"](tvm.runtime.tensor(array), got)
        padded = np.concatenate([array, np.zeros(-size % 8)])
        np.testing.assert_array_equal(got.numpy(), padded.reshape(-1, 8).sum(0))


def test_what_is_left_of_a_cut_loop_is_a_branch_without_a_region():
    rest = N % 16
    i, j = tirx.Var("i", "int64"), tirx.Var("j", "int64")
    y = tirx.decl_buffer((N,), "float64", "y")
    lane = N // 16 * 16 + i * 16 + j
    store = tirx.IfThenElse(lane < N, tirx.BufferStore(y, tirx.const(1.0, "float64"), [lane]), None)
    lanes = tirx.For(j, tirx.const(0, "int64"), tirx.const(16, "int64"), 0, store)
    outer = tirx.For(i, tirx.const(0, "int64"), (rest + 15) // 16, tirx.ForKind.PARALLEL, lanes)
    function = tirx.PrimFunc([y, N], outer).with_attr("target", TARGET)
    (function,) = shorten_loops(tvm.IRModule({"main": function})).functions.values()
    text = str(function)
    assert "parallel" not in text and "if " in text, text
    assert "range(T.min(T.int64(16), n % T.int64(16)))" in text, text


def test_loops_that_end_early_count_as_whole_in_the_work_of_a_region():
    """A small number stands for their variable: what is left then would be less than nothing."""
    i, j = tirx.Var("i", "int64"), tirx.Var("j", "int64")
    y = tirx.decl_buffer((N,), "float64", "y")
    one, zero = tirx.const(1.0, "float64"), tirx.const(0, "int64")
    trips = tirx.min(tirx.const(64, "int64"), N - i * 64)
    lanes = tirx.For(j, zero, trips, 0, tirx.BufferStore(y, one, [i * 64 + j]))
    outer = tirx.For(i, zero, (N + 63) // 64, tirx.ForKind.PARALLEL, lanes)
    function = tirx.PrimFunc([y, N], outer).with_attr("target", TARGET)
    (function,) = alone_where_small(tvm.IRModule({"main": function})).functions.values()
    assert "- " not in str(function.body.seq[0]), function
