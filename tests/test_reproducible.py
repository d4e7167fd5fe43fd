"""Every build of a model is the same, byte by byte."""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import tvm_ext

# Convolutions of stride 2, pools and resizing: shapes that are formulas of all sizes; kernels of
# several of them; attention, reductions and concatenation.
NET = """<ir_version: 9, opset_import: ["": 17]>
net (float[N, 3, H, W] x) => (float[N, 16, A, B] y, float[N, 16, 1, 1] z)
<float[16, 3, 3, 3] v, float[16, 16, 3, 3] w, float[4] doubled = {1, 1, 2, 2}> {
  a = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, v)
  b = Relu(a)
  c = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(b, w)
  d = Sigmoid(c)
  p = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(b)
  q = Mul(p, d)
  r = Resize<mode = "nearest">(q, , doubled)
  t = Transpose<perm = [0, 1, 3, 2]>(r)
  m = MatMul(r, t)
  s = Softmax<axis = 3>(m)
  y = MatMul(s, r)
  j = Concat<axis = 3>(q, d)
  z = ReduceMean<axes = [2, 3]>(j)
}"""

AROUND = """
import sys, tvm_ext
assembly = lambda: tvm_ext.convert_and_build(sys.argv[1], "llvm").sources()["asm"]
before = assembly()
for target in "riscv64-v", "wasm32":
    tvm_ext.convert_and_build(sys.argv[1], target)
    assert assembly() == before, target
"""

BUILD = """
import sys, tvm_ext
for name in sys.argv[1:]:
    tvm_ext.convert_and_build(name, "llvm").save(name + ".so")
"""


def network(sizes: tuple[str, str, str]) -> onnx.ModelProto:
    """``NET`` at these sizes: numbers, or names."""
    text = NET
    for symbol, size in zip("NHW", sizes, strict=True):
        text = text.replace(f"{symbol},", f"{size},").replace(f" {symbol}]", f" {size}]")
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in ("v", (16, 3, 3, 3)), ("w", (16, 16, 3, 3)):
        weights = rng.standard_normal(shape).astype("float32")
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    return model


@pytest.mark.parametrize("sizes", [("2", "41", "37"), ("n", "h", "w")], ids=["static", "symbolic"])
def test_another_process_builds_the_same(sizes, tmp_path):
    """One that orders sets otherwise, and whose objects lie elsewhere."""
    model = network(sizes)
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    built = tvm_ext.convert_and_build(path, "llvm")
    built.save(tmp_path / "here.so")
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", BUILD, path], env=environment, check=True)
    there = tvm_ext.load(f"{path}.so")
    assert there.sources() == built.sources()
    assert (tmp_path / "net.onnx.so").read_bytes() == (tmp_path / "here.so").read_bytes()


def test_builds_for_other_machines_leave_no_trace(tmp_path):
    """LLVM has options and tables that all that a process compiles share."""
    path = tmp_path / "net.onnx"
    onnx.save(network(("n", "h", "w")), path)
    subprocess.run([sys.executable, "-c", AROUND, path], check=True)
