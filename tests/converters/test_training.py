"""The optimisers; oracle: the formulas of the specification in float64, onnx.reference."""

import numpy as np
import pytest

from tests.oracle import check_node, node_model
from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError

RNG = np.random.default_rng(0)
DOMAIN = "ai.onnx.preview.training"
RATE = np.array(0.1, "float32")


def tensors(kinds, *shapes):
    data = (RNG.normal(size=shape).astype("float32") for _ in range(kinds) for shape in shapes)
    return [abs(array) for array in data]


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize(
    "op_type, kinds, attributes",
    [
        ("Momentum", 3, {"alpha": 0.9, "beta": 0.5, "mode": "standard", "norm_coefficient": 0.1}),
        ("Momentum", 3, {"alpha": 0.9, "beta": 0.5, "mode": "nesterov", "norm_coefficient": 0.1}),
        ("Adagrad", 3, {"decay_factor": 0.1, "epsilon": 1e-3, "norm_coefficient": 0.2}),
        ("Adam", 4, {"alpha": 0.8, "beta": 0.9, "epsilon": 1e-3, "norm_coefficient": 0.2,
                     "norm_coefficient_post": 0.1}),
    ],
)  # fmt: skip
def test_two_tensors_at_once(op_type, kinds, attributes, count):
    inputs = [RATE, np.array(count), *tensors(kinds, (3, 5), (1,))]
    check_node(op_type, inputs, attributes, domain=DOMAIN, opset=1, outputs=2 * (kinds - 1))


def test_gradient_is_refused_with_a_reason():
    model = node_model("Gradient", tensors(1, (2,)), {"xs": ["x0"], "y": "x0"}, domain=DOMAIN,
                       opset=1)  # fmt: skip
    with pytest.raises(ConversionError, match="differentiates a graph at run time"):
        convert_and_build(model, "llvm")
