"""Tensors of symbolic sizes share blocks of memory, which are kept from run to run."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.oracle import reference
from tvm_ext import convert_and_build
from tvm_ext.executors.vm import VMExecutor


def network(*more):
    """Tensors of n, 2n, n * m and of known sizes, views of them, and results among them; ``more``
    is an operator whose result follows from x."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"]),
        helper.make_node("Concat", ["a", "x"], ["b"], axis=1),
        helper.make_node("Softmax", ["b"], ["c"]),
        helper.make_node("Reshape", ["c", "flat"], ["d"]),
        helper.make_node("CumSum", ["d", "axis"], ["e"]),
        helper.make_node("Softmax", ["e"], ["f"]),
        helper.make_node("ReduceSum", ["f"], ["g"], keepdims=0),
        helper.make_node("MatMul", ["x", "z"], ["h"]),
        helper.make_node("Softmax", ["h"], ["i"]),
        helper.make_node("Mul", ["i", "g"], ["j"]),
        helper.make_node("Softmax", ["a"], ["k"]),
        helper.make_node("Add", ["k", "x"], ["l"]),
        *(helper.make_node(operator, ["x"], ["p"]) for operator in more),
    ]
    constants = [
        helper.make_tensor("flat", TensorProto.INT64, [2], [-1, 24]),
        helper.make_tensor("axis", TensorProto.INT64, [], [1]),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 24]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [24, "m"]),
        ],
        [helper.make_empty_tensor_value_info(name) for name in "jelgp"[: 4 + len(more)]],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model)


def test_runs_of_varying_sizes_are_right_and_keep_the_memory_of_one():
    model = network("SequenceConstruct")
    built = convert_and_build(model, "llvm")
    assert isinstance(built.executor, VMExecutor)
    rng = np.random.default_rng(0)

    def run(n, m):
        x = {
            "x": rng.standard_normal((n, 24)).astype("float32"),
            "z": rng.standard_normal((24, m)).astype("float32"),
        }
        return built.run(None, x), reference(model, x)

    def kept():
        given = built.executor._local.blocks.given
        return sum(sum(sizes) for sizes, _ in given.values())

    results = [run(n, m) for n, m in [(3, 5), (1, 1), (7, 2), (0, 3), (7, 2), (31, 40), (2, 3)]]
    for got, want in results:  # those of the first runs after the last one
        for ours, theirs in zip(got, want, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    run(1000, 300)
    large = kept()
    assert 1000 * 24 * 4 <= large <= 3 * 4 * 1000 * (24 + 2 * 24 + 300)
    run(2, 3)
    assert kept() < large / 100


GROWING = """<ir_version: 8, opset_import: ["": 17]>
graph (int64 n, float[a] x) => (seq(float[a]) y) {
    none = SequenceEmpty ()
    go = Constant <value = bool {1}> ()
    y = Loop (n, go, none) <
      body = trip (int64 i, bool c, seq(float[a]) s) => (bool d, seq(float[a]) v) {
        d = Identity (c)
        f = Cast <to = 1> (i)
        p = Add (x, f)
        t = SequenceInsert (s, p)
        q = Mul (x, f)
        v = SequenceInsert (t, q)
    }>
}"""


def test_a_sequence_keeps_the_tensors_of_all_trips_and_runs():
    built = convert_and_build(onnx.parser.parse_model(GROWING), "llvm")
    x = np.arange(5, dtype="float32")
    results = [built.run(None, {"n": np.int64(3), "x": first * x})[0] for first in (1, 10)]
    for first, result in zip((1, 10), results, strict=True):
        want = [each for i in range(3) for each in (first * x + i, first * x * i)]
        np.testing.assert_array_equal(result, want)
