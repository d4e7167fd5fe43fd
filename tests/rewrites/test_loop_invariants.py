"""Values that a Loop carries and never changes."""

import numpy as np
import onnxruntime
import pytest
from onnx import parser

from tests.oracle import check_model
from tvm_ext import convert_and_build

WEIGHTS = ", ".join(f"{w:.3f}" for w in np.random.default_rng(3).standard_normal(24 * 24) / 5)
# v is carried as it is, by a name and by an Identity; u too, and stacked; s and t change places.
CARRIED = f"""<ir_version: 9, opset_import: ["" : 17]>
case (int64 n, bool go, float[1, 24] x, float[24] b) => (
    float[1, 24] y, float[24, 24] v1, float[24] sum, float[k, 24] all, float[1, 24] t1)
<float[24, 24] w = {{{WEIGHTS}}}> {{
  y, v1, v2, u1, t1, all = Loop (n, go, x, w, w, b, x) <
    body = f (int64 i, bool c, float[1, 24] s, float[24, 24] v, float[24, 24] q, float[24] u,
              float[1, 24] t) =>
             (bool d, float[1, 24] next, float[24, 24] v, float[24, 24] r, float[24] u,
              float[1, 24] old, float[24] kept) {{
      d = Identity (c)
      old = Identity (s)
      r = Identity (q)
      a = MatMul (t, v)
      e = MatMul (s, q)
      g = Add (a, e)
      next, p1 = Loop (n, c, g, u) <
        body = h (int64 j, bool k, float[1, 24] o, float[24] p) =>
                 (bool l, float[1, 24] m, float[24] p) {{
          l = Identity (k)
          z = Add (o, p)
          m = Tanh (z)
        }}
      >
      kept = Identity (u)
    }}
  >
  sum = Add (u1, u1)
}}"""


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_what_a_loop_never_changes_is_what_it_was(trips):
    rng = np.random.default_rng(0)
    x, b = (rng.standard_normal(shape).astype("float32") for shape in ((1, 24), (24,)))
    feeds = {"n": np.array(trips), "go": np.array(True), "x": x, "b": b}
    model = parser.parse_model(CARRIED)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    check_model(model, feeds, expected=wanted, opt_levels=(0, 1, 3))


def test_weights_that_a_loop_carries_are_packed():
    sources = convert_and_build(parser.parse_model(CARRIED), "llvm").sources()
    constant = 'metadata["ir.GenericConst"]'
    products = [line for line in sources["select"].splitlines() if "call_tir(cls.matmul" in line]
    assert len(products) == 2
    assert all(constant in line for line in products)
