"""Attention recognised from what exporters write; oracle: onnxruntime on the original."""

import io

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import tvm_ext
from examples.export import EXPORTERS
from tests.small_examples import small_example
from tvm_ext import pipeline, targets

from .checking import feeds_for, model, operators, rewritten, run

LOWEST = np.float32(-np.inf)
SCALE = np.float32(0.125)
KEEP = np.tril(np.ones((5, 5), bool))
SPLIT = (
    "g (float[2,5,3,4] a, float[2,5,3,4] b, float[2,5,3,4] c) => (float[2,3,5,4] y) {{ "
    "q = Transpose <perm = [0, 2, 1, 3]> (a) t = Transpose <perm = [0, 2, 3, 1]> (b) "
    "v = Transpose <perm = [0, 2, 1, 3]> (c) {} }}"
)


def assert_same(proto, result_count=1, feeds=None, opt_levels=(3,)):
    """Our builds of ``proto`` give onnxruntime's answer; how many attentions were recognised."""
    assert operators(rewritten(proto)).count("Attention") == result_count
    feeds = feeds_for(proto) if feeds is None else feeds
    expected = run(proto, feeds)
    for level in opt_levels:
        got = tvm_ext.convert_and_build(proto, "llvm", opt_level=level).run(None, feeds)
        for want, have in zip(expected, got, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=2e-6)


def attention_model(body, **arrays):
    arrays = {"scale": SCALE, "lowest": LOWEST, "zero": np.float32(0), "keep": KEEP, **arrays}
    used = {n: np.asarray(a) for n, a in arrays.items() if n in body.replace(",", " ").replace(
        "(", " ").replace(")", " ").split()}  # fmt: skip
    return model(SPLIT.format(body), 18, **used)


PLAIN = "s = MatMul(q, t) u = Mul(s, scale) m = Add(mask, u) w = Softmax(m) y = MatMul(w, v)"


@pytest.mark.parametrize("body", [
    "s = MatMul(q, t) w = Softmax(s) y = MatMul(w, v)",
    "s = MatMul(q, t) u = Div(s, scale) w = Softmax <axis = 3> (u) y = MatMul(w, v)",
    "r = Mul(scale, q) s = MatMul(r, t) w = Softmax(s) y = MatMul(w, v)",
    "r = Mul(q, scale) k = Mul(t, scale) s = MatMul(r, k) w = Softmax(s) y = MatMul(w, v)",
    "s = MatMul(q, t) m = Where(keep, s, lowest) w = Softmax(m) y = MatMul(w, v)",
    "s = MatMul(q, t) m = Where(keep, lowest, s) w = Softmax(m) y = MatMul(w, v)",
    "s = MatMul(q, t) m = Add(s, mask) w = Softmax(m) n = IsNaN(w) z = Where(n, zero, w) "
    "y = MatMul(z, v)",
])  # fmt: skip
def test_forms(body):
    assert_same(attention_model(body, mask=masked(2, 1, 5, 5)))


@pytest.mark.parametrize("shape", [(5,), (2, 1, 1, 5), (2, 3, 5, 5), (3, 1, 1)])
def test_masks_broadcast(shape):
    assert_same(attention_model(PLAIN, mask=masked(*shape)), opt_levels=(2, 3))


def masked(*shape):
    """A mask of numbers, and one key that no query sees where it has keys."""
    mask = np.random.default_rng(1).normal(size=shape).astype("float32")
    if shape[-1] > 1:
        mask[..., -1] = LOWEST
    return mask


@pytest.mark.parametrize("number", [-np.inf, -1e9, np.finfo("float32").min])
def test_rows_that_see_nothing_keep_their_meaning(number):
    """NaN after -inf; what the softmax of equal numbers gives after a finite one."""
    keep = KEEP.copy()
    keep[[1, 3]] = False
    body = "s = MatMul(q, t) m = Where(keep, s, lowest) w = Softmax(m) {}"
    assert_same(
        attention_model(body.format("y = MatMul(w, v)"), keep=keep, lowest=np.float32(number))
    )
    guard = body.format("n = IsNaN(w) z = Where(n, zero, w) y = MatMul(z, v)")
    assert_same(attention_model(guard, keep=keep, lowest=np.float32(number)))


@pytest.mark.parametrize("body", [
    # Not over the keys; two readers of the weights, and of the scores.
    "s = MatMul(q, t) w = Softmax <axis = 2> (s) y = MatMul(w, v)",
    "s = MatMul(q, t) w = Softmax(s) z = MatMul(w, v) e = ReduceSum(w, axes) y = Add(z, e)",
    "s = MatMul(q, t) w = Softmax(s) z = MatMul(w, v) e = ReduceMax(s) y = Add(z, e)",
    # The keys as they are; one batch of keys for all; a scale per key.
    "k = Softplus(t) s = MatMul(q, k) w = Softmax(s) y = MatMul(w, v)",
    "s = MatMul(q, t) u = Mul(s, each) w = Softmax(s) y = MatMul(w, v) ",
])  # fmt: skip
def test_what_only_looks_like_attention(body):
    arrays = {"axes": np.array([3]), "each": np.ones(5, "float32")}
    if "each" in body:
        body = body.replace("Softmax(s)", "Softmax(u)")
    assert_same(attention_model(body, **arrays), 0)


@pytest.mark.parametrize("axis, count", [("", 0), ("<axis = 1>", 0), ("<axis = 3>", 1)])
def test_a_softmax_over_several_axes_as_before_opset_13_is_no_attention(axis, count):
    proto = model(SPLIT.format(f"s = MatMul(q, t) w = Softmax {axis} (s) y = MatMul(w, v)"), 12)
    assert_same(proto, count)


def test_a_mask_that_broadcasts_the_scores_stays():
    body = "s = MatMul(q, t) m = Add(s, mask) w = Softmax(m) y = MatMul(w, v)"
    graph = SPLIT.format(body).replace("[2,5,3,4]", "[1,5,3,4]")
    proto = model(graph, 18, mask=np.ones((2, 1, 1, 5), "float32"))
    assert_same(proto, 0)


IMAGES = (
    "g (float[{dims}] a, float[{dims}] b, float[{dims}] c) => (float[{dims}] y) {{ "
    "q = Transpose <perm = [0, 1, 3, 2]> (a) s = MatMul(q, b) u = Mul(s, scale) "
    "w = Softmax {axis} (u) t = Transpose <perm = {perm}> (w) y = MatMul(c, t) }}"
)


def image_attention(dims, axis="", perm=(0, 1, 3, 2)):
    graph = IMAGES.format(dims=dims, axis=axis, perm=list(perm))
    return model(graph, 18, scale=SCALE)


@pytest.mark.parametrize("dims", ["2,3,8,35", "b,3,8,n"])
def test_attention_of_images_channels_first(dims):
    """``y = v @ w^T``, as YOLO, CoAtNet and others write it; their positions are columns."""
    proto = image_attention(dims)
    assert operators(rewritten(proto))[-2:] == ["MatMul", "Transpose"]
    feeds = feeds_for(image_attention("2,3,8,35"))
    for level in (1, 3):
        built = tvm_ext.convert_and_build(proto, "llvm", opt_level=level)
        np.testing.assert_allclose(
            built.run(None, feeds)[0], run(proto, feeds)[0], rtol=1e-5, atol=2e-6
        )
    kernels = [getattr(kernel, "symbol", kernel) for kernel in built.executor.plan.kernels]
    assert any("attention" in str(kernel) for kernel in kernels)


@pytest.mark.parametrize("axis, perm", [("<axis = 2>", [0, 1, 3, 2]), ("", [1, 0, 3, 2])])
def test_other_products_of_images_stay(axis, perm):
    proto = image_attention("3,3,8,8", axis, perm)
    assert operators(rewritten(proto))[-1] == "MatMul"
    assert_same(proto, 0)


def test_weights_of_unknown_rank_stay():
    graph = (
        "g (float[a,b,c] x, float[a,c,b] v, int64[k] dims) => (float y) { r = Reshape (x, dims)"
        " u = Reshape (v, dims) w = Softmax (r) t = Transpose <perm = [0, 2, 1]> (w)"
        " y = MatMul (u, t) }"
    )
    assert operators(rewritten(model(graph)))[-2:] == ["Transpose", "MatMul"]


def exported(module, inputs, exporter):
    module = module.eval()
    if exporter == "dynamo":
        return torch.onnx.export(module, inputs, dynamo=True, verbose=False).model_proto
    buffer = io.BytesIO()
    names = [f"x{k}" for k in range(len(inputs))]
    torch.onnx.export(module, inputs, buffer, dynamo=False, input_names=names)
    return onnx.load_from_string(buffer.getvalue())


class Scaled(nn.Module):
    """torch's own function, with the kinds of mask that it has."""

    def __init__(self, mask):
        super().__init__()
        self.causal = mask == "causal"
        self.mask = {"bool": torch.from_numpy(KEEP), "float": torch.randn(2, 1, 5, 5)}.get(mask)

    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=self.mask, is_causal=self.causal
        )


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_torch_scaled_dot_product_attention(exporter, mask):
    torch.manual_seed(0)
    inputs = tuple(torch.randn(2, 3, 5, 4) for _ in range(3))
    assert_same(exported(Scaled(mask), inputs, exporter))


class SelfAttention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_torch_multihead_attention(exporter):
    torch.manual_seed(0)
    module = SelfAttention(12, 3, batch_first=True)
    assert_same(exported(module, (torch.randn(2, 5, 12),), exporter))


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", ["bert_base", "vit_b16"])
def test_examples(name, exporter):
    proto = small_example(name, exporter)
    assert operators(rewritten(proto)).count("Attention") == 2


def test_level_3_has_a_step_of_its_own():
    names = [[s.name for s in pipeline.default(targets.resolve("llvm"), n).steps] for n in (2, 3)]
    assert "TiledAttention" in set(names[1]) - set(names[0])


def test_dims_that_are_computed_from_shapes():
    """As TorchScript's exporter writes heads with a symbolic batch and length."""
    heads = " ".join(
        f"r{x} = Reshape({x}, split) {y} = Transpose <perm = [{perm}]> (r{x})"
        for x, y, perm in (
            ("a", "q", "0, 2, 1, 3"),
            ("b", "t", "0, 2, 3, 1"),
            ("c", "v", "0, 2, 1, 3"),
        )
    )
    graph = (
        "g (float[b,s,12] a, float[b,s,12] b, float[b,s,12] c) => (float[b,3,s,4] y) { "
        "whole = Shape(a) first = Gather(whole, i0) second = Gather(whole, i1) "
        "n = Unsqueeze(first, axis) l = Unsqueeze(second, axis) "
        "split = Concat <axis = 0> (n, l, three, four) "
        f"{heads} s1 = MatMul(q, t) w = Softmax(s1) y = MatMul(w, v) }}"
    )
    numbers = {"i0": np.array(0), "i1": np.array(1), "axis": np.array([0]),
               "three": np.array([3]), "four": np.array([4])}  # fmt: skip
    assert_same(model(graph, 17, **numbers), opt_levels=(0, 3))
