"""Products of narrow floats are those of float32, with weights as narrow as they were."""

import re

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvm_ext import convert_and_build

RNG = np.random.default_rng(0)
TYPES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
WITHOUT_BFLOAT16 = {"kind": "llvm", "mcpu": "x86-64-v3"}


def data(*shape, dtype="float16"):
    return RNG.standard_normal(shape).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def model(op_type, x, weight, symbolic=(), **attributes):
    """``op_type(x, weight)``, its ``symbolic`` axes of unknown size."""
    shape = [f"d{k}" if k in symbolic else size for k, size in enumerate(x.shape)]
    dtype = TYPES[x.dtype.name]
    node = helper.make_node(op_type, ["x", "w"], ["y"], **attributes)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", dtype, None)], [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def close(got, want, terms):
    """Rounded once, at the end: half a unit, and what sums of float32 lose."""
    unit = 2.0**-11 if got.dtype == np.float16 else 2.0**-8
    bound = unit * abs(want) + terms * 2.0**-22
    assert (abs(got.astype("f8") - want) <= bound).all()


def kernels(compiled):
    """What the kernels do, by their names."""
    found = re.findall(r"R.call_tir\(cls.([a-z0-9_]*[a-z])", compiled.sources()["select"])
    return set(found) - {"reshape"}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows, symbolic", [((1,), ()), ((2, 41), ()), ((3, 5), (0, 1))])
def test_matrix_products(rows, symbolic, dtype):
    x, weight = data(*rows, 67, dtype=dtype), data(67, 35, dtype=dtype)
    compiled = convert_and_build(model("MatMul", x, weight, symbolic), WITHOUT_BFLOAT16)
    assert '"Composite": "TiledMatmul"' in compiled.sources()["select"]
    close(compiled(x), x.astype("f8") @ weight.astype("f8"), 67)


@pytest.mark.parametrize("target, size", [("x86-64-v3", 2), ("x86-64-v2", 4)])
def test_weights_of_products_stay_narrow_where_that_is_quick(target, size):
    x, weight = data(4, 256), data(256, 512)
    compiled = convert_and_build(model("MatMul", x, weight), target)
    assert weight.size * size <= compiled.memory.weight_bytes <= weight.size * size + 4096
    close(compiled(x), x.astype("f8") @ weight.astype("f8"), 256)


@pytest.mark.parametrize(
    "op_type, image, weight, attributes",
    [
        ("Conv", (1, 16, 9, 11), (24, 16, 3, 3), {"pads": [1] * 4}),
        ("Conv", (2, 8, 13), (16, 4, 3), {"group": 2, "strides": [2]}),
        ("Conv", (1, 16, 7, 7), (16, 1, 3, 3), {"group": 16}),
        ("Conv", (1, 3, 5, 6, 7), (4, 3, 2, 2, 2), {}),
        ("ConvTranspose", (1, 8, 5, 6), (8, 16, 3, 3), {"strides": [2, 2]}),
    ],
)
def test_convolutions_give_what_those_of_float32_give(op_type, image, weight, attributes):
    x, w = data(*image), data(*weight)
    narrow = convert_and_build(model(op_type, x, w, **attributes))
    wide_model = model(op_type, x, w, **attributes)
    for info in (*wide_model.graph.input, *wide_model.graph.output):
        info.type.tensor_type.elem_type = TensorProto.FLOAT
    wide_model.graph.initializer[0].CopyFrom(numpy_helper.from_array(w.astype("float32"), "w"))
    wide = convert_and_build(wide_model)
    assert kernels(narrow) >= kernels(wide)
    defined = re.findall(r"def \w*(conv|matmul)(.*)", narrow.sources()["select"])
    assert defined and not any("float16" in operands for _, operands in defined)
    close(narrow(x), wide(x.astype("float32")).astype("f8"), 16)


def test_what_stands_between_convolutions_stays_in_their_blocks():
    """A float16 has half the bits of what it comes from, and goes to."""
    x, weights = data(1, 32, 6, 7), [data(32, 32, 3, 3), data(32, 32, 1, 1)]
    network = model("Conv", x, weights[0], pads=[1] * 4)
    node, graph = helper.make_node, network.graph
    graph.node[0].output[0] = "a"
    graph.node.extend([node("Relu", ["a"], ["b"]), node("Conv", ["b", "v"], ["y"])])
    graph.initializer.append(numpy_helper.from_array(weights[1] / 32, "v"))
    compiled = convert_and_build(network)
    assert "reblock" not in kernels(compiled)
    assert len(compiled.profile(repeat=1).kernels) <= 4  # two, to blocks and from them
    (want,) = onnxruntime.InferenceSession(network.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(compiled(x).astype("f4"), want, rtol=1e-2, atol=1e-2)
