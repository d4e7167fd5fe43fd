"""Products of words of bytes and of pairs, against numpy, by instructions and without any."""

import numpy as np
import pytest
import tvm
from tvm import te

from tests.this_cpu import needs_avx512_vnni
from tvm_ext.executors.lowering import TIR_PIPELINE
from tvm_ext.ops import integer_dots as ops
from tvm_ext.ops.integer_pairs import times_bytes

TARGETS = {
    "sse2": {"kind": "llvm", "mcpu": "x86-64"},
    "avx2": {"kind": "llvm", "mcpu": "x86-64-v3"},
    "vnni": {"kind": "llvm", "mcpu": "cascadelake"},
}
STEPS, COLUMNS = 3, 32
RNG = np.random.default_rng(7)


def extreme(dtype, *shape):
    """All values; the ends of the range fill the first row."""
    info = np.iinfo(dtype)
    values = RNG.integers(info.min, info.max + 1, shape).astype(dtype)
    values[0] = np.where(np.arange(values[0].size).reshape(values[0].shape) % 2, info.min, info.max)
    return values


def run(product, left, right, lanes, target, word="int32"):
    """The sums over steps of ``product`` of a word and one of each column."""
    x, y = te.placeholder((STEPS,), "int32", "x"), te.placeholder((STEPS, COLUMNS), word, "y")
    k = te.reduce_axis((0, STEPS), "k")
    z = te.compute((COLUMNS,), lambda i: te.sum(product(x[k], y[k, i]), axis=k), "z")
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, y, z]))
    i, step = sch.get_loops(sch.get_sblock("z"))
    outer, lane = sch.split(i, [None, lanes])
    sch.reorder(outer, step, lane)
    sch.vectorize(lane)
    sch.decompose_reduction(sch.get_sblock("z"), step)
    library = tvm.compile(sch.mod, tvm.target.Target(target), tir_pipeline=TIR_PIPELINE)
    got = tvm.runtime.tensor(np.empty(COLUMNS, "int32"))
    library["main"](*map(tvm.runtime.tensor, (left, right)), got)
    return got.numpy()


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("target", ["sse2", "avx2", pytest.param("vnni", marks=needs_avx512_vnni)])
def test_four_bytes(target, lanes):
    x, y = extreme("uint8", STEPS, 4), extreme("int8", STEPS, COLUMNS, 4)
    words = x.view("<i4")[:, 0], y.view("<i4")[..., 0]
    got = run(ops.dot, *words, lanes, TARGETS[target])
    np.testing.assert_array_equal(got, np.einsum("kb,kib->i", x.astype("i8"), y.astype("i8")))


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("target", ["sse2", "avx2"])
def test_pairs(target, lanes):
    """Of 16 bits, and such times a pair of signed bytes."""
    x = extreme("int16", STEPS, 2) // 2
    for dtype, word, product in (
        ("int16", "<i4", ops.pair_dot),
        ("int8", "<i2", times_bytes),
    ):
        y = extreme(dtype, STEPS, COLUMNS, 2) // 2
        words = x.view("<i4")[:, 0], y.view(word)[..., 0]
        got = run(product, *words, lanes, TARGETS[target], f"int{8 * np.dtype(word).itemsize}")
        wanted = np.einsum("kb,kib->i", x.astype("i8"), y.astype("i8"))
        np.testing.assert_array_equal(got, wanted)


def test_the_cheapest_instructions_are_used():
    x, y = te.placeholder((8,), "int32", "x"), te.placeholder((8,), "int32", "y")
    z = te.compute((8,), lambda i: ops.dot(x[i], y[i]), "z")
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, y, z]))
    sch.vectorize(*sch.get_loops(sch.get_sblock("z")))
    for target, instruction in ("avx2", "vpmaddwd"), ("vnni", "vpdpbusd"):
        cpu = tvm.target.Target(TARGETS[target])
        library = tvm.compile(sch.mod, cpu, tir_pipeline=TIR_PIPELINE)
        assert instruction in library.mod.inspect_source("asm")
