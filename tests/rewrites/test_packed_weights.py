"""Weights of a few bits that products dequantise stay as they are stored."""

import ml_dtypes
import numpy as np
import pytest
from onnx import helper, numpy_helper

from tvm_ext import convert_and_build

from .checking import operators, rewritten, run

DEPTH, COLUMNS, BLOCK = 64, 21, 32
RANGES = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}


def model(dtype, zeros, *, op_type="MatMul", turned=False, rows=("n", 3), **attributes):
    """A product with dequantised weights; their blocks lie along the axis that is summed."""
    random = np.random.default_rng(0)
    kind = getattr(ml_dtypes, dtype) if dtype.endswith("4") else np.dtype(dtype)

    def codes(*shape):
        return random.integers(*RANGES[dtype], shape).astype(kind)

    blocks = DEPTH // BLOCK
    arrays = [codes(DEPTH, COLUMNS), random.random((blocks, COLUMNS), "float32")]
    arrays += [codes(blocks, COLUMNS)] * zeros
    arrays = [array.T if turned else array for array in arrays]
    names = ["w", "s", "z"][: len(arrays)]
    attributes = {"axis": int(turned), "block_size": BLOCK, **attributes}
    nodes = [helper.make_node("DequantizeLinear", names, ["d"], **attributes)]
    constants = [numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True)]
    if op_type == "Gemm":
        constants.append(numpy_helper.from_array(random.random(COLUMNS, "float32"), "b"))
        nodes.append(helper.make_node("Gemm", ["x", "d", "b"], ["y"], transB=int(turned)))
    else:
        if turned:
            nodes.append(helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["x", "t" if turned else "d"], ["y"]))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [*rows, DEPTH])],
        [helper.make_tensor_value_info("y", 1, None)], constants,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("dtype, zeros, op_type, turned", [
    ("int4", False, "MatMul", False), ("int4", True, "Gemm", True),
    ("uint4", False, "Gemm", False), ("uint4", True, "MatMul", True),
    ("int8", False, "MatMul", True), ("int8", True, "Gemm", False),
    ("uint8", False, "Gemm", True), ("uint8", True, "MatMul", False),
])  # fmt: skip
def test_answers_stay(dtype, zeros, op_type, turned):
    rows = ("n", 3) if op_type == "MatMul" else ("n",)
    proto = model(dtype, zeros, op_type=op_type, turned=turned, rows=rows)
    after = operators(rewritten(proto))
    assert "MatMulNBits" in after and "DequantizeLinear" not in after
    x = np.random.default_rng(1).standard_normal((4, *rows[1:], DEPTH)).astype("float32")
    compiled = convert_and_build(proto)
    assert '"Composite": "MatmulBlocks"' in compiled.sources()["select"]
    (want,) = run(proto, {"x": x})
    np.testing.assert_allclose(compiled(x), want, rtol=1e-4, atol=1e-4 * abs(want).max())


@pytest.mark.parametrize(
    "options",
    [
        {"axis": 1, "block_size": 7},  # blocks of columns
        {"block_size": 0},  # a scale for each column is that of a whole one
    ],
)
def test_what_has_other_blocks_stays(options):
    proto = model("int4", False, rows=(3,), **options)
    shape = {7: (DEPTH, 3), 0: ()}[options["block_size"]]
    scales = np.full(shape, 0.1, "float32")
    proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(scales, "s"))
    assert "MatMulNBits" not in operators(rewritten(proto))
    x = np.ones((3, DEPTH), "float32")
    np.testing.assert_allclose(convert_and_build(proto)(x), run(proto, {"x": x})[0], rtol=1e-4)
