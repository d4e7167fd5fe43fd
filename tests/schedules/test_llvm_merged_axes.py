"""Axes that are walked together are one, against numpy; nothing is written beyond the result."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tests.schedules.kernels import here, prim_func, schedule
from tvm_ext.executors import lowering
from tvm_ext.schedules.llvm import LLVM_GENERIC
from tvm_ext.schedules.llvm.merged_axes import MergedAxes

N, H, W = (tirx.Var(name, "int64") for name in "nhw")
SIZES = (1, 7, 9), (2, 1, 1), (3, 16, 1), (1, 33, 31)
AROUND = 512  # elements before and behind the result


def image(channels=3):
    return te.placeholder((N, channels, H, W), "float32", "x")


def biased():
    x, b = image(), te.placeholder((3,), "float32", "b")
    y = te.compute(x.shape, lambda n, c, i, j: tirx.max(x[n, c, i, j] + b[c], 0.0), "y")
    return (x, b, y), lambda x, b: np.maximum(x + b[:, None, None], 0), 3


def scaled():
    x, y = image(), te.placeholder((N, 3, H, W), "float32", "z")
    z = te.compute(x.shape, lambda *i: x(*i) * y(*i), "y")
    return (x, y, z), np.multiply, 1


def softmax():
    x = image()
    k = te.reduce_axis((0, 3), "k")
    top = te.compute((N, H, W), lambda n, i, j: te.max(x[n, k, i, j], axis=k), "top")
    y = te.compute(x.shape, lambda n, c, i, j: x[n, c, i, j] - top[n, i, j], "y")
    return (x, y), lambda x: x - x.max(axis=1, keepdims=True), 3


def turned():
    x = image()
    y = te.compute((N, 3, W, H), lambda n, c, i, j: x[n, c, j, i], "y")
    return (x, y), lambda x: x.swapaxes(2, 3), 3  # images and channels are one


def diagonal():
    """Each pixel needs its column for itself."""
    x = image()
    y = te.compute(x.shape, lambda n, c, i, j: x[n, c, i, j] + tirx.Cast("float32", j), "y")
    return (x, y), lambda x: x + np.arange(x.shape[3], dtype="float32"), 2


def halved():
    """Rows of the operand are twice as long."""
    x = te.placeholder((N, 3, H, 2 * W), "float32", "x")
    y = te.compute((N, 3, H, W), lambda n, c, i, j: x[n, c, i, j], "y")
    return (x, y), lambda x: x[..., : x.shape[3] // 2], 2


def apart():
    """Channels are reversed, and pixels are of two parts."""
    x = image()

    def element(n, c, i, j):
        return tirx.if_then_else(i < j, x[n, 2 - c, i, j], tirx.const(0.0, "float32"))

    y = te.compute(x.shape, element, "y")
    columns = np.arange(99)

    def expected(x):
        _, _, h, w = x.shape
        return np.where(columns[:h, None] < columns[:w], x[:, ::-1], 0)

    return (x, y), expected, 0


def summed():
    x = image()
    i, j = te.reduce_axis((0, H), "i"), te.reduce_axis((0, W), "j")
    y = te.compute((N, 3), lambda n, c: te.sum(x[n, c, i, j], axis=[i, j]), "y")
    return (x, y), lambda x: x.sum(axis=(2, 3)), 2


class _Seen:
    """A rule that is none, and notes how many axes the last block of a kernel has."""

    axes = 0

    def apply(self, func, _target, _tunable):
        root = func.body.block.body
        stmt = root.seq[-1] if isinstance(root, tirx.SeqStmt) else root
        while isinstance(stmt, tirx.For):
            stmt = stmt.body
        self.axes = len(stmt.block.iter_vars)


@pytest.mark.parametrize("case", [biased, scaled, softmax, turned, diagonal, halved, apart, summed])
def test_kernels(case):
    tensors, expected, axes = case()
    func = prim_func(*tensors)
    seen = _Seen()
    MergedAxes(seen).apply(func, here(), False)
    assert seen.axes == axes
    *operands, result = (tensor.shape for tensor in tensors)
    sch = schedule(LLVM_GENERIC, func, here())
    library = tvm.compile(sch.mod, here(), tir_pipeline=lowering.TIR_PIPELINE)
    for n, h, w in SIZES:
        sizes = {"n": n, "h": h, "w": w}

        def size(dim, sizes=sizes):
            return int(eval(str(dim).replace("T.int64", ""), {"__builtins__": {}}, sizes))

        rng = np.random.default_rng(n + h + w)
        given = [rng.normal(size=[size(d) for d in shape]).astype("float32") for shape in operands]
        shape = [size(d) for d in result]
        memory = np.full(2 * AROUND + int(np.prod(shape)), 7, np.float32)
        start = AROUND - memory.ctypes.data % 64 // 4  # results start at a cache line
        inside = memory[start : start + int(np.prod(shape))].reshape(shape)
        library["main"](*map(tvm.runtime.tensor, given), inside)
        np.testing.assert_allclose(inside, expected(*given), rtol=1e-5, atol=1e-5)
        assert (memory[:start] == 7).all() and (memory[start + inside.size :] == 7).all()
