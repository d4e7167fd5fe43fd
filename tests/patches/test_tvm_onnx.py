"""TVM's importer with our converters: what it lacks, what it computes badly, and back again."""

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm_ext.patches.tvm_onnx import converters_in_tvm

from tests.oracle import node_model, reference


def run(model, feeds):
    module = relax.transform.DecomposeOpsForInference()(from_onnx(model))
    vm = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
    result = vm["main"](*(tvm.runtime.tensor(array) for array in feeds.values()))
    return result.numpy()


def test_instance_norm_of_float16():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(2, 3, 32, 32)) + 100).astype("float16")
    scale, bias = rng.normal(size=(2, 3)).astype("float16")
    model = node_model("InstanceNormalization", [x, scale, bias], opset=17)
    feeds = {"x0": x, "x1": scale, "x2": bias}
    expected = reference(model, feeds)[0]

    assert not np.isfinite(run(model, feeds)).all(), "the patch is needed no more"
    with converters_in_tvm("InstanceNormalization"):
        np.testing.assert_allclose(run(model, feeds), expected, rtol=2e-3, atol=2e-3)
    assert not np.isfinite(run(model, feeds)).all()


def test_an_operator_that_tvm_lacks():
    x = np.linspace(-4, 4, 15, dtype="float32").reshape(3, 5)
    model = node_model("Swish", [x], {"alpha": 1.5}, opset=24)
    with pytest.raises(tvm.error.OpNotImplemented):
        from_onnx(model)
    with converters_in_tvm():
        np.testing.assert_allclose(
            run(model, {"x0": x}), x / (1 + np.exp(-1.5 * x)), rtol=1e-5, atol=1e-6
        )
    with pytest.raises(tvm.error.OpNotImplemented):
        from_onnx(model)


def test_several_outputs():
    x = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    scale = np.ones(5, "float32")
    model = node_model("LayerNormalization", [x, scale], opset=17, outputs=2)
    graph = model.graph
    graph.node.append(helper.make_node("Sub", ["y0", "y1"], ["z"]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("z", 1, [3, 5]))
    with converters_in_tvm("LayerNormalization"):
        got = run(model, {"x0": x, "x1": scale})
    mean = x.mean(1, keepdims=True)
    np.testing.assert_allclose(
        got, (x - mean) / np.sqrt(x.var(1, keepdims=True) + 1e-5) - mean, rtol=1e-4, atol=1e-5
    )


def test_an_operator_that_we_do_not_convert():
    with pytest.raises(ValueError, match="Nonsense"), converters_in_tvm("Nonsense"):
        pass
