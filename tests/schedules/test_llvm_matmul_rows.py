"""Products of symbolically many rows and constant weights, with what is fused to them."""

import re

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from tests.onnxruntime_oracle import run_onnxruntime
from tvm_ext import convert_and_build

K, HIDDEN, N = 20, 112, 37  # no multiple of a vector; panels with a tail


def model(hidden=HIDDEN):
    """Two linear layers with an epilogue of one operand each, ``x[b, t, K] -> y[b, t, N]``."""
    random = np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((K, hidden)),
        "bias": random.standard_normal(hidden),
        "v": random.standard_normal((hidden, N)) / 8,
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "bias"], ["q"]),
        helper.make_node("Tanh", ["q"], ["h"]),
        helper.make_node("MatMul", ["h", "v"], ["r"]),
        helper.make_node("Add", ["z", "r"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info(n, TensorProto.FLOAT, ["b", "t", d]) for n, d in (("x", K), ("z", N))],
        [info("y", TensorProto.FLOAT, ["b", "t", N])],
        [numpy_helper.from_array(w.astype("float32"), n) for n, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def compiled():
    return convert_and_build(model(), "llvm")


SIZES = [(1, 1), (2, 3), (1, 7), (3, 8), (5, 13), (1, 128), (0, 3), (2, 0)]


@pytest.mark.parametrize(("batch", "length"), SIZES)
def test_any_number_of_rows(compiled, batch, length):
    check(compiled, batch, length)


@pytest.mark.parametrize(("batch", "length"), [(1, 128), (2, 29), (1, 47)])
def test_static_rows_that_tiles_of_one_height_would_pad(batch, length):
    target = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
    compiled = convert_and_build(model(124), target, shapes={"b": batch, "t": length})
    products = compiled.sources()["schedule"].split("def fused_matmul")[1:]
    lower = [re.findall(r"sums\w* = T.sblock_alloc_buffer\(\((\d+)", text) for text in products]
    # Three panels are no work for two threads: they keep tiles of one height.
    assert sorted(len(each) > 1 for each in lower) == [False, True]
    check(compiled, batch, length, 124)


@pytest.mark.parametrize(("batch", "length"), [(1, 222), (3, 67)])
def test_many_static_rows_are_swept_over_one_panel_after_the_other(batch, length):
    """Also of a prime number of tiles, which no smaller blocks divide: 37 of 6 rows."""
    target = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
    compiled = convert_and_build(model(192), target, shapes={"b": batch, "t": length})
    products = compiled.sources()["schedule"].split("def fused_matmul")[1:]
    by_panel = [re.search(r"T.parallel\(T.int64\((\d+)\)\):\n +for turn", p) for p in products]
    panels = [192 // columns for columns in (16, 24, 32)]  # of one, of vectors as registers allow
    assert [int(match[1]) in panels for match in by_panel if match] == [True]
    check(compiled, batch, length, 192)


def check(compiled, batch, length, hidden=HIDDEN):
    random = np.random.default_rng(1)
    feeds = {
        name: random.standard_normal((batch, length, depth)).astype("float32")
        for name, depth in (("x", K), ("z", N))
    }
    (got,), (want,) = compiled.run(None, feeds), run_onnxruntime(model(hidden), feeds)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_few_rows_open_no_parallel_region(compiled):
    """Behind the branch on the work of a kernel; each of the two has one parallel loop."""
    text = compiled.sources()["llvm"]
    kernels = re.split(r"\ndefine .*@tvmx_kernel_\w+?_fused_matmul", text)[1:]
    kernels = [kernel.split("\n}\n", 1)[0] for kernel in kernels]
    assert [kernel.count("@__TVMBackendParallelLaunch") for kernel in kernels] == [1, 1]
    # The serial body stands in the kernel itself, on accumulators in vector registers.
    assert all("x float> @llvm.fmuladd" in kernel for kernel in kernels)


def test_large_weights_are_fetched_a_panel_ahead():
    """Also behind the last panel, where nothing is: a prefetch never faults."""
    random = np.random.default_rng(2)
    w = random.standard_normal((96, 1000)).astype("float32")
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])],
        "g",
        [info("x", TensorProto.FLOAT, ["t", 96])],
        [info("y", TensorProto.FLOAT, ["t", 1000])],
        [numpy_helper.from_array(w, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    built = convert_and_build(proto, "llvm")
    assert "llvm.prefetch" in built.sources()["llvm"]
    for rows in (1, 40):
        x = random.standard_normal((rows, 96)).astype("float32")
        np.testing.assert_allclose(built(x), np.maximum(x @ w, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weights", ["constant", "run time"])
def test_a_product_that_is_a_result_too(weights):
    """FuseOps does not see that a match_cast reads it, and gives the kernel two results."""
    random = np.random.default_rng(3)
    k = random.standard_normal((8, 8)).astype("float32")
    given = "" if weights == "constant" else ", float[8,8] k"
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[a,b,c,d] x{given}) => (float[a,b,c,8] z, float[a,b,c,8] y)
          <float[3] one = {{1, 1, 1}}, float[8] q = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{
          u = MatMul(x, k)  v = Add(u, q)  w = MatMul(v, k)  z = MatMul(w, k)
          y = InstanceNormalization(u, one, one)
        }}"""
    )
    feeds = {"x": random.standard_normal((2, 3, 9, 8)).astype("float32"), "k": k}
    if weights == "constant":
        model.graph.initializer.append(numpy_helper.from_array(feeds.pop("k"), "k"))
    for got, want in zip(
        convert_and_build(model, "llvm").run(None, feeds),
        run_onnxruntime(model, feeds),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
