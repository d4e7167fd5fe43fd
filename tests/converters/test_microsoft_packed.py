"""Attention of com.microsoft without padding, over some keys, or that knows distances.

Oracle: onnxruntime, of padded operands or of one sequence at a time; numpy, torch.
"""

from math import log

import numpy as np
import onnxruntime
import pytest
import torch

from tests.onnxruntime_oracle import (
    case,
    check_against_onnxruntime,
    check_together,
    contrib_model,
    operands,
    run_onnxruntime,
)

RNG, data, _ = operands(12)
B, S, W, N = 3, 5, 6, 2
COUNTS, ENDS = np.array([2, 5, 1], "int32"), np.array([0, 2, 7, 8], "int32")
VALID = np.arange(S) < COUNTS[:, None]
NUMBERS = np.arange(B * S).reshape(B, S)
PLACES = np.concatenate([NUMBERS[VALID], NUMBERS[~VALID]]).reshape(B, S).astype("int32")


def onnxruntime_of(op_type, inputs, attributes):
    feeds = {f"x{k}": array for k, array in enumerate(inputs) if array is not None}
    return run_onnxruntime(contrib_model(op_type, inputs, attributes), feeds)[0]


@pytest.mark.parametrize("symbolic", [(), (B, S)])
def test_padding_goes_and_comes_back(symbolic):
    x = data(B, S, W)
    kinds = ["float32", "int32", "int32", "int32"]
    expected = [x[VALID], PLACES, ENDS, np.array([5], "int32")]
    check_together(
        case("RemovePadding", [x, COUNTS], outputs=4, types=kinds, expected=expected,
             symbolic=symbolic),
        case("RestorePadding", [x[VALID], PLACES], expected=[np.where(VALID[..., None], x, 0)],
             symbolic=(*symbolic, 8) if symbolic else ()),
    )  # fmt: skip


def test_packed_attention():
    x, weights, bias = data(B, S, W), data(W, 3 * W), data(3 * W)
    q, k, v = (data(B, S, W) for _ in range(3))
    one = onnxruntime_of("Attention", [x, weights, bias, COUNTS], {"num_heads": N})[VALID]
    other = onnxruntime_of("MultiHeadAttention", [q, k, v, bias, COUNTS], {"num_heads": N})[VALID]
    packed = np.stack([part[VALID].reshape(8, N, 3) for part in (q, k, v)], 2)
    check_together(
        case("PackedAttention", [x[VALID], weights, bias, PLACES, ENDS], {"num_heads": N},
             expected=[one]),
        case("PackedMultiHeadAttention", [packed, None, None, bias, PLACES, ENDS],
             {"num_heads": N}, expected=[other]),
    )  # fmt: skip
    inputs = [q[VALID], k[VALID], v[VALID], bias, PLACES, ENDS]
    check_against_onnxruntime("PackedMultiHeadAttention", inputs, {"num_heads": N}, rtol=1e-4,
                              atol=1e-5, expected=[other], symbolic=(8,))  # fmt: skip


def bucketed(table, queries, keys, furthest, both_ways):
    """As transformers' T5 has it, in torch; the table holds the rows of its transpose."""
    count, heads = table.shape
    distance = torch.arange(keys)[None] - torch.arange(queries)[:, None]
    start = torch.zeros_like(distance)
    if both_ways:
        count //= 2
        start = (distance > 0).long() * count
        distance = distance.abs()
    else:
        distance = -torch.min(distance, torch.zeros_like(distance))
    exact = count // 2
    grown = torch.log(distance.float() / exact) / log(furthest / exact) * (count - exact)
    grown = torch.clamp(exact + grown.long(), max=count - 1)
    bucket = start + torch.where(distance < exact, distance, grown)
    return table.reshape(heads, -1).T[bucket.numpy()].transpose(2, 0, 1)[None]


def gated(query, bias, positions, weight, gate_bias, eco):
    """The documented formula, in float64."""
    rows = (query.astype("float64") + bias).reshape(*query.shape[:2], N, -1).transpose(0, 2, 1, 3)
    gates = (rows @ weight + gate_bias).reshape(*rows.shape[:3], 2, -1).sum(-1)
    update, reset = np.split(1 / (1 + np.exp(-gates)), 2, -1)
    return ((update * (reset * eco - 1) + 2) * positions).astype("float32")


def test_positions():
    table, lengths = data(32, 2), [np.array([70]), np.array([150])]
    cases = [
        case("RelativePositionBias", [table, *lengths],
             {"max_distance": 128, "is_bidirectional": both},
             expected=[bucketed(table, 70, 150, 128, both)], constants=(1, 2) if both else ())
        for both in range(2)
    ]  # fmt: skip
    x = data(B, S, W)
    rest = [data(W), data(1, N, S, S), data(W // N, 8), data(8), data(1, N, 1, 1)]
    padded = np.where(VALID[..., None], x, 0)
    cases += [
        case("GatedRelativePositionBias", [x, *rest], {"num_heads": N},
             expected=[gated(x, *rest)]),
        case("GatedRelativePositionBias", [x[VALID], *rest, PLACES], {"num_heads": N},
             expected=[gated(padded, *rest)]),
    ]  # fmt: skip
    check_together(*cases)


def test_rotary_embedding_of_gemma():
    angles, parts = data(2, 5, 8), [data(2, 3, 5, 8).astype("float16") for _ in range(4)]
    sin, cos = (f(angles)[:, None].astype("float16").astype("float64") for f in (np.sin, np.cos))
    expected = [(x * cos + turned * sin).astype("float16")
                for x, turned in (parts[:2], parts[2:])]  # fmt: skip
    check_against_onnxruntime("GemmaRotaryEmbedding", [angles, *parts], outputs=2,
                              types=["float16"] * 2, expected=expected, rtol=2e-3,
                              atol=2e-3)  # fmt: skip


def in_place(inputs, attributes):
    """onnxruntime's SparseAttention, whose past and present are one buffer."""
    model = contrib_model("SparseAttention", inputs, attributes, outputs=3)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    binding = session.io_binding()
    values = {f"x{k}": onnxruntime.OrtValue.ortvalue_from_numpy(x.copy())
              for k, x in enumerate(inputs) if x is not None}  # fmt: skip
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y0")
    for name, past in (("y1", "x3"), ("y2", "x4")):
        binding.bind_ortvalue_output(name, values[past])
    session.run_with_iobinding(binding)
    return [value.numpy().copy() for value in binding.get_outputs()]


def sparse_attention(new, lengths, *, packed=False, **more):
    """Of sequences that differ in length, one at a time: onnxruntime mixes up their rows."""
    heads, groups, size, extent, batch = 4, 2, 16, 48, len(lengths)
    rows = np.array([[0, 1, 3, 5], [0, 1, 3, 6]], "int32")
    columns = np.array([[0, 0, 1, 0, 2, -1], [0, 0, 1, 0, 1, 2]], "int32")
    parts = [data(batch, new, n * size) for n in (heads, groups, groups)]
    past = [data(batch, groups, extent, size) for _ in range(2)]
    for b, length in enumerate(lengths):
        for cache in past:
            cache[b, :, length - new :] = 0
    projected = [np.concatenate(parts, -1), None, None] if packed else parts
    caches = [data(64, size // 2), data(64, size // 2)] if more.get("do_rotary") else []
    attributes = {"num_heads": heads, "kv_num_heads": groups, "sparse_block_size": 16} | more

    def inputs(of, longest):
        own = [x if x is None else x[of] for x in (*projected, *past)]
        return [*own, rows, columns, np.array([longest], "int32"), np.array(lengths, "int32")[of],
                *caches]  # fmt: skip

    single = [in_place(inputs(slice(b, b + 1), n), attributes) for b, n in enumerate(lengths)]
    expected = [np.concatenate(results) for results in zip(*single, strict=True)]
    return case("SparseAttention", inputs(slice(None), max(lengths)), attributes, outputs=3,
                expected=expected)  # fmt: skip


def test_sparse_attention():
    check_together(
        sparse_attention(1, [41, 7], do_rotary=1),
        sparse_attention(1, [33, 20], packed=True, do_rotary=1, rotary_interleaved=1),
        sparse_attention(40, [40, 40], scale=0.3),
    )


def longformer(x, weight, bias, mask, wide_weight, wide_bias, flags, window):
    """In float64: each token by its own projections, under its own mask."""

    def attended(weight, bias, seen):
        parts = (x.astype("float64") @ weight + bias).reshape(*x.shape[:2], 3, N, -1)
        q, k, v = (parts[:, :, part].transpose(0, 2, 1, 3) for part in range(3))
        scores = np.exp(q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])) * seen[:, None]
        y = scores / scores.sum(-1, keepdims=True) @ v
        return y.transpose(0, 2, 1, 3).reshape(x.shape)

    places = np.arange(x.shape[1])
    near = abs(places[:, None] - places) <= window
    kept = (mask >= 0)[:, None, :] & np.ones((1, len(places), 1), bool)
    local = attended(weight, bias, kept & (near | (flags != 0)[:, None, :]))
    wide = attended(wide_weight, wide_bias, kept)
    return np.where((flags != 0)[..., None], wide, local).astype("float32")


def test_longformer_attention():
    x, length = data(2, 8, W), 8
    mask = np.where(np.arange(length) < [[8], [6]], 0, -10000).astype("float32")
    flags = np.zeros((2, length), "int32")
    flags[0, [0, 3]] = flags[1, 0] = 1
    inputs = [x, data(W, 3 * W), data(3 * W), mask, data(W, 3 * W), data(3 * W), flags]
    check_against_onnxruntime("LongformerAttention", inputs, {"num_heads": N, "window": 2},
                              expected=[longformer(*inputs, 2)], rtol=1e-4, atol=1e-5)  # fmt: skip
