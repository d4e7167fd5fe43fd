"""TVM's importer with our converters: what it lacks, what it computes badly, and back again."""

import os
import threading

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import relax, te, tirx
from tvm.relax.frontend.onnx import from_onnx, onnx_frontend
from tvm_ext.patches.tvm_onnx import WRONG, converters_in_tvm

from tests.oracle import node_model, reference
from tests.patches import upstream_suite
from tvm_ext.extend import operator, plugin

RANDOM = np.random.default_rng(0)


def compiled(module):
    module = relax.transform.DecomposeOpsForInference()(module)
    vm = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())

    def call(*arrays):
        result = vm["main"](*(tvm.runtime.tensor(array) for array in arrays))
        return result.numpy() if isinstance(result, tvm.runtime.Tensor) else result[0].numpy()

    return call


def run(model, feeds):
    return compiled(from_onnx(model))(*feeds.values())


def normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


LACKING = {
    "LSTM": ([normal(3, 1, 2), normal(1, 16, 2), normal(1, 16, 4)], {"hidden_size": 4}, 22, 1),
    "GRU": ([normal(3, 1, 2), normal(1, 12, 2), normal(1, 12, 4)], {"hidden_size": 4}, 22, 1),
    "Col2Im": ([normal(1, 5, 5), np.array([5, 5]), np.array([1, 5])], {}, 18, 1),
    "DFT": ([normal(1, 7, 1)], {"axis": 1}, 17, 1),
    "Swish": ([normal(3, 5)], {"alpha": 1.5}, 24, 1),
    "Det": ([normal(2, 3, 3)], {}, 22, 1),
}


@pytest.mark.parametrize("op_type", LACKING)
def test_operators_that_tvm_lacks(op_type):
    arrays, attributes, opset, outputs = LACKING[op_type]
    constants = (1, 2) if op_type == "Col2Im" else ()  # sizes that TVM must know
    model = node_model(
        op_type, arrays, attributes, opset=opset, outputs=outputs, constants=constants
    )
    feeds = {value.name: array for value, array in zip(model.graph.input, arrays, strict=False)}
    with pytest.raises(tvm.error.OpNotImplemented):
        from_onnx(model)
    with converters_in_tvm():
        got = run(model, feeds)
    np.testing.assert_allclose(got, reference(model, feeds)[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(tvm.error.OpNotImplemented):
        from_onnx(model)


def test_instance_norm_of_float16():
    x = (normal(2, 3, 32, 32) + 100).astype("float16")
    scale, bias = normal(2, 3).astype("float16")
    model = node_model("InstanceNormalization", [x, scale, bias], opset=17)
    feeds = {"x0": x, "x1": scale, "x2": bias}
    expected = reference(model, feeds)[0]
    assert not np.isfinite(run(model, feeds)).all(), "the patch is needed no more"
    with converters_in_tvm():
        np.testing.assert_allclose(run(model, feeds), expected, rtol=2e-3, atol=2e-3)
    assert not np.isfinite(run(model, feeds)).all()


def test_the_count_over_the_official_suite_tells_crashes_and_wrong_results():
    def case(assertion):
        def run(_):
            from_onnx(node_model("Swish", [normal(2)], opset=24))
            assert assertion

        return run

    assert upstream_suite.outcome(case(True), patched=True) == "passes"
    assert upstream_suite.outcome(case(True), patched=False).startswith("OpNotImplemented")
    assert upstream_suite.outcome(case(False), patched=True).startswith("wrong: AssertionError")
    assert upstream_suite.outcome(lambda _: os._exit(1), patched=True) == "crash"


def test_several_outputs():
    x, scale = normal(3, 5), np.ones(5, "float32")
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


SYMBOLIC = """<ir_version: 10, opset_import: ["" : 24]>
  g (float[n, 6] x) => (float[m, 3] y) {
    wave = Swish (x)
    shape = Shape (wave)
    zero = Constant <value_ints = [0]> ()
    n = Gather <axis = 0> (shape, zero)
    two = Constant <value_ints = [2]> ()
    rows = Mul (n, two)
    three = Constant <value_ints = [3]> ()
    wanted = Concat <axis = 0> (rows, three)
    y = Reshape (wave, wanted)
  }"""


@pytest.mark.parametrize("shape_dict", [None, {"x": [tirx.Var("rows", "int64"), 6]}])
def test_symbolic_shapes(shape_dict):
    model = onnx.parser.parse_model(SYMBOLIC)
    with converters_in_tvm():
        call = compiled(from_onnx(model, shape_dict))
    for rows in 1, 5:
        x = normal(rows, 6)
        np.testing.assert_allclose(
            call(x), (x / (1 + np.exp(-x))).reshape(2 * rows, 3), rtol=1e-5, atol=1e-6
        )


def test_parameters_that_stay_inputs():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 24]>
      g (float[2, 6] x) => (float[2, 1, 6] y) <int64[1] axes = {1}> {
        a = Swish (x)
        b = Mul (a, weight)
        y = Unsqueeze (b, axes)
      }""")
    weight = normal(6)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    with converters_in_tvm("Unsqueeze"):
        module = from_onnx(model, keep_params_in_input=True)
    params = [p.numpy() for p in module["main"].attrs["params"]]
    x = normal(2, 6)
    got = compiled(module)(x, *params)
    np.testing.assert_allclose(got[:, 0], x / (1 + np.exp(-x)) * weight, rtol=1e-5, atol=1e-6)


def test_the_opset_given_to_the_importer_decides():
    model = node_model("Swish", [normal(2, 2)], opset=24)
    with converters_in_tvm():
        assert from_onnx(model, opset=25)
        with pytest.raises(NotImplementedError, match="Swish in opset 23"):
            from_onnx(model, opset=23)


def test_operators_of_plugins_and_of_other_domains():
    """TVM has no place for domains: it would take a foreign Relu for its own."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "com.acme" : 1]>
      g (float[2, 3] x) => (float[2, 3] y) {
        a = com.acme.Relu <slope = 0.25> (x)
        y = com.microsoft.QuickGelu <alpha = 2.0> (a)
      }""")
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    x = normal(2, 3)

    @operator("Relu", domain="com.acme")
    def leaky(bb, x, *, slope=0.5):
        def compute(a):
            zero = tirx.const(0, "float32")
            return te.compute(a.shape, lambda *i: te.max(a(*i), zero) + slope * te.min(a(*i), zero))

        return bb.emit_te(compute, x)

    try:
        with converters_in_tvm():
            got = run(model, {"x": x})
    finally:
        leaky.undo.close()
        plugin.INTERACTIVE.operators.remove(leaky)
    a = np.where(x > 0, x, 0.25 * x)
    np.testing.assert_allclose(got, a / (1 + np.exp(-2 * a)), rtol=1e-5, atol=1e-6)
    with pytest.raises(tvm.error.OpNotImplemented):
        from_onnx(model)


def test_operators_declared_within_the_context():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "com.acme" : 1]>
      g (float[2] x) => (float[2] y) { y = com.acme.Twice (x) }""")
    x = normal(2)
    with converters_in_tvm():
        with pytest.raises(tvm.error.OpNotImplemented):
            from_onnx(model)

        @operator("Twice", domain="com.acme")
        def twice(bb, x):
            return relax.op.add(x, x)

        try:
            np.testing.assert_array_equal(run(model, {"x": x}), 2 * x)
        finally:
            twice.undo.close()
            plugin.INTERACTIVE.operators.remove(twice)
        with pytest.raises(tvm.error.OpNotImplemented):
            from_onnx(model)


def test_an_operator_that_we_do_not_convert():
    with pytest.raises(ValueError, match="Nonsense"), converters_in_tvm("Nonsense"):
        pass
    with converters_in_tvm(*WRONG):
        pass


def test_what_is_replaced_is_put_back():
    importer = onnx_frontend.ONNXGraphImporter

    def state():
        return onnx_frontend._get_convert_map, importer.from_onnx

    before = state()
    with pytest.raises(RuntimeError, match="mine"), converters_in_tvm():
        raise RuntimeError("mine")
    assert state() == before
    outer, inner = converters_in_tvm("Relu"), converters_in_tvm("Tanh")
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    table = onnx_frontend._get_convert_map()
    assert (table["Relu"].prefer_ours, table["Tanh"].prefer_ours) == (False, True)
    inner.__exit__(None, None, None)
    assert state() == before
    thread = threading.Thread(target=converters_in_tvm()(lambda: seen.append(state())))
    seen = []
    thread.start()
    thread.join()
    assert seen[0] != before
    assert state() == before
