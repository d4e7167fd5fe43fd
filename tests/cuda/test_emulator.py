"""What running CUDA C on the CPU finds: errors that a GPU may keep to itself."""

import numpy as np
import pytest
import tvm
from tvm import IRModule, te, tirx
from tvm.s_tir import dlight as dl
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.target import Target

from tvm_ext.emulator import NO_COMPILER, emulated
from tvm_ext.executors.lowering import TIR_PIPELINE
from tvm_ext.schedules.cuda import ElementThreads, OwnThreads

pytestmark = pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))

TARGET = Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")


def shifted(extent):
    """The kernel ``y[i] = x[i + 1]``, which reads one element too many."""
    x = te.placeholder((extent,), "float32", "x")
    return te.create_prim_func([x, te.compute((extent,), lambda i: x[i + 1], "y")])


def launch(kernel, rule, folder, *arrays, reverse=False):
    """Schedule ``kernel``, run it here on copies of ``arrays``, and return the last."""
    with TARGET:
        module = dl.ApplyDefaultSchedule(rule)(IRModule({"main": kernel}))
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    with emulated(folder, reverse=reverse):
        tvm.tirx.build(module, target=TARGET, pipeline=TIR_PIPELINE)["main"](*tensors)
    return tensors[-1].numpy()


@pytest.mark.parametrize("extent", [5, tirx.Var("n", "int64")], ids=["static", "symbolic"])
def test_an_access_outside_of_a_tensor_is_an_error(extent, tmp_path):
    x = np.zeros(5, "float32")
    with pytest.raises(IndexError, match="element 5 of a tensor of 5"):
        launch(shifted(extent), ElementThreads(), tmp_path, x, x)


def test_why_gemv_of_dlight_is_no_rule_of_ours(tmp_path):
    # Its 16 rows of threads store 16 results, whatever the number of rows.
    m, v = te.placeholder((5, 31), "float32", "m"), te.placeholder((31,), "float32", "v")
    k = te.reduce_axis((0, 31), "k")
    product = te.compute((5,), lambda i: te.sum(m[i, k] * v[k], k), "product")
    arrays = [np.ones(shape, "float32") for shape in [(5, 31), (31,), (5,)]]
    kernel = te.create_prim_func([m, v, product])
    with pytest.raises(IndexError, match="element 5 of a tensor of 5"):
        launch(kernel, dl.gpu.GEMV(), tmp_path, *arrays)
    np.testing.assert_array_equal(launch(kernel, ElementThreads(), tmp_path, *arrays), [31.0] * 5)


def running_sum():
    """``y[i] = x[i] + y[i - 1]``, each element by a thread that waits for no other."""
    x = te.placeholder((5,), "float32", "x")

    def body(ins, outs):
        (x,), (y,) = ins, outs
        with IRBuilder() as builder:
            with T.thread_binding(0, 5, thread="threadIdx.x") as i:
                before = tirx.if_then_else(i > 0, y[i - 1], tirx.const(0, "float32"))
                T.buffer_store(y, x[i] + before, [i])
            return builder.get()

    return te.create_prim_func([x, te.extern((5,), [x], body, dtype="float32")])


def test_a_missing_barrier_shows_where_threads_take_turns_from_the_last_to_the_first(tmp_path):
    ones, zeros = np.ones(5, "float32"), np.zeros(5, "float32")
    ascending, descending = (
        launch(running_sum(), OwnThreads(), tmp_path, ones, zeros, reverse=reverse)
        for reverse in (False, True)
    )
    np.testing.assert_array_equal(ascending, [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(descending, ones)
