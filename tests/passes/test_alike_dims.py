"""Dims that are equal and written in two ways, of kernels that would be fused."""

import numpy as np
import onnx
import pytest

from tests.oracle import check_model

# The type of a Concat is 1 + s; of what TVM makes of its consumers, s + 1.
A_ROW_MORE = """
<ir_version: 8, opset_import: ["": 17]>
graph (float[n, s, 6] x) => (float[a, b, c] y)
<float[1, 1, 6] row = {3, 1, 4, -1, 5, 9}, int64[2] rest = {1, 6}> {
    n = Shape <start = 0, end = 1> (x)
    dims = Concat <axis = 0> (n, rest)
    rows = Expand (row, dims)
    all = Concat <axis = 1> (rows, x)
    mean = ReduceMean <axes = [0, 1, 2], keepdims = 0> (all)
    off = Sub (all, mean)
    squares = Mul (off, off)
    variance = ReduceMean <axes = [0, 1, 2], keepdims = 0> (squares)
    deviation = Sqrt (variance)
    y = Div (off, deviation)
}"""

# A kernel knows that its dims are not negative, the type of a Slice does not.
LAST_ROWS = """
<ir_version: 8, opset_import: ["": 17]>
graph (float[n, 3, h, w] x) => (float[a, b, c, d] y)
<int64[1] two = {2}, int64[1] less = {-2}, int64[1] one = {-1}, float f = {1},
 int64[1] end = {2147483647}, int64[4] once = {1, 1, 1, 1}> {
    u = Tanh (x)
    both = Concat <axis = 2> (x, u)
    last = Slice (both, less, end, two)
    filtered = Conv <kernel_shape = [3, 1], pads = [1, 0, 1, 0]> (last, weight)
    square = Mul (filtered, filtered)
    tiled = Tile (square, once)
    v = Tanh (tiled)
    more = Concat <axis = 2> (tiled, v)
    row = Slice (more, one, end, two)
    y = Add (row, f)
}"""


@pytest.mark.parametrize("text, shape", [(A_ROW_MORE, (2, 7, 6)), (LAST_ROWS, (2, 3, 5, 4))])
def test_equal_dims_in_two_forms(text, shape):
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(text)
    weight = rng.standard_normal((8, 3, 3, 1)).astype("float32") / 3
    if text == LAST_ROWS:
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    check_model(model, {"x": rng.standard_normal(shape).astype("float32")}, opt_levels=(1, 3))
