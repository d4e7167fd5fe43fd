"""The rule for recurrent layers: who runs what, and how wide."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from tests.schedules.kernels import WIDE, here, prim_func, run
from tvm_ext.executors.lowering import TIR_PIPELINE
from tvm_ext.ops.approximations import tanh
from tvm_ext.ops.recurrent import panel_width, rnn
from tvm_ext.schedules.llvm.recurrent import Recurrent

TIME = 4


def layer(batch, hidden, directions=1, symbolic=False):
    """An RNN layer, of a symbolic batch if wanted; its operands; what numpy makes of them."""
    width = panel_width(1, hidden, "float32")
    panels = -(-hidden // width)
    shapes = [(TIME, batch, directions, 1, panels * width),
              (directions, panels, hidden, 1, width), (directions, batch, hidden)]  # fmt: skip
    sizes = shapes
    if symbolic:
        sizes = [[tirx.const(size, "int64") for size in shape] for shape in shapes]
        sizes[0][1] = sizes[2][1] = tirx.Var("n", "int64")
    tensors = [te.placeholder(shape, name=name) for shape, name in zip(sizes, "xrh", strict=True)]
    results = rnn(*tensors, None, reverse=[False] * directions, activations=[[tanh]] * directions,
                  clip=lambda x: x)  # fmt: skip
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-0.3, 0.3, shape).astype("float32") for shape in shapes]
    arrays[1] /= np.sqrt(hidden / 64, dtype="float32")  # larger ones amplify rounding errors
    return prim_func(*tensors, *results), arrays, _expected(*arrays)


def _expected(gates, panels, h):
    hidden = h.shape[2]
    weights = panels[:, :, :, 0].transpose(0, 2, 1, 3).reshape(len(h), hidden, -1)[:, :, :hidden]
    y = []
    for step in gates.astype("float64"):
        h = np.tanh(step[:, :, 0, :hidden].swapaxes(0, 1) + h @ weights)
        y.append(h)
    return np.array(y), h


def schedule(func, **options):
    with WIDE:
        return Recurrent(**options).apply(func, WIDE, False)


def parallel_around(sch, name):
    """Whether a loop around the block ``name`` is parallel, from the outermost block on."""
    found = []

    def visit(loop):
        blocks = []
        tvm_ffi.structural_walk(
            loop, (tvm.s_tir.SBlock, lambda block: blocks.append(block.name_hint))
        )
        found.append(loop.kind == tirx.ForKind.PARALLEL and name in blocks)

    tvm_ffi.structural_walk(sch.mod["main"].body, (tirx.For, visit))
    return any(found)


def check(sch, arrays, expected):
    for got, want in zip(run(sch, arrays, [(a.shape, "float32") for a in expected]), expected,
                         strict=True):  # fmt: skip
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("batch, directions", [(4, 1), (1, 2), (3, 2)])
def test_small_weights_cores_take_sequences(batch, directions):
    func, arrays, expected = layer(batch, 33, directions)
    sch = schedule(func)
    assert parallel_around(sch, "sequences")
    check(sch, arrays, expected)


@pytest.mark.parametrize("hidden", [64, 130, 197])
def test_large_weights_cores_take_panels_and_turn_around(hidden):
    func, arrays, expected = layer(1, hidden)
    plain = schedule(func)
    assert not parallel_around(plain, "panel")
    check(plain, arrays, expected)
    sch = schedule(func, step_work=1, own_weights=1)
    assert parallel_around(sch, "panel")
    assert not parallel_around(sch, "sequences")
    assert "% T.int64(2) == T.int64(0)" in sch.mod.script()
    check(sch, arrays, expected)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 6, 8, 9])
@pytest.mark.parametrize("hidden, asks", [(33, 0), (130, 0), (800, 1)])
def test_of_a_symbolic_batch_one_sequence_too_many_steps_alone(batch, hidden, asks):
    """Weights beyond the second cache are asked for where a row alone reads them."""
    func, arrays, expected = layer(batch, hidden, symbolic=True)
    sch = schedule(func, step_work=1, own_weights=1)
    script = sch.mod.script()
    assert script.count('T.sblock("sequences")') == 2
    assert script.count("prefetch") == asks
    assert script.count("T.vectorized") > script.count('T.sblock("recurrent_product")') == 2
    built = tvm.tirx.build(sch.mod, target=here(), pipeline=TIR_PIPELINE)
    results = [tvm.runtime.tensor(np.full(want.shape, 77, "float32")) for want in expected]
    built["main"](*map(tvm.runtime.tensor, arrays), *results)
    for got, want in zip(results, expected, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=1e-5)


def test_weights_beyond_the_second_cache_are_prefetched():
    func, arrays, expected = layer(1, 800)
    sch = schedule(func)
    assert parallel_around(sch, "panel")
    assert "prefetch" in sch.mod.script()
    check(sch, arrays, expected)


def test_products_fill_registers():
    func, *_ = layer(8, 64)
    sch = schedule(func, step_work=1, own_weights=1)
    kinds = []

    def product(block):
        if block.name_hint == "recurrent_product":
            kinds.append(len(block.iter_vars))

    tvm_ffi.structural_walk(sch.mod["main"].body, (tvm.s_tir.SBlock, product))
    assert kinds == [4]
    widths = []
    tvm_ffi.structural_walk(
        sch.mod["main"].body,
        (tirx.For, lambda f: f.kind == tirx.ForKind.VECTORIZED and widths.append(int(f.extent))),
    )
    assert set(widths) == {16}


def test_declines_other_kernels():
    x = te.placeholder((4, 16), name="x")
    assert schedule(prim_func(x, te.compute((4, 16), lambda i, j: x[i, j] + 1))) is None
