"""LinearAttention; oracle: onnx.reference in float64, which runs the function of the operator."""

import numpy as np
import pytest

from tests.oracle import check_node, node_model
from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError, InputError

RNG = np.random.default_rng(0)
B, T, DK, DV = 2, 5, 8, 6


def data(*shape):
    return RNG.normal(size=shape).astype("float32")


def operands(rule, heads, *, past=True, wide_decay=False, one_beta=False):
    """Of so many heads of queries, and of keys and values; keys of length 1."""
    queries, groups = heads
    k = data(B, T, groups, DK)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    decay = -abs(data(B, T, groups * (DK if wide_decay else 1)))
    return [
        data(B, T, queries * DK), k.reshape(B, T, -1), data(B, T, groups * DV),
        data(B, groups, DK, DV) if past else None,
        decay if "gated" in rule else None,
        abs(data(B, T, 1 if one_beta else groups)) if "delta" in rule else None,
    ]  # fmt: skip


def attributes(rule, heads, **more):
    return {"update_rule": rule, "q_num_heads": heads[0], "kv_num_heads": heads[1], **more}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    "rule, heads, options",
    [
        ("linear", (4, 2), {"past": False}),
        ("gated", (3, 3), {"wide_decay": True}),
        ("delta", (4, 1), {"one_beta": True}),
        ("gated_delta", (2, 2), {"one_beta": True}),
    ],
)
def test_rules(rule, heads, options, symbolic):
    inputs = operands(rule, heads, **options)
    check_node("LinearAttention", inputs, attributes(rule, heads), outputs=2, symbolic=symbolic,
               opt_levels=(3,), atol=1e-5)  # fmt: skip


def test_a_scale_of_its_own():
    inputs = operands("linear", (2, 1))
    check_node("LinearAttention", inputs, attributes("linear", (2, 1), scale=0.3), outputs=2,
               opt_levels=(0,), atol=1e-5)  # fmt: skip


def test_heads_that_do_not_fit_are_refused():
    inputs = operands("linear", (3, 2))
    with pytest.raises(ConversionError, match=r"LinearAttention.*\(3\) must be a multiple"):
        convert_and_build(node_model("LinearAttention", inputs, attributes("linear", (3, 2)),
                                     outputs=2))  # fmt: skip


def test_operands_of_another_length_are_refused_at_run_time():
    inputs = operands("linear", (1, 1), past=False)
    names = attributes("linear", (1, 1))
    model = convert_and_build(
        node_model("LinearAttention", inputs, names, outputs=2, symbolic=True)
    )
    q, k, v = inputs[:3]
    with pytest.raises(InputError):
        model(q, k[:, :-1].copy(), v)
