"""Tails of vectors under masks, against numpy; and which stay single lanes."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tests.bounds import run_checked
from tvm_ext.executors import lowering
from tvm_ext.executors.masked_tails import MASKED
from tvm_ext.ops.approximations import exp

LANES = 8
N = tirx.Var("n", "int64")
SIZES = (0, 1, 7, 8, 9, 15, 16, 17, 31, 100)
LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
MASKS = {"float32": LEVELS[1:], "int64": LEVELS[1:], "int8": LEVELS[2:], "float16": LEVELS[2:]}


def target(level):
    return tvm.target.Target({"kind": "llvm", "mcpu": level, "num-cores": 2})


def runs(level):
    return tvm.target.codegen.target_has_features(
        {"x86-64-v2": "sse4.2", "x86-64-v3": "avx2", "x86-64-v4": "avx512bw"}[level],
        tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()}),
    )


def vectors(dtype, element):
    """A kernel of ``element(x, a, i)`` for each of N, in vectors behind the guard of the end."""
    x, a = te.placeholder((N,), dtype, "x"), te.placeholder((1,), dtype, "a")
    y = te.compute((N,), lambda i: element(x, a, i), "y")
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, a, y]))
    sch.vectorize(sch.split(sch.get_loops(sch.get_sblock("y"))[0], [None, LANES])[1])
    return sch.mod


def sums():
    """A kernel of the sum of N elements, in lanes that are added at the end."""
    x = te.placeholder((N,), "float32", "x")
    r = te.reduce_axis((0, N), "r")
    y = te.compute((1,), lambda i: te.sum(x[r] * x[r], axis=r), "y")
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
    _, loop = sch.get_loops(sch.get_sblock("y"))
    _, lane = sch.split(loop, [None, LANES])
    parts = sch.rfactor(lane, 0)
    loops = {sch.get(each).loop_var.name: each for each in sch.get_loops(parts)}
    sch.reorder(loops["r_0"], loops["r_1"])
    sch.vectorize(loops["r_1"])
    sch.decompose_reduction(parts, loops["r_0"])
    return sch.mod


def lowered(module, level):
    passes = [tirx.transform.BindTarget(target(level)), *lowering._passes()]
    until = [each.info.name for each in passes].index("MaskTails") + 1
    return str(tvm.ir.transform.Sequential(passes[:until])(module))


def check(module, level, wanted, *, dtype="float32"):
    library = tvm.compile(module, target(level), tir_pipeline=lowering.TIR_PIPELINE)
    for size in SIZES:
        random = np.random.default_rng(size)
        x, a = (random.integers(-9, 9, n).astype(dtype) for n in (size, 1))
        # What lies behind must stay as it is.
        room = np.full(size + 2 * LANES, 77, dtype)
        got = tvm.runtime.tensor(room)
        view = got._create_view((size,))
        library["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(a), view)
        np.testing.assert_array_equal(got.numpy()[:size], wanted(x, a))
        np.testing.assert_array_equal(got.numpy()[size:], room[size:])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", MASKS)
def test_elements(dtype, level):
    module = vectors(dtype, lambda x, a, i: x[i] * x[i] - a[0])
    assert (MASKED in lowered(module, level)) == (level in MASKS[dtype])
    if runs(level):
        check(module, level, lambda x, a: x * x - a, dtype=dtype)


@pytest.mark.parametrize("level", LEVELS)
def test_sums_stay_in_an_array_of_the_kernel(level):
    module = sums()
    text = lowered(module, level)
    assert (f"{MASKED}load" in text) == (level != LEVELS[0]) and f"{MASKED}store" not in text
    if not runs(level):
        return
    library = tvm.compile(module, target(level), tir_pipeline=lowering.TIR_PIPELINE)
    for size in SIZES:
        x = np.random.default_rng(size).integers(-9, 9, size).astype("float32")
        got = tvm.runtime.tensor(np.full(1, np.nan, "float32"))
        library["main"](tvm.runtime.tensor(x), got)
        assert got.numpy()[0] == (x * x).sum()


@pytest.mark.parametrize("level", LEVELS)
def test_functions_of_polynomials_and_bits(level):
    module = vectors("float32", lambda x, a, i: exp(x[i] * 0.5) + a[0])
    assert (MASKED in lowered(module, level)) == (level in MASKS["float32"])
    if not runs(level):
        return
    library = tvm.compile(module, target(level), tir_pipeline=lowering.TIR_PIPELINE)
    for size in SIZES:
        x = np.random.default_rng(size).integers(-9, 9, size).astype("float32")
        got = tvm.runtime.tensor(np.full(size, np.nan, "float32"))
        library["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(np.ones(1, "float32")), got)
        np.testing.assert_allclose(got.numpy(), np.exp(x / 2) + 1, rtol=1e-6)


SINGLE = {
    "a quotient of integers": ("int64", lambda x, a, i: tirx.floordiv(x[i], tirx.max(x[i], 1))),
    "a load behind a condition": (
        "float32",
        lambda x, a, i: tirx.if_then_else(i < 3, a[0], x[i - 3]),
    ),
    "a load in an arm of a choice": (
        "float32",
        lambda x, a, i: tirx.Select(i < 3, a[0], x[i - 3]),
    ),
    "every other element": ("float32", lambda x, a, i: x[i // 2 * 2]),
    "a function of the library": (
        "float32",
        lambda x, a, i: tirx.call_pure_extern("float32", "cbrtf", x[i]),
    ),
}


@pytest.mark.parametrize("case", SINGLE)
def test_single_lanes(case):
    """What might end the process, or costs as much for lanes that are not there."""
    assert MASKED not in lowered(vectors(*SINGLE[case]), LEVELS[-1])


def test_nothing_beyond_is_read():
    """The tests above, where an access beyond a tensor ends the process."""
    assert "18 passed" in run_checked(__file__, "elements or sums or functions_of")
