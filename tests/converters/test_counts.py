"""Operators whose axes, pads, repeats or sizes are inputs of a length known only at run time."""

import numpy as np
import onnx
import pytest

from tests.oracle import check_model
from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError

X = np.random.default_rng(0).standard_normal((2, 3, 5)).astype("float32")


def model_of(text):
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]>'
        f"graph (float[a, b, c] x, int64[n] k) => (float y) {{ {text} }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def test_axes_to_reduce():
    compiled = convert_and_build(model_of("y = ReduceSum (x, k)"), "llvm", opt_level=0)
    for axes, meant in ([1], (1,)), ([-1, 0], (0, 2)), ([], None):
        (sums,) = compiled.run(None, {"x": X, "k": np.int64(axes)})
        np.testing.assert_allclose(sums, X.sum(meant, keepdims=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("y = Pad (x, k)", [1, 0, 2, 0, 1, 3]),
        ("y = Tile (x, k)", [2, 1, 3]),
        ('y = Resize <mode = "nearest"> (x, , , k)', [2, 6, 7]),
    ],
)
def test_a_number_for_each_axis(text, counts):
    model = model_of(text)
    check_model(model, {"x": X, "k": np.int64(counts)}, opt_levels=(0,))


def test_a_wrong_number_is_refused_at_run_time():
    model = model_of("y = Tile (x, k)")
    compiled = convert_and_build(model, "llvm", opt_level=0)
    with pytest.raises(RuntimeError, match="mismatch"):
        compiled.run(None, {"x": X, "k": np.int64([1, 1])})


def test_a_rank_known_only_at_run_time_is_refused():
    model = model_of("y = ReduceSum <keepdims = 0> (x, k)")
    with pytest.raises(ConversionError, match="the rank of the result"):
        convert_and_build(model, "llvm")
