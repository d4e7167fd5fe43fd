"""What kernels of the VM check of their arguments."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import IRModule, te, tirx

from tvm_ext.executors.packed_checks import join_checks

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})


def packed(name="twice"):
    """``twice(x[n, 4], y[n, 4])`` by TVM's calling convention."""
    x = te.placeholder((te.var("n", "int64"), 4), "float32", "x")
    y = te.compute(x.shape, lambda *i: x(*i) * 2, "y")
    kernel = te.create_prim_func([x, y]).with_attr("global_symbol", name)
    hosted = TARGET.with_host(TARGET)
    lowered = tvm.s_tir.transform.LowerOpaqueBlock()(
        tvm.s_tir.transform.ConvertBlocksToOpaque()(IRModule({name: kernel}))
    )
    steps = tirx.transform.BindTarget(hosted), tirx.transform.FlattenBuffer()
    with TARGET:
        lowered = tvm.transform.Sequential(
            [*steps, tirx.transform.AnnotateEntryFunc(), tirx.transform.MakePackedAPI()]
        )(lowered)
        return lowered, join_checks(lowered)


def assertions(module):
    found = []
    for function in module.functions.values():
        tvm_ffi.structural_walk(function.body, (tirx.AssertStmt, found.append))
    return found


def test_one_for_each_tensor_and_one_for_all_sizes():
    before, after = map(assertions, packed())
    assert len(before) > 15
    assert len(after) == 3


@pytest.fixture(scope="module")
def twice():
    with TARGET:
        lowered = packed()[1]
        finalize = tvm.s_tir.pipeline.finalize_host_passes()
        return tvm.get_global_func("target.build.llvm")(finalize(lowered), TARGET)["twice"]


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.ones((3, 4), "float32"), np.ones((2, 4), "float32")),
        (np.ones((3, 5), "float32"), np.ones((3, 4), "float32")),
        (np.ones((3, 4), "float64"), np.ones((3, 4), "float32")),
        (np.ones((3, 4), "int32"), np.ones((3, 4), "float32")),
        (np.ones((3, 4, 2), "float32"), np.ones((3, 4), "float32")),
    ],
    ids=["rows", "columns", "wide", "integer", "rank"],
)
def test_tensors_of_other_sizes_types_or_ranks_are_refused(twice, x, y):
    with pytest.raises(ValueError, match="twice is not made for tensors of such types or sizes"):
        twice(tvm.runtime.tensor(x), tvm.runtime.tensor(y))


def test_those_that_fit_are_computed(twice):
    x = tvm.runtime.tensor(np.arange(12, dtype="float32").reshape(3, 4))
    y = tvm.runtime.tensor(np.zeros((3, 4), "float32"))
    twice(x, y)
    assert (y.numpy() == 2 * x.numpy()).all()


def test_kernels_of_other_devices_keep_theirs():
    before, _ = packed()
    with tvm.target.Target({"kind": "cuda", "arch": "sm_80"}):
        assert len(assertions(join_checks(before))) == len(assertions(before))
