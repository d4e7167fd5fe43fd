"""Chains over rows on llvm: normalisations, softmax, pooling, against numpy in float64."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi
from tvm.tirx import ForKind

from tests.schedules.kernels import WIDE, loops, prim_func, run, schedule
from tvm_ext.ops.instance_norm import instance_norm
from tvm_ext.schedules.llvm import BlockByBlock, RowNorm

EITHER = (RowNorm(), BlockByBlock())
X, Y, Z = (tirx.Var(name, "int64") for name in "xyz")


def data(shape, mean=0.0):
    array = np.random.default_rng(0).standard_normal(shape) + mean
    return array.astype("float32")


def softmax(a, axis):
    e = np.exp(a.astype("float64") - a.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def normalized(a, axes):
    a = a.astype("float64")
    return (a - a.mean(axes, keepdims=True)) / np.sqrt(a.var(axes, keepdims=True) + 1e-5)


@pytest.mark.parametrize("declared, shape, axis", [
    ((12, 24, 128), (12, 24, 128), -1), ((7, 1001), (7, 1001), -1), ((1, 1000), (1, 1000), -1),
    ((5, 1), (5, 1), -1), ((2, 21, 17, 3), (2, 21, 17, 3), 1), ((4, 3, 5), (4, 3, 5), -1),
    ((X, Y), (3, 5), -1), ((X, Y), (24, 131), -1), ((X, 2, Y, Y), (1, 2, 17, 17), -1),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("rules", [EITHER, (BlockByBlock(),)], ids=["rows", "blocks"])
def test_softmax(declared, shape, axis, rules):
    x = te.placeholder(declared, "float32", "x")
    sch = schedule(rules, prim_func(x, topi.nn.softmax(x, axis % len(shape))), WIDE)
    a = data(shape)
    (got,) = run(sch, [a], [(shape, "float32")])
    np.testing.assert_allclose(got, softmax(a, axis), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("mean", [0, 1000])
@pytest.mark.parametrize(
    "shape", [(1, 8, 56, 56), (2, 3, 17, 5), (1, 3, 150, 150), (1, 1, 8), (2, 3, 4, 3, 5)], ids=str
)
def test_instance_norm_with_relu(shape, mean):
    x = te.placeholder(shape, "float32", "x")
    scale, bias = (te.placeholder(shape[1:2], "float32") for _ in range(2))
    y = topi.nn.relu(instance_norm(x, scale, bias))
    sch = schedule(EITHER, prim_func(x, scale, bias, y), WIDE)
    a, s, b = data(shape, mean), data(shape[1:2]), data(shape[1:2])
    (got,) = run(sch, [a, s, b], [(shape, "float32")])
    channel = (1, -1, *(1 for _ in shape[2:]))
    expected = normalized(a, tuple(range(2, len(shape)))) * s.reshape(channel) + b.reshape(channel)
    np.testing.assert_allclose(got, np.maximum(expected, 0), atol=2e-3 if mean else 1e-5)


@pytest.mark.parametrize(
    "declared, shape",
    [((128, 768), (128, 768)), ((5, 17), (5, 17)), ((X, 24), (3, 24)), ((X, Y), (70, 33))],
    ids=str,
)
def test_add_and_layer_norm(declared, shape):
    x, y = (te.placeholder(declared, "float32") for _ in range(2))
    scale, bias = (te.placeholder(declared[-1:], "float32") for _ in range(2))
    out = topi.nn.layer_norm(topi.add(x, y), scale, bias, [1], 1e-5)
    sch = schedule(EITHER, prim_func(x, y, scale, bias, out), WIDE)
    a, b, s, t = data(shape), data(shape), data(shape[-1:]), data(shape[-1:])
    (got,) = run(sch, [a, b, s, t], [(shape, "float32")])
    np.testing.assert_allclose(got, normalized(a + b, (1,)) * s + t, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_blocked_instance_norm_walks_the_lanes_in_vectors(lanes):
    shape = (1, 6, 13, 14, lanes)
    x = te.placeholder(shape, "float32", "x")

    def over_plane(term, name):
        h, w = te.reduce_axis((0, 13), "h"), te.reduce_axis((0, 14), "w")
        return te.compute((1, 6, lanes), lambda n, c, v: te.sum(term(n, c, h, w, v), [h, w]), name)

    total = over_plane(x, "total")

    def centred(n, c, h, w, v):
        return x[n, c, h, w, v] - total[n, c, v] / 182.0

    square = over_plane(lambda *i: centred(*i) * centred(*i), "square")
    y = te.compute(
        shape,
        lambda n, c, h, w, v: centred(n, c, h, w, v) * te.rsqrt(square[n, c, v] / 182.0 + 1e-5),
        "y",
    )
    sch = schedule((RowNorm(),), prim_func(x, y), WIDE)
    *_, chain, _, lane = loops(sch, "square_rf_update")
    assert (lane.kind, int(lane.extent)) == (ForKind.VECTORIZED, lanes)
    # Four sums that do not wait for each other.
    assert (chain.kind, int(chain.extent)) == (ForKind.UNROLLED, 4)
    # The square roots of the lanes, too, are one.
    code = tvm.compile(sch.mod, WIDE).mod.inspect_source("ll")
    assert f"llvm.sqrt.v{lanes}f32" in code and "llvm.sqrt.f32" not in code
    a = data(shape)
    (got,) = run(sch, [a], [(shape, "float32")])
    np.testing.assert_allclose(got, normalized(a, (2, 3)), rtol=1e-4, atol=1e-4)


def max_pool(a, kernel, stride, pad):
    a = np.pad(a, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(a, (kernel, kernel), (2, 3))
    return windows[:, :, ::stride, ::stride].max((4, 5))


@pytest.mark.parametrize(
    "shape, kernel, stride, pad",
    [
        ((1, 6, 27, 31), 3, 2, 1),
        ((2, 3, 17, 17), 2, 2, 0),
        ((1, 5, 24, 24), 3, 1, 1),
        ((1, 2, 9, 40), 5, 1, 2),
        ((1, 24, 7, 7), 7, 7, 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("blocked", [False, True])
def test_max_pool(shape, kernel, stride, pad, blocked):
    a = data(shape)
    expected = max_pool(a, kernel, stride, pad)
    layout = "NCHW"
    if blocked:
        layout = "NCHW8c"
        a, expected = (
            np.repeat(v[..., None], 8, -1) + np.arange(8, dtype="float32") for v in (a, expected)
        )
    x = te.placeholder(a.shape, "float32", "x")
    y = topi.nn.pool2d(x, (kernel,) * 2, (stride,) * 2, (1, 1), (pad,) * 4, "max", layout=layout)
    sch = schedule(EITHER, prim_func(x, y), WIDE)
    (got,) = run(sch, [a], [(expected.shape, "float32")])
    np.testing.assert_array_equal(got, expected)


def test_every_block_of_softmax_runs_row_by_row():
    x = te.placeholder((1536, 128), "float32", "x")
    sch = schedule((RowNorm(),), prim_func(x, topi.nn.softmax(x, 1)), WIDE)
    row = loops(sch, "T_softmax_norm")[0]
    assert (row.kind, int(row.extent)) == (ForKind.PARALLEL, 1536)
    for block in "T_softmax_maxelem_rf_update", "T_softmax_exp", "T_softmax_expsum_rf_update":
        assert loops(sch, block)[0].same_as(row)
        assert loops(sch, block)[-1].kind == ForKind.VECTORIZED


def test_rows_that_read_each_other_are_declined():
    x, r = te.placeholder((64, 64), "float32", "x"), te.reduce_axis((0, 64), "r")
    total = te.compute((64,), lambda i: te.sum(x[i, r], axis=r), "total")
    crossed = te.compute((64, 64), lambda i, j: x[i, j] / total[j], "crossed")
    assert RowNorm().apply(prim_func(x, crossed), WIDE, False) is None
    sch = schedule(EITHER, prim_func(x, crossed), WIDE)
    a = np.abs(data((64, 64))) + 1
    (got,) = run(sch, [a], [((64, 64), "float32")])
    np.testing.assert_allclose(got, a / a.sum(1)[None, :], rtol=1e-5)


def test_few_long_rows_use_all_cores_block_by_block():
    shape = (1, 3, 224, 224)
    x, scale, bias = (te.placeholder(s, "float32") for s in (shape, (3,), (3,)))
    func = prim_func(x, scale, bias, instance_norm(x, scale, bias))
    assert RowNorm().apply(func, WIDE, False) is None
    assert "T.parallel(2)" in schedule(EITHER, func, WIDE).mod.script()


def test_an_axis_that_is_contiguous_in_memory_is_no_row():
    x = te.placeholder((300, 64), "float32", "x")
    r = te.reduce_axis((0, 300), "r")
    largest = te.compute((64,), lambda j: te.max(x[r, j], axis=r), "largest")
    y = te.compute((64,), lambda j: te.sqrt(te.abs(largest[j])) + 1.0, "y")
    sch = schedule(EITHER, prim_func(x, y), WIDE)
    assert any(loop.kind == ForKind.VECTORIZED for loop in loops(sch, "largest_update"))
    a = data((300, 64))
    (got,) = run(sch, [a], [((64,), "float32")])
    np.testing.assert_allclose(got, np.sqrt(np.abs(a.max(0))) + 1, rtol=1e-6)
