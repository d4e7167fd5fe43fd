"""A value that is cast to a shape, and read as it was by what is computed of the cast."""

import numpy as np
import onnx

from tests.oracle import check_model

# What MatMul multiplies is cast to one column, and added to the product as it was.
CAST_AND_READ = """
<ir_version: 8, opset_import: ["": 17]>
graph (float[n, 33] x) => (float[a, b] y)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, float[1, 1] factor = {3}> {
    n = Shape <start = 0, end = 1> (x)
    half = Div (n, two)
    part = Slice (x, zero, half, one)
    product = MatMul (part, factor)
    bent = Tanh (product)
    y = Add (part, bent)
}"""


def test_a_value_that_is_cast_and_read_besides_is_computed_before_both():
    model = onnx.parser.parse_model(CAST_AND_READ)
    x = np.random.default_rng(0).standard_normal((3, 33)).astype("float32")
    check_model(model, {"x": x}, opt_levels=(1, 3))
