"""What is fused behind contractions; that no rule raises is seen to by ``conftest.py``."""

import numpy as np
import pytest
from onnx import numpy_helper, parser

from tests.onnxruntime_oracle import run_onnxruntime
from tests.oracle import check_model

# Dims of x, those of w, and what a kernel sums; names stand for the sizes that follow.
CONTRACTIONS = {
    "rows": ("2, 5, 64", (64, 32), "MatMul (x, w)"),
    "more rows": ("2, 4, 7, 64", (64, 33), "MatMul (x, w)"),
    "any rows": ("b, 5, 64", (64, 96), "MatMul (x, w)"),
    "dense": ("1, 64, 9, 8", (64, 64, 1, 1), "Conv (x, w)"),
    "dense, any size": ("1, 16, h, w_", (16, 16, 5, 5), "Conv <pads = [2, 2, 2, 2]> (x, w)"),
    "winograd": ("b, 64, 28, 27", (64, 64, 3, 3), "Conv <pads = [1, 1, 1, 1]> (x, w)"),
    "depthwise": ("2, 24, 9, 8", (24, 1, 3, 3), "Conv <group = 24, pads = [1, 1, 1, 1]> (x, w)"),
    "depthwise, any size": (
        "b, 24, h, w_", (24, 1, 3, 3), "Conv <group = 24, pads = [1, 1, 1, 1]> (x, w)"
    ),
    "depthwise, volumes": ("2, 16, d, h, w_", (16, 1, 3, 3, 3), "Conv <group = 16> (x, w)"),
    "lines": ("2, 16, t", (16, 16, 3), "Conv (x, w)"),
}  # fmt: skip
SIZES = {"b": 3, "d": 5, "h": 9, "w_": 8, "t": 40}


@pytest.mark.parametrize("kind", CONTRACTIONS)
def test_a_value_that_an_activation_names_is_used_twice(kind):
    """Where it is inlined twice, its formula defines the name twice."""
    dims, window, contraction = CONTRACTIONS[kind]
    model = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 17]> graph (float[{dims}] x) => (float y) {{
            c = {contraction}  g = LeakyRelu (c)  y = Mul (g, g)
        }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(window).astype("float32") / 8
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    shape = [SIZES.get(dim) or int(dim) for dim in dims.split(", ")]
    given = {"x": rng.standard_normal(shape).astype("float32")}
    wanted = run_onnxruntime(model, given)
    check_model(model, given, opt_levels=(2, 3), expected=wanted, rtol=1e-4, atol=1e-4)
