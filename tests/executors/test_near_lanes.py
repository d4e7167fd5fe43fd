"""Vectors whose lanes lie near each other, against numpy; that no lane is loaded by itself."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvm_ext.executors import lowering
from tvm_ext.executors.near_lanes import lane

TARGETS = [{"kind": "llvm", "mcpu": cpu} for cpu in ("x86-64", "x86-64-v3")]
COUNT = 480

#: The place that element i comes from, as TIR and numpy see it, and whether lanes are near.
PLACES = {
    "each twice": (lambda i: i // 2, True),
    "each four times": (lambda i: i // 4, True),
    "each twice, from the second": (lambda i: (i + 1) // 2 + 3, True),
    "turned pairs": (lambda i: i // 2 * 2 + 1 - i % 2, True),
    "all the first of eight": (lambda i: i // 8 * 8, True),
    "each three times": (lambda i: i // 3, False),
    "far apart": (lambda i: i % 4 * 100 + i // 4, False),
}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["mcpu"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "int64", "bool"])
@pytest.mark.parametrize("name", PLACES)
def test_places(name, dtype, target):
    place, near = PLACES[name]
    x = te.placeholder((COUNT,), dtype, "x")
    y = te.compute((COUNT,), lambda i: x[place(i)], "y")
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    sch.vectorize(sch.split(loop, [None, 8])[1])
    target = tvm.target.Target(target)
    passes = [tirx.transform.BindTarget(target), *lowering._passes()]
    until = [each.info.name for each in passes].index("LoadNearLanes") + 1
    text = str(tvm.ir.transform.Sequential(passes[:until])(sch.mod))
    assert ("T.Shuffle" in text or "T.Broadcast(x" in text) == near
    library = tvm.compile(sch.mod, target, tir_pipeline=lowering.TIR_PIPELINE)
    array = np.random.default_rng(0).integers(0, 100, COUNT).astype(dtype)
    got = tvm.runtime.tensor(np.empty_like(array))
    library["main"](tvm.runtime.tensor(array), got)
    np.testing.assert_array_equal(got.numpy(), array[place(np.arange(COUNT))])


def test_a_lane_of_what_is_no_arithmetic():
    """Of a call, of a variable, and of an element of an array of vectors."""
    places = tirx.Ramp(tirx.const(3, "int64"), tirx.const(2, "int64"), 4)
    called = lane(tirx.floor(places.astype("float32x4")), 2)
    assert str(called) == "T.floor(T.float32(7.0))"
    vectors = tirx.decl_buffer((5,), "int64x4", "vectors")
    for value in tirx.Var("place", "int64x4"), tirx.BufferLoad(vectors, [2]):
        one = lane(tirx.Let(tirx.Var("unused", "int32"), tirx.const(0, "int32"), value + places), 1)
        assert one.ty.dtype == "int64"
        assert "T.Shuffle" in str(one)
