"""TfIdfVectorizer against onnxruntime: n-grams of numbers, with skips, weights and all modes."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tvm_ext import convert_and_build


def model(dtype, dims, nodes):
    """A node for each of ``nodes``, names and attributes, on one input."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node("TfIdfVectorizer", ["x"], [name], **nodes[name]) for name in nodes],
        "ngrams",
        [helper.make_tensor_value_info("x", element, dims)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in nodes],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


POOL = {"ngram_counts": [0, 4, 10], "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7, 5, 5, 3, 2, 5, 6]}
INDEXES = [3, 0, 1, 2, 6, 4, 5, 8, 7]


def same(dims, x, **attributes):
    all_same(dims, x, {"y": attributes})


def all_same(dims, x, nodes):
    proto = model(x.dtype, dims, nodes)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    expected = session.run(None, {"x": x})
    results = convert_and_build(proto, "llvm").run(None, {"x": x})
    for name, got, want in zip(nodes, results, expected, strict=True):
        assert got.shape == want.shape, name
        np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("skips", [0, 1, 5])
def test_modes_lengths_and_skips(skips):
    lengths = (1, 1), (1, 3), (2, 2), (2, 3), (3, 3)
    weights = {}, {"weights": list(np.linspace(0.5, 2, 9))}
    nodes = {
        f"{mode} of {shortest} to {longest}{', weighted' if weighted else ''}": {
            "mode": mode, "max_skip_count": skips, "min_gram_length": shortest,
            "max_gram_length": longest, "ngram_indexes": INDEXES, **POOL, **weighted,
        }
        for mode in ("TF", "IDF", "TFIDF") for shortest, longest in lengths for weighted in weights
    }  # fmt: skip
    x = np.random.default_rng(skips).integers(2, 9, (3, 17))
    all_same(x.shape, x, nodes)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(("dims", "shape"), [((9,), (9,)), (("n",), (1,)), (("b", "n"), (2, 13))])
def test_ranks_types_and_symbolic_dims(dtype, dims, shape):
    x = np.random.default_rng(0).integers(2, 9, shape).astype(dtype)
    same(
        dims, x, mode="TF", max_skip_count=1, min_gram_length=1, max_gram_length=3,
        ngram_indexes=INDEXES, **POOL,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
def test_several_ngrams_of_one_result(mode):
    x = np.random.default_rng(1).integers(2, 9, (4, 30))
    same(
        x.shape, x, mode=mode, max_skip_count=2, min_gram_length=1, max_gram_length=2,
        ngram_counts=[0, 3], pool_int64s=[2, 3, 4, 5, 6, 6, 5], ngram_indexes=[0, 0, 1, 1, 0],
    )  # fmt: skip
