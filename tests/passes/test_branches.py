"""Branches of an If: what passes make of them."""

import numpy as np
import onnxruntime
import pytest
from onnx import parser
from tvm import relax

from tests.oracle import check_model
from tvm_ext import convert_and_build

RNG = np.random.default_rng(5)
WEIGHTS = ", ".join(f"{w:.3f}" for w in RNG.standard_normal(8 * 4 * 9))
# A convolution with what follows it, and a size found at run time; such a size alone.
BRANCHES = f"""<ir_version: 9, opset_import: ["" : 17]>
case (bool c, float[n, 4, h, h] x) => (float[m, k, r, s] y)
<float[8, 4, 3, 3] w = {{{WEIGHTS}}}> {{
  two = Constant <value = float {{2}}> ()
  z = Mul (x, two)
  y = If (c) <
    then_branch = t () => (float[a, b, d, e] p) {{
      conv = Conv <pads = [1, 1, 1, 1]> (z, w)
      act = Relu (conv)
      sum = Add (act, two)
      some = NonZero (sum)
      size = Size (some)
      number = Cast <to = 1> (size)
      p = Sub (sum, number)
    }},
    else_branch = e () => (float[a, b, d, e] q) {{
      at = NonZero (z)
      axes = Constant <value = int64[2] {{0, 1}}> ()
      found = Cast <to = 1> (at)
      q = Unsqueeze (found, axes)
    }}
  >
}}"""


@pytest.mark.parametrize("flag", [True, False])
def test_branches_give_what_onnxruntime_gives(flag):
    x = RNG.standard_normal((2, 4, 5, 5)).astype("float32")
    x[x < 0] = 0
    feeds = {"c": np.array(flag), "x": x}
    model = parser.parse_model(BRANCHES)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    check_model(model, feeds, expected=wanted, opt_levels=(0, 1, 2, 3))


def test_kernels_in_a_branch_are_fused_and_compound():
    feeds = {"c": np.array(True), "x": np.ones([2, 4, 5, 5], "float32")}
    kernels = convert_and_build(parser.parse_model(BRANCHES), "llvm").profile(feeds, 3).kernels
    assert any("conv2d_blocked" in k.kernel for k in kernels)
    assert any("fused" in k.kernel and "relu_add" in k.kernel for k in kernels)


def test_a_run_after_a_profile_is_not_watched(monkeypatch):
    watching = []
    set_instrument = relax.VirtualMachine.set_instrument

    def noted(vm, instrument):
        watching.append(instrument)
        set_instrument(vm, instrument)

    monkeypatch.setattr(relax.VirtualMachine, "set_instrument", noted)
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[n] x) => (seq(float[n]) y) { z = Softmax (x) y = SequenceConstruct (z) }"""
    model = convert_and_build(parser.parse_model(text), "llvm")
    report = model.profile({"x": np.ones(9, "float32")}, 3)
    assert watching[0] is not None
    assert watching[-1] is None
    assert all(kernel.seconds > 0 for kernel in report.kernels)
