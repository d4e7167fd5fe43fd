"""relay.frontend and relay.build: parameters, targets, the pass context."""

import numpy as np
import onnx
import pytest
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassContext
from tvm.target import Target

from tests.oracle import node_model, reference
from tests.relay.test_deployment_script import small_network
from tvm_ext import errors, relay
from tvm_ext.relay.graph_executor import GraphModule
from tvm_ext.relay.target import parse
from tvm_ext.relay.tvm import device

DATA = np.random.default_rng(2).normal(size=(3, 6)).astype("float32")


@pytest.fixture
def model(tmp_path):
    return small_network(tmp_path / "model.onnx")


def output(lib, **inputs):
    module = GraphModule(lib["default"](device("llvm")))
    module.run(**inputs)
    return module.get_output(0).numpy()


@pytest.mark.parametrize("opt_level", [0, 1, 2, 3, 4])
def test_every_opt_level_gives_the_same_answer(model, opt_level):
    mod, params = relay.frontend.from_onnx(model, {"data": DATA.shape})
    with PassContext(opt_level=opt_level):
        lib = relay.build(mod, target="llvm", params=params)
    np.testing.assert_allclose(
        output(lib, data=DATA), reference(model, {"data": DATA})[0], rtol=1e-5, atol=1e-6
    )


def test_parameters_become_inputs_when_not_frozen(model):
    mod, params = relay.frontend.from_onnx(model, {"data": DATA.shape}, freeze_params=False)
    assert sorted(params) == ["bias", "weight"]
    expected = reference(model, {"data": DATA})[0]
    given = relay.build(mod, target="llvm")
    bound = relay.build(mod, target="llvm", params=params)
    assert GraphModule(given["default"](device("cpu"))).get_num_inputs() == 3
    assert GraphModule(bound["default"](device("cpu"))).get_num_inputs() == 1
    for lib in given, bound:  # setting bound parameters again changes nothing, as in Relay
        np.testing.assert_allclose(output(lib, data=DATA, **params), expected, rtol=1e-5, atol=1e-6)


def test_bound_parameters_have_the_values_given(model):
    mod, params = relay.frontend.from_onnx(model, {"data": DATA.shape}, freeze_params=False)
    params["weight"][:] = 0
    params["bias"][:] = 7
    assert (output(relay.build(mod, target="llvm", params=params), data=DATA) == 7).all()


def test_the_settings_of_the_pass_context_are_respected(model):
    seen = []

    @pass_instrument
    class Record:
        def run_before_pass(self, _module, info):
            seen.append(info.name)

    mod, _ = relay.frontend.from_onnx(model, {"data": DATA.shape})
    with PassContext(opt_level=3, instruments=[Record()], disabled_pass=["FuseOps"]):
        lib = relay.build(mod, target="llvm")
    assert "LegalizeOps" in seen
    assert "FuseOps" not in seen
    np.testing.assert_allclose(
        output(lib, data=DATA), reference(model, {"data": DATA})[0], rtol=1e-5, atol=1e-6
    )


def test_the_target_of_the_scope_is_used(model):
    mod, _ = relay.frontend.from_onnx(model, {"data": DATA.shape})
    with pytest.raises(errors.TargetError, match="no target"):
        relay.build(mod)
    with Target({"kind": "llvm", "mcpu": "x86-64"}):
        assert output(relay.build(mod), data=DATA).shape == (3, 4)


def test_targets_of_the_era_are_read():
    target = parse("llvm -mcpu=skylake-avx512 -mattr=+fma,+avx2 -num-cores=3")
    assert target.attrs["mcpu"] == "skylake-avx512"
    assert list(target.attrs["mattr"]) == ["+fma", "+avx2"]
    assert int(target.attrs["num-cores"]) == 3
    assert parse("cuda -arch=sm_90", "llvm -mcpu=x86-64").host.attrs["mcpu"] == "x86-64"
    for wrong in "llvm mcpu=x", "llvm -nonsense=1", "nonsense":
        with pytest.raises(errors.TargetError):
            parse(wrong)


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"shape": {"nix": (1, 6)}}, errors.ModelError),
        ({"shape": {"data": (1, 5)}}, errors.ModelError),
        ({"dtype": {"data": "float16"}}, errors.ModelError),
        ({"dtype": {"nix": "float32"}}, errors.ModelError),
    ],
)
def test_what_contradicts_the_model_is_refused(model, arguments, error):
    with pytest.raises(error):
        relay.frontend.from_onnx(model, **arguments)


def test_an_unknown_operator_is_refused_before_the_build(model):
    model.graph.node[1].op_type = "Zeta"
    model.graph.node[1].domain = "my.ops"
    model.opset_import.append(onnx.helper.make_opsetid("my.ops", 1))
    with pytest.raises(errors.ConversionError, match="Zeta"):
        relay.frontend.from_onnx(model)


def test_a_parameter_that_fits_nothing_is_refused(model):
    mod, _ = relay.frontend.from_onnx(model, {"data": DATA.shape})
    for params in (
        {"nix": relay.nd.array(DATA)},
        {"data": relay.nd.array(DATA[:2])},
        {"bias": relay.nd.array(np.zeros(4))},
    ):
        with pytest.raises(errors.InputError):
            relay.build(mod, target="llvm", params=params)


def test_the_opset_can_be_overridden():
    model = node_model("Squeeze", [np.zeros((1, 3), "float32")], {"axes": [0]}, opset=11)
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("", 11))
    mod, _ = relay.frontend.from_onnx(model, opset=1)
    assert mod.model.opset_imports[""] == 1


def test_an_executor_of_the_tutorial(model):
    mod, params = relay.frontend.from_onnx(model, {"data": DATA.shape})
    executor = relay.build_module.create_executor("graph", mod, device("cpu"), "llvm", params)
    expected = reference(model, {"data": DATA})[0]
    np.testing.assert_allclose(executor.evaluate()(DATA).numpy(), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(errors.OptionError, match="'interpreter'"):
        relay.create_executor("interpreter", mod)


def test_parameters_as_bytes(model):
    mod, params = relay.frontend.from_onnx(model, {"data": DATA.shape}, freeze_params=False)
    data = relay.save_param_dict(params)
    for name, value in relay.load_param_dict(bytes(data)).items():
        np.testing.assert_array_equal(value.numpy(), params[name].numpy())
    module = GraphModule(relay.build(mod, target={"cpu": "llvm"})["default"](device("cpu")))
    module.load_params(data)
    module.run(data=DATA)
    expected = reference(model, {"data": DATA})[0]
    np.testing.assert_allclose(module.get_output(0).numpy(), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(errors.InputError, match="no parameters"):
        relay.load_param_dict(b"nonsense")


def test_arguments_of_the_wrong_kind(model):
    for options, error in (
        ({"shape": [("data", (3, 6))]}, errors.OptionError),
        ({"opset": "x"}, errors.OptionError),
        ({"opset": 9999}, errors.ModelError),
    ):
        with pytest.raises(error):
            relay.frontend.from_onnx(model, **options)
    with pytest.raises(errors.OptionError, match="from_onnx"):
        relay.build(None, "llvm")
    mod, _ = relay.frontend.from_onnx(model, {"data": DATA.shape})
    module = GraphModule(relay.build(mod, target="llvm")["default"](device("cpu")))
    with pytest.raises(errors.InputError, match="'data' cannot be read"):
        module.set_input("data", "text")
