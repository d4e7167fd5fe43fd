"""Scripts of the Relay era as their tutorials had them; only the import lines were changed."""

import numpy as np
import onnx
import pytest

from tests.oracle import reference
from tests.relay.test_deployment_script import small_network
from tvm_ext import errors

DATA = np.random.default_rng(4).normal(size=(2, 6)).astype("float32")

IMPORTS = """
import numpy as np
import onnx
from tvm_ext import relay
from tvm_ext.relay import tvm
"""

LOAD = """
mod, params = relay.frontend.from_onnx(onnx.load(model_path), {"data": img_data.shape})
"""

BUILD = """
with tvm.transform.PassContext(opt_level=3):
    lib = relay.build(mod, target="llvm", params=params)
"""

SCRIPTS = {
    "three parts": """
from tvm_ext.relay.tvm.contrib import graph_runtime, utils

mod, params = relay.frontend.from_onnx(
    onnx.load(model_path), {"data": img_data.shape}, freeze_params=False
)
with tvm.transform.PassContext(opt_level=3):
    graph, lib, params = relay.build(mod, tvm.target.create("llvm"), params=params)
temp = utils.tempdir()
path_lib = temp.relpath("deploy_lib.so")
lib.export_library(path_lib)
with open(temp.relpath("deploy_graph.json"), "w") as fo:
    fo.write(graph)
with open(temp.relpath("deploy_param.params"), "wb") as fo:
    fo.write(relay.save_param_dict(params))
loaded_json = open(temp.relpath("deploy_graph.json")).read()
loaded_lib = tvm.runtime.load_module(path_lib)
loaded_params = bytearray(open(temp.relpath("deploy_param.params"), "rb").read())
ctx = tvm.context("llvm", 0)
module = graph_runtime.create(loaded_json, loaded_lib, ctx)
module.load_params(loaded_params)
module.set_input(**params)
module.run(data=tvm.nd.array(img_data, ctx))
result = module.get_output(0).asnumpy()
""",
    "debugger": f"""
from tvm_ext.relay.tvm.contrib.debugger import debug_executor
from tvm_ext.relay.tvm.contrib.debugger.debug_executor import GraphModuleDebug
{LOAD + BUILD}
dev = tvm.cpu(0)
m = debug_executor.create(lib.get_graph_json(), lib.get_lib(), dev, dump_root="tvmdbg")
m.set_input("data", tvm.nd.array(img_data))
m.run()
result = m.get_output(0).numpy()
m = GraphModuleDebug(lib["debug_create"]("default", dev), [dev], lib.get_graph_json(), "tvmdbg")
assert "Gemm" in str(m.profile(data=img_data))
""",
    "virtual machine": """
from tvm_ext.relay.tvm.runtime.vm import VirtualMachine

mod, params = relay.frontend.from_onnx(onnx.load(model_path), {"data": (relay.Any(), 6)})
dev = tvm.cpu()
with tvm.transform.PassContext(opt_level=3, disabled_pass={"AlterOpLayout"}):
    vm_exec = relay.vm.compile(mod, target="llvm", params=params)
vm = VirtualMachine(vm_exec, dev)
for rows in 1, 3:
    assert vm.run(np.ones((rows, 6), "float32")).shape == (rows, 4)
vm.set_input("main", **{"data": img_data})
vm.invoke_stateful("main")
result = vm.get_outputs()[0].numpy()
assert (vm.invoke("main", tvm.nd.array(img_data)).numpy() == result).all()
assert vm.benchmark(dev, img_data, repeat=2, number=1).mean > 0
""",
    "passes": f"""
from tvm_ext.relay import graph_executor
from tvm_ext.relay.transform import DynamicToStatic, InferType
{LOAD}
mod = InferType()(mod)
seq = tvm.transform.Sequential([
    relay.transform.RemoveUnusedFunctions(),
    DynamicToStatic(),
    relay.transform.ConvertLayout({{"nn.conv2d": ["NHWC", "default"]}}),
])
configs = {{"relay.FuseOps.max_depth": 30, "tir.disable_vectorize": False}}
with tvm.transform.PassContext(opt_level=3, required_pass=["FastMath"], config=configs):
    mod = seq(mod)
    lib = relay.build(
        mod,
        target=tvm.target.Target("llvm -mcpu=x86-64", host="llvm"),
        executor=relay.backend.Executor("graph"),
        runtime=relay.backend.Runtime("cpp"),
        params=params,
    )
print(mod.astext(show_meta_data=False), mod["main"])
m = graph_executor.GraphModule(lib["default"](tvm.device(str(lib.target), 0)))
m.set_input("data", img_data)
m.run()
result = m.get_output(0).numpy()
""",
    "executors": f"""
{LOAD}
results = [
    relay.create_executor(kind, mod=mod, device=tvm.cpu(), target="llvm", params=params)
    .evaluate()(img_data, **params).numpy()
    for kind in ["graph", "vm", "aot"]
]
assert all((result == results[0]).all() for result in results)
result = results[0]
""",
}

REMOVED = {
    "from tvm_ext.relay.tvm import autotvm": "without tuning",
    "from tvm_ext.relay.tvm.autotvm.tuner import XGBTuner": "without tuning",
    "from tvm_ext.relay.tvm import auto_scheduler": "without tuning",
    "import tvm_ext.relay.tvm.meta_schedule as ms": "tvm.s_tir.meta_schedule",
    "tvm.autotvm.apply_history_best('log.json')": "without tuning",
    "tvm.transform.PassContext(config={'relay.backend.use_auto_scheduler': True})": "leave it out",
    "from tvm_ext.relay.tvm.driver import tvmc": "the command tvm-ext",
    "from tvm_ext.relay.tvm import rpc": "copy the file",
    "from tvm_ext.relay import quantize": "quantise the ONNX model",
    "from tvm_ext.relay.tvm.relay import testing": "examples",
    "relay.frontend.from_pytorch(None, [])": "export the model to ONNX",
    "relay.var('x', shape=(1, 3))": "tvm_ext.extend",
    "relay.transform.ToMixedPrecision('float16')(None)": "float16",
    "relay.backend.Executor('aot', {'unpacked-api': True})": "leave it out",
    "relay.backend.Runtime('crt')": "leave it out",
    "relay.vm.Executable.load_exec(b'', None)": "load_module",
    "tvm.te.create_schedule([])": "create_schedule",
}


def run(script, path):
    names = {"model_path": path, "img_data": DATA}
    exec(IMPORTS + script, names)
    return names


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_and_is_right(name, tmp_path):
    model = small_network(tmp_path / "model.onnx")
    result = run(SCRIPTS[name], tmp_path / "model.onnx")["result"]
    np.testing.assert_allclose(result, reference(model, {"data": DATA})[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("line", REMOVED)
def test_what_is_not_offered_says_what_to_use(line, tmp_path):
    with pytest.raises((errors.TvmExtError, AttributeError), match=REMOVED[line]):
        run(line, tmp_path)


def test_modules_below_are_those_of_tvm():
    names = run(
        "import tvm\nimport tvm_ext.relay.tvm.topi.nn as ours\nimport tvm.topi.nn as theirs", None
    )
    assert names["ours"] is names["theirs"]
    with pytest.raises(ModuleNotFoundError, match="no module"):
        run("import tvm_ext.relay.tvm.cpu", None)
    assert not hasattr(run("", None)["tvm"], "autotvm")


def test_a_quantised_model(tmp_path):
    """QuantizeLinear and DequantizeLinear around a product, as quantisers write them."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
      quantised (float[n, 6] data) => (float[n, 4] out)
      <float scale = {0.02}, int8 zero = {3}> {
        q = QuantizeLinear (data, scale, zero)
        d = DequantizeLinear (q, scale, zero)
        w = DequantizeLinear (weight, scale, zero)
        p = Gemm <transB = 1> (d, w)
        r = QuantizeLinear (p, scale, zero)
        out = DequantizeLinear (r, scale, zero)
      }"""
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(5).integers(-100, 100, (4, 6)).astype("int8")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    onnx.save(model, tmp_path / "model.onnx")
    script = SCRIPTS["executors"]
    result = run(script, tmp_path / "model.onnx")["result"]
    (expected,) = reference(model, {"data": DATA})
    assert np.abs(result - expected).max() <= 0.0201  # one step of the quantiser
