"""Parallel loops whose threads take scratch memory of a symbolic size."""

import numpy as np
import pytest
from onnx import parser
from tvm import IRModule, tirx

from tvm_ext import convert_and_build
from tvm_ext.executors import threads
from tvm_ext.executors.scratch_of_parts import scratch_of_parts


def rows(extent_of_scratch, statements=2):
    """``for i in parallel(n): t = alloc(extent); t[0] = i; y[i] = t[0]``, or the first of these."""
    n, k, i = (tirx.Var(name, "int64") for name in "nki")
    y = tirx.decl_buffer((n,), "int64", "y")
    t = tirx.decl_buffer((extent_of_scratch(k, i),), "int64", "t")
    zero = tirx.const(0, "int64")
    store = tirx.BufferStore(t, i, [zero])
    result = tirx.BufferStore(y, tirx.BufferLoad(t, [zero]), [i])
    body = tirx.SeqStmt([tirx.AllocBuffer(t), *[store, result][:statements]])
    loop = tirx.For(i, zero, n, tirx.ForKind.PARALLEL, body)
    return IRModule({"main": tirx.PrimFunc([y, n, k], loop)})


@pytest.mark.parametrize("statements", [1, 2])
def test_scratch_is_taken_around_some_turns(statements):
    (func,) = scratch_of_parts(rows(lambda k, _i: k, statements)).functions.values()
    assert func.body.kind == tirx.ForKind.PARALLEL
    taken, turns = func.body.body.seq
    assert isinstance(taken, tirx.AllocBuffer)
    assert isinstance(turns, tirx.For) and turns.kind == tirx.ForKind.SERIAL


@pytest.mark.parametrize("extent", [
    lambda _k, _i: tirx.const(8, "int64"), lambda k, i: k + i,
], ids=["on the stack", "another in each turn"])  # fmt: skip
def test_other_loops_stay(extent):
    module = rows(extent)
    (before,), (after,) = module.functions.values(), scratch_of_parts(module).functions.values()
    assert after.body.same_as(before.body)


@pytest.mark.parametrize("count", [1, 3])
def test_each_row_is_done_once(count):
    """Numbers of rows around those at which parts grow, and rows around whole vectors."""
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]>'
        "m (float[n,k] x) => (float[n,k] y) { y = Softmax(x) }"
    )
    before = threads.threads()
    threads.set_threads(count)
    try:
        built = convert_and_build(model, "llvm")
        rng = np.random.default_rng(0)
        for n in (0, 1, 2, 63, 64, 65, 127, 129, 1023, 1025, 2049):
            for k in (1, 2, 31, 32, 33, 130):
                x = rng.normal(0, 3, (n, k)).astype("float32")
                power = np.exp(x.astype("float64") - x.max(-1, keepdims=True, initial=-np.inf))
                expected = power / power.sum(-1, keepdims=True)
                np.testing.assert_allclose(built(x), expected, rtol=3e-6, err_msg=f"{n} x {k}")
    finally:
        threads.set_threads(before)
