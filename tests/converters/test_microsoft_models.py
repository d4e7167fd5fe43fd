"""Operators of com.microsoft that quantised and generative models hold; oracle: onnxruntime."""

import numpy as np
import pytest

from tests.onnxruntime_oracle import check_against_onnxruntime as check
from tests.onnxruntime_oracle import number, operands

RNG, data, codes = operands(1)


@pytest.mark.parametrize("activation, fusion", [("relu", 0), ("gelu", 0), ("silu", 0),
                                                ("swiglu", 1)])  # fmt: skip
@pytest.mark.parametrize("k, normalize", [(1, 0), (2, 0), (2, 1)])
def test_mixture_of_experts(activation, fusion, k, normalize):
    experts, width, inner, tokens = 5, 8, 12, (2, 3)
    rows = inner * (2 if fusion else 1)
    inputs = [data(*tokens, width), data(6, experts), data(experts, rows, width),
              data(experts, rows), data(experts, width, inner), data(experts, width)]  # fmt: skip
    attributes = {"activation_type": activation, "k": k, "normalize_routing_weights": normalize}
    if fusion:
        attributes |= {"swiglu_fusion": fusion, "activation_alpha": 1.702, "activation_beta": 1.0,
                       "swiglu_limit": 1.5}  # fmt: skip
    check("MoE", inputs, attributes, rtol=1e-4, atol=1e-4, symbolic={2, 3, 6})


def unpacked(packed, scales, bits):
    """``(code - middle) * scale`` in float64; low bits come first."""
    shifts = np.arange(0, 8, bits)
    values = (packed[..., None] >> shifts & (1 << bits) - 1).reshape(*packed.shape[:-1], -1)
    blocks = scales.reshape(*packed.shape[:2], -1)
    wide = np.repeat(blocks, values.shape[-1] // blocks.shape[-1], -1)
    return (values - float(1 << (bits - 1))) * wide


def mixed(x, logits, first, first_bias, second, second_bias, k):
    """Gated by swiglu of interleaved rows, in float64."""
    y = np.zeros_like(x, "float64")
    for t, row in enumerate(x):
        chosen = np.argsort(-logits[t])[:k]
        shares = np.exp(logits[t, chosen] - logits[t].max())
        for expert, share in zip(chosen, shares / shares.sum(), strict=True):
            hidden = first[expert] @ row + first_bias[expert]
            gate, line = np.minimum(hidden[::2], 7.0), np.clip(hidden[1::2], -7.0, 7.0)
            inner = gate / (1 + np.exp(-1.702 * gate)) * (line + 1.0)
            y[t] += share * (second[expert] @ inner + second_bias[expert])
    return y.astype("float32")


@pytest.mark.parametrize("bits, block, extra", [
    (2, 0, []), (4, 0, []), (8, 0, []), (2, 16, []), (4, 16, []), (8, 16, []),
    (8, 0, [None] * 7 + [data(3), data(3), data(1), data(1)]),
])  # fmt: skip
def test_quantised_mixture_of_experts(bits, block, extra):
    """onnxruntime rounds the rows to 8 bits too where weights of 8 bits come in blocks; global
    scales and those of activations it ignores where weights are integers."""
    experts, width, inner = 3, 32, 64

    def layer(rows, depth):
        scales = (experts, rows, depth // block) if block else (experts, rows)
        return codes(experts, rows, depth * bits // 8), 0.01 * abs(data(*scales))

    first, second = layer(2 * inner, width), layer(width, inner)
    x, logits = data(5, width), data(5, experts)
    biases = data(experts, 2 * inner), data(experts, width)
    attributes = {"activation_type": "swiglu", "swiglu_fusion": 1, "k": 2, "swiglu_limit": 7.0,
                  "expert_weight_bits": bits, "normalize_routing_weights": 1,
                  "activation_alpha": 1.702, "activation_beta": 1.0}  # fmt: skip
    attributes |= {"block_size": block} if block else {}
    weights = [unpacked(*pair, bits) for pair in (first, second)]
    expected = mixed(x, logits, weights[0], biases[0], weights[1], biases[1], 2)
    check("QMoE", [x, logits, *first, biases[0], *second, biases[1], *extra], attributes,
          constants=(2, 3, 5, 6), rtol=1e-3, atol=1e-3, expected=[expected])  # fmt: skip


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_gathered_blocks(bits, zeros):
    rows, width, block = 7, 48, 16
    inputs = [
        codes(rows, width * bits // 8),
        np.array([[0, 6], [-1, 3]]),
        data(rows, width // block),
    ]
    if zeros:
        inputs.append(codes(rows, -(-(width // block) * bits // 8)))
    attributes = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
    check("GatherBlockQuantized", inputs, attributes, constants=(0, 2, 3)[: len(inputs) - 1],
          types=["float32"])  # fmt: skip


@pytest.mark.parametrize("quant_type", [0, 1])
def test_matmul_of_bitsandbytes(quant_type):
    depth, columns, block = 32, 5, 16
    weights = codes(depth * columns // 2)
    check("MatMulBnb4", [data(2, 3, depth), weights, data(depth * columns // block)],
          {"K": depth, "N": columns, "block_size": block, "quant_type": quant_type},
          constants=(1, 2), rtol=1e-4, atol=1e-4)  # fmt: skip


def test_matmul_of_16_bits():
    a, b = (RNG.integers(-9000, 9000, shape).astype("int16") for shape in ((2, 3, 4), (4, 5)))
    check("MatMulInteger16", [a, b], types=["int32"])


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_quantised_attention(past, masked):
    batch, length, width, heads = 2, 3, 8, 2
    inputs = [codes(batch, length, width), codes(width, 3 * width, dtype="int8"), data(3 * width),
              number(0.02), number(0.01), None, number(120, "uint8"), number(0, "int8"),
              None]  # fmt: skip
    if masked:
        inputs[5] = np.array([3, 2], "int32")
    if past:
        inputs[8], inputs[5] = data(2, batch, heads, 4, width // heads), None
    check("QAttention", inputs, {"num_heads": heads, "unidirectional": int(past)},
          outputs=2 if past else 1, types=["float32", "float32"][: 2 if past else 1],
          rtol=1e-4, atol=1e-5)  # fmt: skip


def test_quantised_embedding():
    ids = RNG.integers(0, 11, (3, 5)).astype("int32")
    tables = [codes(11, 8), codes(6, 8), codes(2, 8), codes(8), codes(8)]
    scales = [number(s) for s in (0.02, 0.01, 0.03, 0.005, 0.004)]
    zeros = [number(z, "uint8") for z in (120, 128, 100, 3, 90)]
    inputs = [ids, ids % 2, *tables, (ids % 3 > 0).astype("int32"), *scales, *zeros]
    inputs[1] = inputs[1].astype("int32")
    check("QEmbedLayerNormalization", inputs, {"epsilon": 1e-5}, outputs=2,
          types=["float32", "int32"], rtol=1e-4, atol=1e-4)  # fmt: skip


@pytest.mark.parametrize(
    "direction, per_column, zero",
    [
        ("forward", False, np.int8(0)),
        ("bidirectional", True, np.int8(0)),
        ("reverse", False, np.uint8(128)),
        ("forward", False, np.uint8(100)),  # nine bits
    ],
)
def test_dynamically_quantised_lstm(direction, per_column, zero):
    directions, hidden, features = 1 + (direction == "bidirectional"), 6, 5
    scale = (directions, 4 * hidden) if per_column else (directions,)
    shapes = [(directions, depth, 4 * hidden) for depth in (features, hidden)]
    weights = [codes(*shape, dtype=zero.dtype.name) for shape in shapes]
    units = [RNG.uniform(0.002, 0.004, scale).astype("float32") for _ in weights]
    zero = np.full(scale, zero)
    inputs = [0.5 * data(7, 3, features), *weights, data(directions, 8 * hidden),
              np.array([7, 3, 5], "int32"), data(directions, 3, hidden),
              data(directions, 3, hidden), None, units[0], zero, units[1], zero]  # fmt: skip
    attributes = {"direction": direction, "hidden_size": hidden}
    check("DynamicQuantizeLSTM", inputs, attributes, constants=(1, 2, 8, 9, 10, 11), outputs=3,
          types=["float32"] * 3, rtol=0, atol=0.02)  # fmt: skip


@pytest.mark.parametrize("direction", ["forward", "bidirectional", "reverse"])
@pytest.mark.parametrize("hidden", [6, 40])
def test_dynamically_quantised_lstm_of_one_sequence(direction, hidden):
    """Its hidden state is rounded as in onnxruntime, and so is what it is rounded to at the end."""
    directions, features = 1 + (direction == "bidirectional"), 5
    weights = [codes(directions, k, 4 * hidden, dtype="int8") for k in (features, hidden)]
    units = [np.full(directions, 0.01 / hidden**0.5, "float32") for _ in weights]
    zero = np.zeros(directions, "int8")
    inputs = [data(9, 1, features), *weights, 0.1 * data(directions, 8 * hidden), None,
              data(directions, 1, hidden), None, None, units[0], zero, units[1], zero]  # fmt: skip
    check("DynamicQuantizeLSTM", inputs, {"direction": direction, "hidden_size": hidden},
          constants=(1, 2, 8, 9, 10, 11), outputs=3, types=["float32"] * 3,
          rtol=0, atol=1e-5)  # fmt: skip


def attended(query, keys, values, hidden=None):
    """In float64: ``query[B, 1, N * H]``, keys and values ``[B, N, T, H]``."""
    batch, heads, _, size = keys.shape
    query = query.reshape(batch, 1, heads, size).transpose(0, 2, 1, 3)
    scores = query @ keys.transpose(0, 1, 3, 2).astype("float64") / np.sqrt(size)
    scores = scores if hidden is None else np.where(hidden[:, None, None], -10000.0, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    y = weights / weights.sum(-1, keepdims=True) @ values
    return y.transpose(0, 2, 1, 3).reshape(batch, 1, -1).astype("float32")


def test_decoding_attention():
    """onnxruntime has shared buffers only."""
    batch, heads, size, past = 2, 3, 4, 5
    rows = [data(batch, 1, heads * size) for _ in range(3)]
    cache = [data(batch, heads, past, size) for _ in range(2)]
    fresh = [row.reshape(batch, heads, 1, size) for row in rows[1:]]
    whole = [np.concatenate(pair, 2) for pair in zip(cache, fresh, strict=True)]
    decode = "DecoderMaskedMultiHeadAttention", {"num_heads": heads}
    mask = np.array([[1] * 6, [0, 0, 1, 1, 1, 1]], "int32")
    for hidden, masks in ((None, None), (mask == 0, mask)):
        check(decode[0], [*rows, masks, None, *cache], decode[1], outputs=3,
              expected=[attended(rows[0], *whole, hidden), *whole], rtol=1e-4)  # fmt: skip
    bias = data(3 * heads * size)
    own = [row - part for row, part in zip(rows, np.split(bias, 3), strict=True)]
    check(decode[0], [*own, None, None, *cache, None, None, None, bias], decode[1], outputs=3,
          expected=[attended(rows[0], *whole), *whole], rtol=1e-4, atol=1e-5)  # fmt: skip
    check(decode[0], [rows[0], *cache], decode[1], expected=[attended(rows[0], *cache)], rtol=1e-4)
    shared = [*rows, None, None, *(np.where(np.arange(5)[:, None] < 3, x, 0) for x in cache), None]
    shared[5:] = [*(x.astype("float32") for x in shared[5:7]), number([3], "int32")]
    check(decode[0], shared, {**decode[1], "past_present_share_buffer": 1}, outputs=3, rtol=1e-4)


@pytest.mark.parametrize("layout, section", [(0, [1, 2, 1]), (1, [2, 1, 1])])
def test_rotary_embedding_of_images(layout, section):
    positions = RNG.integers(0, 9, (3, 2, 5))
    angles = data(9, 4), data(9, 4)
    check("MRotaryEmbedding", [data(2, 3, 5, 8), positions, *angles],
          {"mrope_section": section, "mrope_layout": layout}, rtol=1e-4)  # fmt: skip
    check("MRotaryEmbedding", [data(2, 5, 24), positions, *angles],
          {"mrope_section": section, "mrope_layout": layout, "interleaved": 1,
           "num_heads": 3, "rotary_embedding_dim": 8}, rtol=1e-4)  # fmt: skip


def test_quantised_layers():
    x, w = codes(2, 5, 6, 3), codes(4, 3, 3, 3, dtype="int8")
    scale = RNG.uniform(0.01, 0.03, 4).astype("float32")
    bias = codes(4, dtype="int16").astype("int32")
    inputs = [x, number(0.02), number(120, "uint8"), w, scale, np.zeros(4, "int8"), number(0.3),
              number(100, "uint8"), bias]  # fmt: skip
    check("QLinearConv", inputs, {"channels_last": 1, "pads": [1] * 4}, rtol=0, atol=1)
    check("NhwcMaxPool", [x], {"kernel_shape": [2, 3], "pads": [0, 1, 1, 1]})
    parts = [codes(5, 6), number(0.02), number(120, "uint8"), codes(2, 1, 6), number(0.03),
             number(7, "uint8")]  # fmt: skip
    check("QLinearWhere", [x[..., 0] > 99, *parts, number(0.04), number(30, "uint8")],
          types=["uint8"], rtol=0, atol=1)  # fmt: skip


def test_norms_and_gates():
    x, gate = data(2, 3, 12), data(2, 3, 12)
    check("GatedRMSNorm", [x, data(4), gate], {"activation": "sigmoid"}, symbolic={2, 3}, rtol=1e-4)
    check("GatedRMSNorm", [x, data(12), gate], rtol=1e-4)
    check("BranchwiseRMSNorm", [x, data(12)], {"num_branches": 3}, symbolic={2}, rtol=1e-4)
    check("BranchwiseRMSNorm", [x, data(3, 12)], rtol=1e-4)
    check("BranchwiseRMSNorm", [x], rtol=1e-4)
    check("GatedAdd", [x, data(2, 3, 12), data(2, 3, 1)], symbolic=True)
    check("ScaledSiLU", [x], {"alpha": 1.7})
    check("LinearAttentionGate", [x, data(12), data(12), gate], outputs=2, rtol=1e-4)


def test_small_ones():
    x = data(2, 9, 5)
    check("ExpandDims", [x, number(-2, "int32")], constants=(1,))
    check("GatherND", [x, np.array([[0, 3], [1, -1]])], symbolic={2, 9})
    check("Range", [number([1.0]), number([4.5])])
    check("UnfoldTensor", [x], {"dim": 1, "size": 3, "step": 2}, symbolic={9})
    for metric in "euclidean", "sqeuclidean":
        check("CDist", [data(7, 5), data(4, 5)], {"metric": metric}, symbolic={7}, rtol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ngrams_do_not_repeat(size):
    ids = np.array([[1, 2, 3, 1, 2, 4, 1, 2], [5, 5, 5, 5, 5, 5, 5, 5]])
    check("NGramRepeatBlock", [ids, data(2, 7)], {"ngram_size": size}, types=["float32"])
