"""Hyper-connections, hashes and words of com.microsoft; oracle: onnxruntime, the documentation."""

from itertools import pairwise

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.onnxruntime_oracle import case, check_together, operands, run_onnxruntime
from tvm_ext import convert_and_build

RNG, data, _ = operands(14)


def test_hyper_connections():
    grouped, flat = data(2, 5, 3, 4), data(2, 5, 12)
    options = {"num_branches": 3}
    check_together(
        case("HyperConnectionPreMix", [grouped, data(2, 5, 3)], {"reduction_scale": 0.5}),
        case("HyperConnectionPreMix", [flat, data(2, 5, 12)], options),
        case("HyperConnectionPreMix", [grouped, data(2, 5, 3, 1)]),
        case("HyperConnectionPostMix", [grouped, data(2, 5, 4), data(2, 5, 3), data(2, 5, 3, 3)]),
        case("HyperConnectionPostMix", [flat, data(2, 5, 4), data(2, 5, 3, 4)], options),
    )


def low_rank(streams, norm, down, up, inject, output, gate):
    """The documented steps, in float64, of three streams."""
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    parts = streams.astype("float64").reshape(2, 5, 3, 4) + gate[..., None] * output[..., None, :]
    rms = np.sqrt((parts**2).mean(-1, keepdims=True) + 1e-5)
    normed = (parts / rms * norm.reshape(3, 4)).reshape(streams.shape)
    hidden = 1.5 * (normed @ down)
    gates = sigmoid(hidden * sigmoid(hidden) @ up)
    mixed = 0.5 * (normed * gates).reshape(parts.shape).sum(-2)
    results = mixed, 3 * sigmoid(normed @ inject / 2), parts.reshape(streams.shape)
    return [result.astype("float32") for result in results]


def test_gates_of_streams():
    inputs = [data(2, 5, 12), data(12), data(12, 4), data(4, 12), data(12, 3), data(2, 5, 4),
              data(2, 5, 3)]  # fmt: skip
    attributes = {"num_branches": 3, "silu_alpha": 1.5, "reduction_scale": 0.5, "gate_div": 2.0,
                  "gate_mul": 3.0}  # fmt: skip
    keys, scale = [data(2, 3, 2, 8), data(2, 3, 2, 8), data(2, 3, 8)], data(2, 8)
    check_together(
        case("HyperConnectionLowRankMix", inputs, attributes, outputs=3,
             expected=low_rank(*inputs)),
        case("EngramGate", [*keys, scale, data(2, 8), data(2, 8)], outputs=2),
    )  # fmt: skip


def test_murmur_hash():
    kinds = "int32", "uint32", "int64", "uint64", "float32", "float64"
    check_together(
        *(
            case("MurmurHash3", [RNG.integers(0, 1000, (2, 3)).astype(kind)],
                 {"seed": 5, "positive": k % 2}, types=["uint32" if k % 2 else "int32"])
            for k, kind in enumerate(kinds)
        ),
        rtol=0, atol=0,
    )  # fmt: skip


def test_murmur_hash_of_strings():
    texts = np.array(["", "a", "tvm", "four", "fünf", "a long one, of many words"], object)
    node = helper.make_node("MurmurHash3", ["x"], ["y"], domain="com.microsoft", seed=7)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.STRING, [6])],
        [helper.make_tensor_value_info("y", TensorProto.UINT32, [6])],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    (expected,) = run_onnxruntime(model, {"x": texts})
    (got,) = convert_and_build(model, "llvm").run(None, {"x": texts})
    assert got.tolist() == expected.tolist()


MULTIPLIERS, SIZES = np.array([0x9E3779B1, 7919, 104729]), np.array([11, 13, 17, 19])
GRAMS = {"max_ngram_size": 3, "n_head_per_ngram": 2, "pad_id": 4}


def hashed(ids, past, ends, segments, past_segments, offsets):
    """The documented hashes of sequences behind each other, whose history ends at 1."""
    rows, kept, kept_segments = [], [], []
    for b, (first, end) in enumerate(pairwise(ends)):
        tokens = [*past[b].tolist(), *ids[first:end].tolist()]
        groups = [*past_segments[b].tolist(), *segments[first:end].tolist()]
        for t in range(2, len(tokens)):
            window = [tokens[t]]
            for k in (1, 2):
                cut = 1 in tokens[t - k : t] or len(set(groups[t - k : t + 1])) > 1
                window.append(1 if cut else tokens[t - k])
            mixes, mix = [], 0
            for token, factor in zip(window, MULTIPLIERS.tolist(), strict=True):
                mix ^= token * factor
                mixes += [mix, mix]
            rows.append([m % s for m, s in zip(mixes[2:], SIZES.tolist(), strict=True)])
        kept.append(tokens[-2:])
        kept_segments.append(groups[-2:])
    return [np.array(rows) + offsets, np.array(kept), np.array(kept_segments, "int32")]


def test_hashes_of_ngrams():
    ids, past = RNG.integers(0, 50, (2, 6)), RNG.integers(0, 50, (2, 2))
    narrow = [x.astype("int32") for x in (ids, MULTIPLIERS, SIZES, past)]
    cases = [
        case("NGramHashMapping", [ids, MULTIPLIERS, SIZES], GRAMS, outputs=2),
        case("NGramHashMapping", narrow, GRAMS, outputs=2),
        case("VarlenNGramHashMapping",
             [ids.reshape(-1), MULTIPLIERS, SIZES, np.array([0, 3, 4, 12], "int32"),
              RNG.integers(0, 50, (3, 2))], GRAMS, outputs=2, symbolic=(12, 4)),
    ]  # fmt: skip
    check_together(*cases, rtol=0, atol=0)


def test_hashes_of_ngrams_that_end():
    """Ends and segments rise, so that what is equal is what has no change between."""
    ends = np.array([0, 3, 4, 9], "int32")
    ids, past = RNG.integers(0, 3, 9), RNG.integers(0, 3, (3, 2))
    segments = np.array([0, 0, 1, 1, 2, 2, 3, 3, 3], "int32")
    before = np.array([[0, 0], [0, 1], [1, 2]], "int32")
    expected = hashed(ids, past, ends, segments, before, np.arange(4) * 100)
    inputs = [ids, MULTIPLIERS, SIZES, ends, past, np.arange(4) * 100, np.array(1), segments,
              before]  # fmt: skip
    attributes = GRAMS | {"reset_on_eos": 1}
    types = ["int64", "int64", "int32"]
    check_together(
        case("VarlenNGramHashMapping", inputs, attributes, outputs=3, types=types,
             expected=expected),
        rtol=0, atol=0,
    )  # fmt: skip


def test_words():
    words = np.array([[1, 2, 3, 4, 5], [2, 0, 0, 0, 0], [3, 1, 0, 0, 0], [5, 4, 3, 2, 0]], "int32")
    source = np.array([3, 5, 7, 5, 7, 9, 2])
    grams = {"min_ngram_size": 1, "max_ngram_size": 3}

    def bifurcation(current, start, predicted):
        inputs = [source, np.array(current), np.array([start])]
        inputs += [] if predicted is None else [np.array(predicted)]
        return case("BifurcationDetector", inputs, grams, outputs=2)

    check_together(
        case("WordConvEmbedding", [words, data(3, 1, 2, 4), data(3), data(9, 4)],
             types=["float32"]),
        bifurcation([3, 5], 3, [5, 7, 9, 4, 1]),
        bifurcation([3], 1, [5, 7, 5, 8, 9, 2, 0]),
        bifurcation([1, 5, 7], 0, None),
    )  # fmt: skip


@pytest.mark.parametrize("symbolic", [(), (5, 9)])
def test_time_warping(symbolic):
    shapes = (5, 9), (1, 7, 4), (1, 1)
    check_together(
        *(case("DynamicTimeWarping", [np.round(2 * abs(data(*shape)))], types=["int32"],
               symbolic=symbolic) for shape in shapes),
        rtol=0, atol=0,
    )  # fmt: skip
