"""GraphModule: inputs by name and position, outputs, what it refuses."""

import numpy as np
import pytest
import tvm

from tests.oracle import node_model
from tvm_ext import errors, relay
from tvm_ext.relay.graph_executor import GraphModule

CPU = tvm.cpu()


def subtract(symbolic=False):
    model = node_model("Sub", [np.zeros((2, 3), "float32")] * 2, symbolic=symbolic)
    mod, params = relay.frontend.from_onnx(model)
    return GraphModule(relay.build(mod, target="llvm", params=params)["default"](CPU))


@pytest.fixture(scope="module")
def module():
    return subtract()


def test_inputs_by_name_position_and_keyword(module):
    one = np.ones((2, 3), "float32")
    module.set_input("x0", 5 * one)
    module.set_input(1, relay.nd.array(2 * one))
    module.run()
    assert (module.get_output(0).numpy() == 3).all()
    module.set_input(x0=tvm.runtime.tensor(one), x1=-one)
    module["run"]()
    assert (module.get_output(0).numpy() == 2).all()
    module.run(x1=one)
    assert (module.get_output(0).numpy() == 0).all()
    assert (module.get_input("x0").numpy() == 1).all()
    assert module.get_input_index("x1") == 1
    assert module.get_input_index("nix") == -1


def test_values_are_cast_to_the_dtype_of_the_input(module):
    module.set_input("x0", np.full((2, 3), 4.5))
    module.set_input("x1", [[1, 2, 3], [4, 5, 6]])
    module.run()
    out = relay.nd.empty((2, 3))
    assert module.get_output(0, out) is out
    assert out.dtype == "float32"
    np.testing.assert_array_equal(out.numpy(), [[3.5, 2.5, 1.5], [0.5, -0.5, -1.5]])


def test_a_later_change_of_the_array_changes_nothing(module):
    values = np.ones((2, 3), "float32")
    module.set_input("x0", values)
    module.set_input("x1", values)
    values[:] = 9
    module.run()
    result = module.get_output(0)
    module.run(x0=values)
    assert (result.numpy() == 0).all()


def test_the_counts_and_types_are_told(module):
    assert (module.get_num_inputs(), module.get_num_outputs()) == (2, 1)
    shapes, dtypes = module.get_input_info()
    assert shapes == {"x0": (2, 3), "x1": (2, 3)}
    assert dtypes == {"x0": "float32", "x1": "float32"}


def test_symbolic_shapes_take_what_comes():
    module = subtract(symbolic=True)
    with pytest.raises(errors.InputError, match="missing"):
        module.run()
    for rows in 1, 4:
        module.run(x0=np.ones((rows, 3)), x1=np.zeros((rows, 3)))
        assert module.get_output(0).shape == (rows, 3)


def test_wrong_use_is_refused(module):
    fresh = subtract()
    for wrong in (
        lambda: fresh.get_output(0),
        lambda: module.set_input("nix", 0),
        lambda: module.set_input(2, 0),
        lambda: module.set_input(nix=0),
        lambda: module.set_input("x0", np.zeros((3, 3))),
        lambda: (module.run(), module.get_output(1)),
    ):
        with pytest.raises(errors.InputError):
            wrong()
    with pytest.raises(AttributeError):
        module["nonsense"]


def test_the_device_must_be_that_of_the_build():
    mod, _ = relay.frontend.from_onnx(node_model("Neg", [np.zeros(3, "float32")]))
    lib = relay.build(mod, target="llvm")
    with pytest.raises(errors.TargetError, match="not for cuda"):
        lib["default"](tvm.cuda(0))
    with pytest.raises(AttributeError, match="default"):
        lib["other"]
