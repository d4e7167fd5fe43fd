"""Kernels of which TVM cannot tell what of a buffer is used."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvm_ext.executors import lowering
from tvm_ext.executors.compact_buffers import compact_buffers


def phases():
    """Rows of a transposed convolution with a stride of 3, put together from its nine phases."""
    n, h, w = (tirx.Var(name, "int64") for name in "nhw")
    x = te.placeholder((n, 9, h, w), "float32", "x")
    double = te.compute(x.shape, lambda *i: x(*i) * tirx.const(2.0, "float32"), "double")
    y = te.compute(
        (n, h * 3 - 2, w * 3 - 2),
        lambda b, i, j: double[b, i % 3 * 3 + j % 3, i // 3, j // 3],
        "y",
    )
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    for name, fused in ("double", 3), ("y", 2):
        sch.parallel(sch.fuse(*sch.get_loops(sch.get_sblock(name))[:fused]))
    return sch.mod


def test_a_kernel_that_tvm_fails_on_keeps_its_buffers():
    passes = [p.info.name for p in lowering._passes()]
    before = lowering._passes()[: passes.index(compact_buffers.info.name)]
    opaque = tvm.ir.transform.Sequential(before)(phases())
    with pytest.raises(tvm.error.InternalError, match="not divisible"):
        tvm.s_tir.transform.CompactBufferAllocation()(opaque)

    library = tvm.compile(phases(), tvm.target.Target("llvm"), tir_pipeline=lowering.TIR_PIPELINE)
    x = np.random.default_rng(0).normal(size=(2, 9, 4, 5)).astype("float32")
    y = np.empty((2, 10, 13), "float32")
    library["main"](x, y)
    whole = x.reshape(2, 3, 3, 4, 5).transpose(0, 3, 1, 4, 2).reshape(2, 12, 15)
    np.testing.assert_array_equal(y, 2 * whole[:, :10, :13])
