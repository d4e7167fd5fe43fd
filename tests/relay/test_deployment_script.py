"""A deployment script of the Relay era; only its three import lines were changed."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.oracle import reference

SCRIPT = """
import numpy as np
import onnx
from tvm_ext.relay import tvm
from tvm_ext import relay
from tvm_ext.relay import graph_executor

onnx_model = onnx.load(model_path)
target = "llvm -mcpu=x86-64"
shape_dict = {"data": img_data.shape}
mod, params = relay.frontend.from_onnx(onnx_model, shape_dict)

with tvm.transform.PassContext(opt_level=3):
    lib = relay.build(mod, target=target, params=params)

dev = tvm.device(str(target), 0)
module = graph_executor.GraphModule(lib["default"](dev))
module.set_input("data", tvm.nd.array(img_data))
module.run()
tvm_output = module.get_output(0, tvm.nd.empty((2, 4))).numpy()
same_output = module.get_output(0).asnumpy()

timing = module.module.time_evaluator("run", dev, number=1, repeat=3)
times = np.array(timing().results) * 1000
benchmark = module.benchmark(dev, repeat=2, number=1, end_to_end=True)
"""

EXPORT = """
lib.export_library(library_path)
loaded = tvm.runtime.load_module(library_path)
again = graph_executor.GraphModule(loaded["default"](dev))
again.set_input("data", img_data)
again.run()
loaded_output = again.get_output(0).numpy()
"""


def small_network(path):
    """Gemm and Relu, with a symbolic batch."""
    rng = np.random.default_rng(0)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["data", "weight", "bias"], ["h"], transB=1),
            helper.make_node("Relu", ["h"], ["out"]),
        ],
        "graph",
        [value("data", onnx.TensorProto.FLOAT, ["batch", 6])],
        [value("out", onnx.TensorProto.FLOAT, ["batch", 4])],
        [
            numpy_helper.from_array(rng.normal(size=(4, 6)).astype("float32"), "weight"),
            numpy_helper.from_array(rng.normal(size=4).astype("float32"), "bias"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), path)
    return onnx.load(path)


def test_the_script_runs_and_is_right(tmp_path):
    model = small_network(tmp_path / "model.onnx")
    data = np.random.default_rng(1).normal(size=(2, 6)).astype("float32")
    names = {
        "model_path": tmp_path / "model.onnx",
        "img_data": data,
        "library_path": tmp_path / "deploy_lib.tar",
    }
    exec(SCRIPT + EXPORT, names)
    (expected,) = reference(model, {"data": data})
    for result in "tvm_output", "same_output", "loaded_output":
        np.testing.assert_allclose(names[result], expected, rtol=1e-5, atol=1e-6)
    assert len(names["times"]) == 3
    assert names["benchmark"].mean > 0
    assert len(names["benchmark"].results) == 2
