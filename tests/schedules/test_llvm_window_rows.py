"""Windows along rows, against numpy; nothing beyond tensors is touched."""

from itertools import product

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tests.schedules.kernels import here, prim_func, schedule
from tests.schedules.test_llvm_pieces import AROUND
from tvm_ext.executors import lowering
from tvm_ext.ops import pooling
from tvm_ext.schedules.llvm import WindowRows

#: Kernel, strides, dilations, pads before and after of both axes.
WINDOWS = {
    "3x3 at 2": ((3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "2x2": ((2, 2), (2, 2), (1, 1), (0, 0), (0, 0)),
    "3x3 at 1": ((3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "dilated": ((2, 3), (1, 3), (3, 2), (0, 2), (2, 0)),
    "gaps": ((1, 2), (3, 5), (1, 1), (0, 1), (0, 0)),
    "wide pads": ((5, 7), (2, 1), (1, 1), (4, 5), (3, 6)),
}
SIZES = (9, 40), (33, 17), (7, 130), (8, 16), (6, 7)
LEAST = {np.dtype("float32"): -np.inf, np.dtype("int8"): -128, np.dtype("float64"): -np.inf}


def windows_of(x, geometry, fill):
    """``x`` with ``fill`` around it, as ``[.., oh, ow, kh, kw]``."""
    kernel, strides, dilations, before, after = geometry
    padded = np.pad(x, [(0, 0), (0, 0), *zip(before, after, strict=True)], constant_values=fill)
    outputs = [
        (size + b + a - d * (k - 1) - 1) // s + 1
        for size, k, s, d, b, a in zip(x.shape[2:], *geometry, strict=True)
    ]
    taken = np.empty((*x.shape[:2], *outputs, *kernel), x.dtype)
    for p, q in product(*map(range, kernel)):
        rows, columns = (
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip((p, q), dilations, outputs, strides, strict=True)
        )
        taken[..., p, q] = padded[:, :, rows, columns]
    return taken


def built(compute, geometry, dtype, size=None, **options):
    """A pool of ``x[2, 3, h, w]``, of symbolic ``h`` and ``w`` or of a ``size``."""
    kernel, strides, dilations, before, _ = geometry
    if size is None:
        h, w = tirx.Var("h", "int64"), tirx.Var("w", "int64")
    else:
        h, w = (tirx.const(extent, "int64") for extent in size)
    images, channels, *kernel = (tirx.const(size, "int64") for size in (2, 3, *kernel))
    x = te.placeholder((images, channels, h, w), dtype, "x")
    outputs = [
        (size + b + a - d * (k - 1) - 1) // s + 1
        for size, k, s, d, b, a in zip((h, w), *geometry, strict=True)
    ]
    y = compute(x, kernel, strides, dilations, before, outputs, **options)
    sch = schedule((WindowRows(),), prim_func(x, y), here())
    assert "columns" in sch.mod.script()
    return tvm.compile(sch.mod, here(), tir_pipeline=lowering.TIR_PIPELINE)


def check(library, x, expected, **tolerance):
    """Run ``library`` into the middle of an array that it must leave alone elsewhere."""
    memory = np.full(2 * AROUND + expected.size, 7, x.dtype)
    start = AROUND - memory.ctypes.data % 64 // x.itemsize  # results start at a cache line
    inside = memory[start : start + expected.size].reshape(expected.shape)
    library["main"](tvm.runtime.tensor(x), inside)
    np.testing.assert_allclose(inside, expected, **tolerance)
    assert (memory[:start] == 7).all() and (memory[start + expected.size :] == 7).all()


def data(size, dtype):
    array = np.random.default_rng(sum(size)).standard_normal((2, 3, *size)) * 30
    return array.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
@pytest.mark.parametrize("name", WINDOWS)
def test_maxima(name, dtype):
    geometry = WINDOWS[name]
    library = built(pooling.max_pool, geometry, dtype)
    for size in SIZES:
        x = data(size, dtype)
        if dtype != "int8":
            x.flat[::37] = np.nan
        expected = windows_of(x, geometry, LEAST[x.dtype]).max((-2, -1))
        check(library, x, expected, rtol=0)


@pytest.mark.parametrize("size", [(9, 40), (33, 17), (7, 131)])
@pytest.mark.parametrize("name", ["3x3 at 2", "3x3 at 1", "wide pads"])
def test_static_rows(name, size):
    geometry, x = WINDOWS[name], data(size, "float32")
    x.flat[::37] = np.nan
    expected = windows_of(x, geometry, -np.inf).max((-2, -1))
    check(built(pooling.max_pool, geometry, "float32", size), x, expected, rtol=0)
    total = windows_of(np.nan_to_num(x), geometry, 0).sum((-2, -1))
    taps = windows_of(np.ones_like(x), geometry, 0).sum((-2, -1))
    library = built(pooling.avg_pool, geometry, "float32", size)
    check(library, np.nan_to_num(x), total / taps, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_means(name, counts):
    geometry = WINDOWS[name]
    library = built(pooling.avg_pool, geometry, "float32", after=geometry[4] if counts else None)
    for size in SIZES:
        x = data(size, "float32")
        total = windows_of(x.astype("float64"), geometry, 0).sum((-2, -1))
        taps = windows_of(np.ones_like(x), geometry, int(counts)).sum((-2, -1))
        with np.errstate(invalid="ignore"):
            check(library, x, (total / taps).astype("float32"), rtol=1e-5, atol=1e-4)


def test_rows_without_windows():
    library = built(pooling.max_pool, WINDOWS["2x2"], "float32")
    for size in (1, 20), (20, 1), (0, 3), (3, 0):
        result = tvm.runtime.empty((2, 3, size[0] // 2, size[1] // 2), "float32")
        library["main"](tvm.runtime.tensor(data(size, "float32")), result)


def test_others_stay():
    """Products along a row read at other places than windows do; of rows whose length is known
    those that are short or whose windows share nothing are no business."""
    n, w = tirx.Var("n", "int64"), tirx.Var("w", "int64")
    few, many = tirx.const(3, "int64"), tirx.const(40, "int64")
    x, y = te.placeholder((many, n, w), name="x"), te.placeholder((few,), name="y")
    k = te.reduce_axis((0, few), "k")
    weighted = te.compute((many, n, w - 2), lambda c, i, j: te.sum(x[c, i, j + k] * y[k], axis=k))
    assert not is_taken(x, y, weighted)
    for length, stride, taken in ((40, 1, True), (40, 3, False), (7, 1, False)):
        x = te.placeholder((many, n, tirx.const(length, "int64")), name="x")
        k = te.reduce_axis((0, few), "k")
        shape = many, n, tirx.const((length - 3) // stride + 1, "int64")
        y = te.compute(shape, lambda c, i, j: te.max(x[c, i, j * stride + k], axis=k))  # noqa: B023
        assert is_taken(x, y) == taken


def is_taken(*tensors):
    with here():
        return WindowRows().apply(prim_func(*tensors), here(), False) is not None
