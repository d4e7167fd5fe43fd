"""Linear attention and causal convolution of com.microsoft; oracle: onnxruntime."""

from itertools import pairwise

import numpy as np
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state
from tvm_ext.frontend import load, unsupported

from tests.onnxruntime_oracle import (
    case,
    check_against_onnxruntime,
    check_together,
    contrib_model,
    operands,
)
from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError

RNG, data, _ = operands(11)
KERNELS = {kernel.op_name for kernel in state.get_all_opkernel_def()}
B, T, DK, DV = 2, 5, 8, 6


def attention(rule, heads=(4, 2, 2), *, past=True, wide_decay=False, one_beta=False, steps=T,
              **options):  # fmt: skip
    """``heads`` of queries, keys and values; keys of length 1, as the delta rule needs."""
    queries, keys, values = heads
    k = data(B, steps, keys, DK)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    decay = -abs(data(B, steps, values * (DK if wide_decay else 1)))
    inputs = [
        data(B, steps, queries * DK), k.reshape(B, steps, -1), data(B, steps, values * DV),
        data(B, values, DK, DV) if past else None,
        decay if "gated" in rule else None,
        abs(data(B, steps, 1 if one_beta else values)) if "delta" in rule else None,
    ]  # fmt: skip
    attributes = {"update_rule": rule, "q_num_heads": queries, "kv_num_heads": values}
    return case("LinearAttention", inputs, attributes, outputs=2, **options)


def test_linear_attention():
    check_together(
        attention("linear", past=False),
        attention("gated", wide_decay=True),
        attention("delta", one_beta=True),
        attention("gated_delta", (2, 1, 4)),
        attention("gated_delta", steps=1),
    )


def test_linear_attention_of_any_length():
    check_together(attention("gated_delta", symbolic=(B, T)))


def test_a_rule_without_its_operands_is_refused():
    model = contrib_model("LinearAttention", [data(1, 2, 8), data(1, 2, 8), data(1, 2, 8)],
                          {"q_num_heads": 1, "kv_num_heads": 1}, outputs=2)  # fmt: skip
    assert not unsupported(load(model))
    with pytest.raises(ConversionError, match="'gated_delta' without decay"):
        convert_and_build(model, "llvm")


def delta_net(q, k, v, ends, decay, beta, states, *, a_log=None, dt_bias=None, activation="none",
              squashed=False):  # fmt: skip
    """The recurrence of the documentation, in float64."""
    q, k, v, decay, beta, states = (x.astype("float64") for x in (q, k, v, decay, beta, states))
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    if activation == "softplus":
        decay = -np.exp(a_log) * np.log1p(np.exp(decay + dt_bias))
    elif activation == "sigmoid":
        decay = -5 * sigmoid(np.exp(a_log) * (decay + dt_bias))
    beta = sigmoid(beta) if squashed else beta
    y, last = np.zeros(v.shape), states.copy()
    group = v.shape[1] // q.shape[1]
    for b, (first, end) in enumerate(pairwise(ends)):
        for n in range(first, end):
            for h in range(v.shape[1]):
                state = last[b, h] * np.exp(decay[n, h])
                key = k[n, h // group]
                state = state + np.outer(beta[n, h] * (v[n, h] - state @ key), key)
                last[b, h], y[n, h] = state, state @ q[n, h // group] / np.sqrt(q.shape[-1])
    return y.astype("float32"), last.astype("float32")


def test_gated_delta_net():
    ends, rows, heads = np.array([0, 3, 4, 8], "int32"), 8, 4
    inputs = [data(rows, 2, DK), data(rows, 2, DK), data(rows, heads, DV), ends,
              -abs(data(rows, heads)), abs(data(rows, heads)), data(3, heads, DV, DK)]  # fmt: skip
    gates = [data(heads), data(heads)]
    plain = {"qk_l2_norm": 1, "update_rule": "gated_delta"}
    cases = [case("GatedDeltaNet", inputs, plain, outputs=2, expected=delta_net(*inputs))]
    for activation in "softplus", "sigmoid":
        expected = delta_net(*inputs, a_log=gates[0], dt_bias=gates[1], activation=activation,
                             squashed=True)  # fmt: skip
        more = {"gate_activation": activation, "beta_activation": "sigmoid"}
        cases.append(
            case("GatedDeltaNet", inputs + gates, plain | more, outputs=2, expected=expected)
        )
    check_together(*cases, atol=1e-4)


@pytest.mark.skipif("GatedDeltaNet" not in KERNELS, reason="this onnxruntime has no such kernel")
def test_gated_delta_net_is_that_of_onnxruntime():
    inputs = [data(B, T, 2, DK), data(B, T, 2, DK), data(B, T, 2, DV), None,
              -abs(data(B, T, 2, DK)), abs(data(B, T, 2)), data(B, 2, DV, DK)]  # fmt: skip
    check_against_onnxruntime("GatedDeltaNet", inputs, {"qk_l2_norm": 1}, outputs=2, rtol=1e-3,
                              atol=1e-4)  # fmt: skip


def test_causal_convolution():
    channels, length = 6, 7
    x, w, bias = data(B, channels, length), data(channels, 1, 3), data(channels)
    last, state = data(B, length, 2, 3), data(B, 2, 2, 3)
    check_together(
        case("CausalConvWithState", [x, w, bias, data(B, channels, 2)], {"activation": "silu"},
             outputs=2),
        case("CausalConvWithState", [x, w], {"dilation": 3}, outputs=2),
        case("CausalConvWithState", [last, w, bias, state], {"channels_last": 1}, outputs=2),
    )  # fmt: skip


def test_a_causal_convolution_with_a_state_of_another_layout_is_refused():
    """What the state means would be another thing, and for a square one nothing would tell."""
    inputs = [data(B, 2, 7), data(2, 1, 3), data(2), data(B, 2, 2)]
    model = contrib_model("CausalConvWithState", inputs, {"state_channels_last": 1}, outputs=2)
    with pytest.raises(ConversionError, match="state_channels_last 1 beside channels_last 0"):
        convert_and_build(model, "llvm")


def convolved(x, w, bias, state, offsets, dilation):
    """Sequence by sequence, in float64."""
    parts, states = [], []
    for b, (first, end) in enumerate(pairwise(offsets)):
        rows = np.concatenate([state[b].T, x[first:end]]).astype("float64")
        taps = [rows[k * dilation : k * dilation + end - first] * w[:, 0, k] for k in range(3)]
        parts.append(sum(taps) + bias)
        states.append(rows[len(rows) - state.shape[2] :].T)
    return [np.concatenate(parts).astype("float32"), np.array(states).astype("float32")]


def test_causal_convolution_of_sequences_behind_each_other():
    x, w, bias, offsets = data(9, 6), data(6, 1, 3), data(6), np.array([0, 3, 4, 9], "int32")
    state = data(3, 6, 4)
    check_together(
        case("VarlenCausalConvWithState", [x, w, offsets, bias, state], {"dilation": 2}, outputs=2,
             expected=convolved(x, w, bias, state, offsets, 2), symbolic=(9, 4, 3)),
    )  # fmt: skip
