"""LSTM, GRU and RNN against onnxruntime, which reads every attribute."""

import numpy as np
import onnxruntime
import pytest
import torch

from tests.oracle import check_model, node_model
from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError, RunError

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def operands(op_type, *, time=5, batch=3, features=4, hidden=6, directions=1, seed=0,
             lengths=None, states=False, peephole=False, bias=True):  # fmt: skip
    rng = np.random.default_rng(seed)

    def data(*shape):
        return rng.uniform(-0.7, 0.7, shape).astype("float32")

    width = GATES[op_type] * hidden
    inputs = [
        data(time, batch, features),
        data(directions, width, features),
        data(directions, width, hidden),
        data(directions, 2 * width) if bias else None,
        None if lengths is None else np.array(lengths, "int32"),
        data(directions, batch, hidden) if states else None,
    ]
    if op_type == "LSTM":
        inputs.append(data(directions, batch, hidden) if states else None)
        inputs.append(data(directions, 3 * hidden) if peephole else None)
    return inputs


def check(op_type, inputs, attributes=None, *, opset=14, constants=(1, 2, 3), symbolic=False,
          opt_levels=(3,)):  # fmt: skip
    hidden = inputs[2].shape[2]
    model = node_model(op_type, inputs, {"hidden_size": hidden, **(attributes or {})},
                       opset=opset, outputs=3 if op_type == "LSTM" else 2, symbolic=symbolic,
                       constants=[k for k in constants if inputs[k] is not None])  # fmt: skip
    feeds = {f"x{k}": a for k, a in enumerate(inputs) if a is not None and k not in constants}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = session.run(None, feeds)
    check_model(model, feeds, expected=expected, atol=1e-5, opt_levels=opt_levels)


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_directions_with_states_and_lengths(op_type, direction):
    inputs = operands(op_type, directions=1 + (direction == "bidirectional"), states=True,
                      lengths=[5, 1, 3])  # fmt: skip
    check(op_type, inputs, {"direction": direction})


@pytest.mark.parametrize("op_type", GATES)
def test_weights_known_at_run_time_only(op_type):
    check(op_type, operands(op_type, directions=2), {"direction": "bidirectional"}, constants=(),
          opt_levels=(0, 3))  # fmt: skip


@pytest.mark.parametrize("op_type", GATES)
def test_one_of_everything_and_no_bias(op_type):
    check(op_type, operands(op_type, time=1, batch=1, features=1, hidden=1, bias=False))


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_symbolic_time_and_batch(op_type, batch):
    lengths = [7, 2, 5, 1, 6][:batch]
    inputs = operands(op_type, time=7, batch=batch, directions=2, lengths=lengths, states=True)
    check(op_type, inputs, {"direction": "bidirectional"}, symbolic=True)


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("batch, hidden", [(1, 1), (7, 17), (35, 5), (2, 67)])
def test_batches_and_hidden_sizes_that_fill_no_panel(op_type, batch, hidden):
    inputs = operands(op_type, batch=batch, hidden=hidden, directions=2, states=True)
    check(op_type, inputs, {"direction": "bidirectional"})


@pytest.mark.parametrize("op_type", GATES)
def test_layers_whose_panels_cores_share(op_type):
    hidden = {"LSTM": 200, "GRU": 230, "RNN": 390}[op_type]
    for batch, lengths in (1, None), (33, [5, 1, 2, 3, 4] * 6 + [2, 4, 3]):
        inputs = operands(op_type, batch=batch, hidden=hidden, features=3, lengths=lengths)
        inputs[2] /= np.sqrt(hidden, dtype="float32")  # larger ones amplify rounding errors
        check(op_type, inputs, {"direction": "reverse"})


@pytest.mark.parametrize("op_type", GATES)
def test_symbolic_weights(op_type):
    check(op_type, operands(op_type, states=True), constants=(), symbolic=True)


@pytest.mark.parametrize("dtype, atol", [("float16", 2e-3), ("float64", 1e-12)])
@pytest.mark.parametrize("op_type", GATES)
def test_other_types_against_torch(op_type, dtype, atol):
    inputs = [
        a if a is None else a.astype(dtype) for a in operands(op_type, hidden=19, states=True)
    ]
    attributes = {"hidden_size": 19} | ({"linear_before_reset": 1} if op_type == "GRU" else {})
    model = node_model(op_type, inputs, attributes, opset=14, constants=(1, 2, 3),
                       outputs=3 if op_type == "LSTM" else 2)  # fmt: skip
    feeds = {f"x{k}": a for k, a in enumerate(inputs) if a is not None and k not in (1, 2, 3)}
    expected = _torch(op_type, inputs)
    check_model(model, feeds, expected=expected, rtol=0, atol=atol, opt_levels=(0, 3))


def _torch(op_type, inputs):
    """The answers of torch in float64, whose gates stand in another order."""
    order = {"LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2], "RNN": [0]}[op_type]
    x, w, r, b, _, *states = (None if a is None else torch.tensor(a).double() for a in inputs)
    layer = getattr(torch.nn, op_type)(x.shape[2], r.shape[2]).double()

    def rows(array):
        return torch.cat([array.chunk(len(order))[k] for k in order])

    for parameter, value in zip(layer.parameters(), [w[0], r[0], *b[0].chunk(2)], strict=True):
        parameter.data = rows(value)
    states = [state for state in states if state is not None]
    y, last = layer(x, tuple(states) if op_type == "LSTM" else states[0])
    last = last if op_type == "LSTM" else [last]
    return [array.detach().numpy() for array in (y[:, None], *last)]


def test_directions_with_activations_of_their_own():
    attributes = {"direction": "bidirectional", "activations": ["Sigmoid", "Tanh", "Relu"] * 2}
    attributes["activations"][3:5] = ["HardSigmoid", "Softsign"]
    check("LSTM", operands("LSTM", directions=2), attributes)


def test_lstm_peepholes_clip_and_coupled_gates():
    inputs = operands("LSTM", peephole=True, states=True)
    check("LSTM", inputs, {"clip": 0.3})
    check("LSTM", inputs, {"input_forget": 1})


@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_gru_linear_before_reset(clip):
    inputs = operands("GRU", directions=2, states=True)
    attributes = {"linear_before_reset": 1, "direction": "bidirectional"}
    check("GRU", inputs, attributes | ({"clip": clip} if clip else {}))
    check("GRU", operands("GRU", bias=False), {"linear_before_reset": 1}, constants=())


@pytest.mark.parametrize(
    "activation, alpha, beta",
    [
        ("Affine", [0.5], [0.1]),
        ("Elu", [0.7], []),
        ("HardSigmoid", [0.3], [0.4]),
        ("LeakyRelu", [0.2], []),
        ("Relu", [], []),
        ("ScaledTanh", [1.5], [0.5]),
        ("Softplus", [], []),
        ("Softsign", [], []),
        ("ThresholdedRelu", [0.3], []),
    ],
)
def test_activations(activation, alpha, beta):
    attributes = {"activations": [activation]}
    attributes |= {"activation_alpha": alpha} if alpha else {}
    attributes |= {"activation_beta": beta} if beta else {}
    check("RNN", operands("RNN"), attributes)


def test_alpha_and_beta_go_to_the_activations_that_take_them():
    attributes = {"activations": ["Sigmoid", "LeakyRelu", "HardSigmoid"],
                  "activation_alpha": [0.3, 0.1], "activation_beta": [0.6]}  # fmt: skip
    check("LSTM", operands("LSTM"), attributes)


@pytest.mark.parametrize("op_type", GATES)
def test_batch_first_layout(op_type):
    """onnxruntime refuses layout 1: the answers of layout 0, transposed."""
    inputs = operands(op_type, states=True)
    outputs = 3 if op_type == "LSTM" else 2
    plain = node_model(op_type, inputs, {"hidden_size": 6}, opset=14, outputs=outputs)
    feeds = {f"x{k}": a for k, a in enumerate(inputs) if a is not None}
    y, *states = onnxruntime.InferenceSession(plain.SerializeToString()).run(None, feeds)
    for k in (0, 5, 6):
        if k < len(inputs) and inputs[k] is not None:
            inputs[k] = np.ascontiguousarray(inputs[k].swapaxes(0, 1))
    model = node_model(op_type, inputs, {"hidden_size": 6, "layout": 1}, opset=14,
                       outputs=outputs)  # fmt: skip
    feeds = {f"x{k}": a for k, a in enumerate(inputs) if a is not None}
    expected = [y.transpose(2, 0, 1, 3), *[state.swapaxes(0, 1) for state in states]]
    check_model(model, feeds, expected=expected, atol=1e-5)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("time, batch", [(0, 2), (3, 0)])
@pytest.mark.parametrize("op_type, gates", [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_no_steps_or_no_sequences(op_type, gates, time, batch, symbolic):
    """Nothing comes out of no steps, and the states stay as they were."""
    rng = np.random.default_rng(0)
    x, w, r, *states = (
        rng.standard_normal(shape, "float32")
        for shape in [
            (time, batch, 6),
            (1, gates * 5, 6),
            (1, gates * 5, 5),
            *[(1, batch, 5)] * (2 if op_type == "LSTM" else 1),
        ]
    )
    inputs = [x, w, r, None, None, *states]
    model = node_model(
        op_type, inputs, {"hidden_size": 5}, outputs=1 + len(states), symbolic=symbolic
    )
    feeds = {f"x{k}": array for k, array in enumerate(inputs) if array is not None}
    wanted = [np.zeros((time, 1, batch, 5), "float32"), *states]
    for level in (0, 3):
        results = convert_and_build(model, "llvm", opt_level=level).run(None, feeds)
        for result, expected in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(result), expected)


@pytest.mark.parametrize("place, shape", [(5, (3, 1, 6)), (4, (2,)), (3, (1, 30)), (2, (1, 18, 5))])
def test_operands_of_other_sizes_are_refused(place, shape):
    inputs = operands("GRU", time=3, batch=5, states=True, lengths=[1, 2, 3, 3, 3])
    inputs[place] = np.zeros(shape, inputs[place].dtype)
    model = node_model("GRU", inputs, {"hidden_size": 6}, opset=14, outputs=2)
    with pytest.raises(ConversionError, match="GRU-14 'node'"):
        convert_and_build(model)


def test_states_of_another_batch_end_the_run():
    inputs = operands("GRU", batch=5, states=True)
    inputs[5] = inputs[5][:, :1]
    model = node_model("GRU", inputs, {"hidden_size": 6}, opset=14, outputs=2)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "batch"
    built = convert_and_build(model)
    with pytest.raises(RunError, match="GRU-14"):
        built.run(None, {f"x{k}": x for k, x in enumerate(inputs) if x is not None})
