"""The TIR pipeline of our builds."""

import pytest
from tvm import IRModule, te, tirx
from tvm.target import Target

from tests.schedules.kernels import WIDE, prim_func, schedule
from tvm_ext.executors import lowering
from tvm_ext.schedules.llvm import Elementwise


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_vectors_stay_vectors_where_they_do_not_divide_a_loop(index):
    """The hint at which a loop is cut got lost when its int64 variable was narrowed."""
    x = te.placeholder((tirx.IntImm(index, 3), tirx.IntImm(index, 197)), "float32", "x")
    y = te.compute(x.shape, lambda i, j: x[i, 196 - j] + 1.0, "y")
    func = schedule((Elementwise(),), prim_func(x, y), WIDE).mod["main"]
    func = func.with_attr("target", WIDE.with_host(Target("llvm")))
    assert "T.Ramp" in lowering.lower(IRModule({"main": func})).script()
