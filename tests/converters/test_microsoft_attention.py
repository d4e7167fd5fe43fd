"""Attention in com.microsoft; oracle: onnxruntime."""

import numpy as np
import pytest

from tests.onnxruntime_oracle import check_against_onnxruntime, contrib_model, run_onnxruntime
from tvm_ext import convert_and_build

RNG = np.random.default_rng(0)
B, S, T, N, G, H = 2, 3, 5, 4, 2, 16


def data(*shape):
    return np.asarray(RNG.normal(size=shape), "float32")


def check(*args, **options):
    check_against_onnxruntime(*args, rtol=1e-4, atol=1e-5, **options)


def some(*shape):
    """Random zeros and ones, a one in each row."""
    return np.maximum(RNG.integers(0, 2, shape), np.arange(shape[-1]) == 0).astype("int32")


MASKS = {
    "none": lambda keys: None,
    "lengths": lambda keys: np.array([keys, 1], "int32"),
    "spans": lambda keys: np.array([keys, 2, 1, 0], "int32"),
    "keys": lambda keys: some(B, keys),
    "pairs": lambda keys: some(B, S, keys),
}


@pytest.mark.parametrize("mask, causal", [(mask, k % 2) for k, mask in enumerate(sorted(MASKS))])
def test_attention(mask, causal):
    operands = [data(B, S, 10), data(10, 3 * N * H), data(3 * N * H), MASKS[mask](S)]
    check("Attention", operands, {"num_heads": N, "unidirectional": causal})


def test_attention_with_past_and_bias():
    operands = [data(B, S, 10), data(10, 3 * N * H), data(3 * N * H), None]
    attributes = {"num_heads": N, "unidirectional": 1, "scale": 0.3}
    check("Attention", [*operands, data(2, B, N, 4, H)], attributes, outputs=2)
    check("Attention", [*operands, None, data(1, N, S, S)], attributes)


def test_attention_of_values_of_another_size():
    widths = [N * H, N * H, N * 3]
    check("Attention", [data(B, S, 10), data(10, sum(widths)), data(sum(widths))],
          {"num_heads": N, "qkv_hidden_sizes": widths})  # fmt: skip


@pytest.mark.parametrize("mask", ["none", "lengths", "keys", "pairs"])
def test_multi_head_attention(mask):
    operands = [data(B, S, N * H), data(B, T, N * H), data(B, T, N * H), data(3 * N * H),
                MASKS[mask](T), data(B, N, S, T)]  # fmt: skip
    check("MultiHeadAttention", operands, {"num_heads": N})


def test_multi_head_attention_of_a_batch_that_the_mask_tells():
    """A mask of two lengths, in a model that leaves the batch open."""
    operands = [data(B, S, N * H), data(B, T, N * H), data(B, T, N * H), None,
                MASKS["lengths"](T)]  # fmt: skip
    check("MultiHeadAttention", operands, {"num_heads": N}, constants=(4,), symbolic=(B,))


@pytest.mark.parametrize(
    "size, symbolic", [(3, (N * H,)), (3, (N * 3,)), (3, (N * 35,)), (H, True)], ids=str
)
def test_multi_head_attention_of_unknown_widths(size, symbolic):
    """The bias, where it is a constant, says what they are."""
    operands = [data(B, S, N * H), data(B, T, N * H), data(B, T, N * size),
                data(N * (2 * H + size))]  # fmt: skip
    constants = () if symbolic == (N * 35,) else (3,)
    check("MultiHeadAttention", operands, {"num_heads": N}, constants=constants, symbolic=symbolic)


def test_multi_head_attention_of_packed_operands():
    """onnxruntime has no kernel for them: it is given the parts."""
    first, rest, attributes = data(B, S, N, 1, H), data(B, S, N, 2, H), {"num_heads": N}
    packed = np.concatenate([first, rest], 3)
    parts = [packed[:, :, :, k].reshape(B, S, N * H) for k in range(3)]
    expected = run_onnxruntime(contrib_model("MultiHeadAttention", parts, attributes),
                               {f"x{k}": part for k, part in enumerate(parts)})  # fmt: skip
    check("MultiHeadAttention", [packed], attributes, expected=expected)
    check("MultiHeadAttention", [parts[0], rest], attributes, expected=expected)


def test_multi_head_attention_of_heads_apart():
    check("MultiHeadAttention", [data(B, S, N * H), data(B, N, T, H), data(B, N, T, H)],
          {"num_heads": N})  # fmt: skip


@pytest.mark.parametrize("symbolic", [(), (B, S, 6)])
def test_multi_head_attention_with_past(symbolic):
    operands = [data(B, S, N * H), data(B, S, N * H), data(B, S, N * H), None, None, None,
                data(B, N, 6, H), data(B, N, 6, H)]  # fmt: skip
    check("MultiHeadAttention", operands, {"num_heads": N, "unidirectional": 1}, outputs=3,
          symbolic=symbolic)  # fmt: skip


def group_query(new, before, lengths, total, **more):
    """Operands of GroupQueryAttention; ``before`` keys are in the cache."""
    rotary = [data(16, H // 2), data(16, H // 2)] if more.get("do_rotary") else []
    batch = len(lengths)
    return [data(batch, new, N * H), data(batch, new, G * H), data(batch, new, G * H),
            data(batch, G, before, H), data(batch, G, before, H), np.array(lengths, "int32"),
            np.array([total], "int32"), *rotary]  # fmt: skip


@pytest.mark.parametrize(
    "run_time, attributes",
    [
        (False, {}),
        (True, {"do_rotary": 1}),
        (False, {"do_rotary": 1, "rotary_interleaved": 1, "scale": 0.2}),
        (True, {"local_window_size": 3}),
        (False, {"softcap": 2.0}),
        (True, {"smooth_softmax": 1}),
    ],
)
def test_group_query_attention_decodes(run_time, attributes):
    operands = group_query(1, 6, [6, 3], 7, **attributes)
    constants = () if run_time else (6,)
    check("GroupQueryAttention", operands, {"num_heads": N, "kv_num_heads": G} | attributes,
          outputs=3, constants=constants)  # fmt: skip


def test_group_query_attention_of_a_prompt():
    """Queries that are padding have no meaning."""
    attributes = {"num_heads": N, "kv_num_heads": G, "do_rotary": 1}
    operands = group_query(5, 0, [4, 2], 5, **attributes)
    operands[3:5] = None, None
    model = contrib_model("GroupQueryAttention", operands, attributes, outputs=3)
    feeds = {f"x{k}": value for k, value in enumerate(operands) if value is not None}
    expected = run_onnxruntime(model, feeds)
    for info, array in zip(model.graph.output, expected, strict=True):
        info.type.tensor_type.shape.SetInParent()
        for _ in range(array.ndim):
            info.type.tensor_type.shape.dim.add()
    results = convert_and_build(model, "llvm").run(None, feeds)
    for got, want, axis in zip(results, expected, (0, 1, 1), strict=True):
        assert got.shape == want.shape
        for b, length in enumerate((5, 3)):
            valid = (np.arange(length), got[b].ndim - 2 if axis else 0)
            np.testing.assert_allclose(got[b].take(*valid), want[b].take(*valid), rtol=1e-4,
                                       atol=1e-5)  # fmt: skip


def test_group_query_attention_of_packed_operands():
    _, _, _, *others = group_query(1, 6, [6, 3], 7)
    operands = [data(B, 1, (N + 2 * G) * H), None, None, *others]
    check("GroupQueryAttention", operands, {"num_heads": N, "kv_num_heads": G}, outputs=3)


@pytest.mark.parametrize("shape", [(B, S, N * H), (B, N, S, H)])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("start", [False, True])
def test_rotary_embedding(shape, interleaved, start):
    positions = np.array([2]) if start else RNG.integers(0, 9, (B, S))
    check("RotaryEmbedding", [data(*shape), positions, data(9, H // 2), data(9, H // 2)],
          {"interleaved": interleaved})  # fmt: skip
