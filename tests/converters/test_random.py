"""Random operators: reproducible, distributed as asked."""

import numpy as np
import pytest
import tvm
from tvm import te

from tests.oracle import node_model
from tests.uses import record
from tvm_ext import convert_and_build
from tvm_ext.ops.random import random_share
from tvm_ext.targets import resolve

N = 100_000
SHAPE = {"shape": [100, N // 100]}


def drawn(op_type, inputs=(), opset=None, **attributes):
    model = node_model(op_type, list(inputs), attributes, opset=opset)
    compiled = convert_and_build(model, "llvm", opt_level=1)
    first, second = compiled(*inputs), compiled(*inputs)
    np.testing.assert_array_equal(first, second)
    record(model)
    return first


def test_uniform():
    y = np.sort(drawn("RandomUniform", low=-2.0, high=4.0, **SHAPE).ravel())
    even = np.linspace(-2, 4, N)
    assert np.abs(y - even).max() < 6 * 5 / np.sqrt(N)  # a Kolmogorov-Smirnov bound


@pytest.mark.parametrize("dtype", [1, 10, 11])
def test_normal(dtype):
    y = drawn("RandomNormal", mean=3.0, scale=2.0, seed=1.0, dtype=dtype, **SHAPE)
    z = (y.astype("float64") - 3) / 2
    moments = [np.mean(z**k) for k in (1, 2, 3, 4)]
    np.testing.assert_allclose(moments, [0, 1, 0, 3], atol=0.1)
    neighbours = np.corrcoef(z[:, 1:].ravel(), z[:, :-1].ravel())[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(N)


@pytest.mark.parametrize("count", [3, 36, 64, 5000])
@pytest.mark.parametrize("target", ["any CPU", "this CPU"])
def test_a_share_is_the_hash_of_its_place(count, target):
    """TVM and LLVM suppose that no product of unsigned numbers wraps."""
    seed = 12345
    target = tvm.target.Target("llvm") if target == "any CPU" else resolve("llvm")
    shares = te.compute((count,), lambda i: random_share(i, seed), "shares")
    built = tvm.compile(te.create_prim_func([shares]).with_attr("global_symbol", "f"), target)
    got = tvm.runtime.tensor(np.zeros(count))
    built["f"](got)
    places = np.arange(count, dtype="uint32")
    own = _hashed(places ^ _hashed(np.uint32([seed])) ^ _hashed(np.uint32([0])))
    want = ((own ^ _hashed(np.uint32([0x9E3779B9]))) + 0.5) / 2**32
    np.testing.assert_array_equal(got.numpy(), want)


def _hashed(x):
    """lowbias32, as its author writes it: https://nullprogram.com/blog/2018/07/31/"""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


@pytest.mark.parametrize("op_type", ["RandomUniform", "RandomNormal"])
def test_all_levels_draw_the_same(op_type):
    model = node_model(op_type, [], {"shape": [64], "seed": 1.0})
    first, *others = (convert_and_build(model, "llvm", opt_level=k)() for k in range(4))
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-6)


def test_seeds_and_names_make_a_difference():
    a, b = (drawn("RandomUniform", seed=seed, **SHAPE) for seed in (1.0, 2.0))
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(N)
    x = np.zeros((3, 5), "float64")
    assert drawn("RandomUniformLike", [x]).dtype == "float64"


def test_bernoulli():
    p = np.array([[0.0], [0.3], [1.0]], "float32").repeat(N // 10, 1)
    np.testing.assert_allclose(drawn("Bernoulli", [p]).mean(1), p[:, 0], atol=0.02)


def test_multinomial():
    p = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0]])
    with np.errstate(divide="ignore"):
        y = drawn("Multinomial", [np.log(p).astype("float32")], sample_size=20_000, dtype=7)
    assert y.dtype == "int64"
    shares = [np.bincount(row, minlength=3) / 20_000 for row in y]
    np.testing.assert_allclose(shares, p, atol=0.02)


@pytest.mark.parametrize(
    "op_type, like, attributes",
    [
        ("RandomUniform", False, {"shape": [3, 7]}),
        ("RandomNormal", False, {"shape": [3, 7]}),
        ("RandomUniformLike", True, {"low": -2.0}),
        ("RandomNormalLike", True, {"scale": 3.0}),
        ("Bernoulli", True, {}),
        ("Multinomial", True, {"sample_size": 5}),
    ],
)
def test_older_opsets_draw_the_same(op_type, like, attributes):
    inputs = [np.full((3, 7), 0.5, "float32")] if like else []
    latest = drawn(op_type, inputs, seed=3.0, **attributes)
    np.testing.assert_array_equal(drawn(op_type, inputs, opset=21, seed=3.0, **attributes), latest)
