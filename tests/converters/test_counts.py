"""Operators whose axes, pads, repeats or sizes are inputs of a length known only at run time."""

import numpy as np
import onnx
import pytest

from tests.oracle import check_model
from tvm_ext import convert_and_build
from tvm_ext.errors import RunError

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
    with pytest.raises(RunError, match=r"Tile-13 'y' .* axis 0 of 'k' is 2, not 3"):
        compiled.run(None, {"x": X, "k": np.int64([1, 1])})


NUMBERED = onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["": 18]>
    graph (float[a, b, c] x, int64[n] shape, int64[m] axes, int64[s] starts, int64[e] ends,
           int64[l] size, int64[u] parts, int64[i, j] places, int64[t] pads)
       => (float[p, q] reshaped, float[w] sums, float[d, f, g] sliced, float[h, k, o] expanded,
           float[v, y, z, a1, b1] unsqueezed, float[c1, d1, e1] left, float[f1, g1, h1] right,
           float[i1, j1] rows, float[k1, l1, m1] padded)
    {
       reshaped = Reshape (x, shape)
       sums = ReduceSum <keepdims = 0> (x, axes)
       sliced = Slice (x, starts, ends, axes)
       expanded = Expand (x, size)
       unsqueezed = Unsqueeze (x, axes)
       left, right = Split <axis = 2> (x, parts)
       rows = GatherND (x, places)
       padded = Pad (x, pads, , axes)
    }
""")
COUNTS = {
    "x": X,
    "shape": [-1, 6],
    "axes": [-1, 0],
    "starts": [1, -1],
    "ends": [99, 2],
    "size": [3, 1],
    "parts": [4, 1],
    "places": [[0, -1], [1, 1]],
    "pads": [1, 0, 2, 1],
}


def test_a_rank_that_follows_from_that_of_the_logarithm():
    model = model_of("s = ReduceSum <keepdims = 0> (x, k)  y = Log (s)")
    model.graph.output[0].type.tensor_type.shape.dim.add()
    compiled = convert_and_build(model, "llvm", opt_level=0)
    (y,) = compiled.run(None, {"x": np.exp(X), "k": np.int64([0, 2])})
    np.testing.assert_allclose(y, np.log(np.exp(X).sum((0, 2))), rtol=1e-5)


def test_numbers_that_follow_from_declared_ranks():
    feeds = {
        name: np.asarray(value, "float32" if name == "x" else "int64")
        for name, value in COUNTS.items()
    }
    compiled = convert_and_build(NUMBERED, "llvm", opt_level=0)
    expected = [
        X.reshape(5, 6),
        X.sum((0, 2)),
        X[-1:2, :, 1:],
        np.broadcast_to(X, (2, 3, 5)),
        X[None, ..., None],
        X[..., :4],
        X[..., 4:],
        X[[0, 1], [-1, 1]],
        np.pad(X, ((0, 1), (0, 0), (1, 2))),
    ]
    for got, want in zip(compiled.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    for name, wrong in ("axes", [1]), ("shape", [30]), ("size", [1, 1, 1, 1]), ("parts", [5]):
        with pytest.raises(RunError, match=f"opset 18.*{name}"):
            compiled.run(None, feeds | {name: np.int64(wrong)})
