"""precision="bf16": recurrent weights rounded to bfloat16, beside onnxruntime."""

import ml_dtypes
import numpy as np
import onnxruntime
import pytest

from tests.oracle import node_model
from tests.this_cpu import needs_bfloat16
from tvm_ext import convert_and_build

pytestmark = needs_bfloat16

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def rounded(array):
    return array.astype(ml_dtypes.bfloat16).astype(array.dtype)


def operands(op_type, directions, batch, hidden, peephole=False):
    """The inputs of a node: factors, and what stays as it is."""
    rng = np.random.default_rng(hidden)
    gates, channels = GATES[op_type] * hidden, 11
    x, w, r = (
        (rng.standard_normal(shape) / scale).astype("float32")
        for shape, scale in (
            ((7, batch, channels), 1),
            ((directions, gates, channels), 3),
            ((directions, gates, hidden), np.sqrt(hidden)),
        )
    )
    bias = rng.standard_normal((directions, 2 * gates), dtype="float32")
    state = rng.standard_normal((directions, batch, hidden), dtype="float32")
    others = [bias, None, state]
    if op_type == "LSTM":
        others.append(state[::-1].copy())
    if peephole:
        others.append(rng.standard_normal((directions, 3 * hidden), dtype="float32"))
    return [x, w, r], others


# 17 and 150 units fill no panel; 520 are more weights than a core keeps.
@pytest.mark.parametrize(
    ("op_type", "direction", "batch", "hidden", "attributes"),
    [
        ("LSTM", "bidirectional", 3, 17, {}),
        ("LSTM", "reverse", 1, 520, {"peephole": True}),
        ("GRU", "forward", 5, 150, {"linear_before_reset": 0}),
        ("GRU", "bidirectional", 2, 17, {"linear_before_reset": 1}),
        ("RNN", "forward", 1, 31, {}),
    ],
)
def test_only_the_factors_are_rounded(op_type, direction, batch, hidden, attributes):
    options = dict(attributes)
    directions = 2 if direction == "bidirectional" else 1
    inputs, others = operands(op_type, directions, batch, hidden, options.pop("peephole", False))
    options |= {"hidden_size": hidden, "direction": direction}
    constants = [k for k in range(1, 8) if k not in (4, 5, 6)]

    def model_of(factors):
        return node_model(op_type, [*factors, *others], options, constants=constants, opset=14)

    feeds = {"x0": inputs[0], "x5": others[2]} | ({"x6": others[3]} if op_type == "LSTM" else {})
    built = convert_and_build(model_of(inputs), "llvm", precision="bf16")
    assert "uint16" in built.sources()["schedule"]  # the weights
    (got,) = built.run(None, feeds)
    exact, wanted = (
        onnxruntime.InferenceSession(model_of(factors).SerializeToString()).run(
            None, feeds | {"x0": factors[0]}
        )[0]
        for factors in (inputs, [rounded(factor) for factor in inputs])
    )
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5)
    assert 2e-4 < abs(got - exact).max() < 2e-2  # the test sees roundings
