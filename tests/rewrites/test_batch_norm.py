"""Batch normalisation folds into the layer before it, and only where it is of inference."""

import numpy as np
import pytest

from .checking import assert_same, model, rewritten


def parameters(channels, dtype="float32"):
    rng = np.random.default_rng(channels)
    return {
        "s": rng.normal(size=channels).astype(dtype),
        "t": rng.normal(size=channels).astype(dtype),
        "m": (rng.normal(size=channels) * 5).astype(dtype),
        "v": rng.uniform(0.1, 3, size=channels).astype(dtype),
    }


def weight(*shape, dtype="float32"):
    return np.random.default_rng(7).normal(size=shape).astype(dtype)


NORM = "y = BatchNormalization <epsilon = 0.01> (c, s, t, m, v)"


@pytest.mark.parametrize("graph, channels, arrays, left", [
    (f"(float[1, 4, 7, 5] x) => (float[N, M, H, W] y) {{ c = Conv(x, w) {NORM} }}",
     6, {"w": weight(6, 4, 3, 3)}, ["Conv"]),
    (f"(float[1, 4, 7, 5] x) => (float[N, M, H, W] y) {{ c = Conv <group = 2> (x, w, b) {NORM} }}",
     6, {"w": weight(6, 2, 3, 1), "b": weight(6)}, ["Conv"]),
    (f"(float[1, 4, 5, 3] x) => (float[N, M, H, W] y) {{ c = ConvTranspose <group = 2> (x, w) "
     f"{NORM} }}", 6, {"w": weight(4, 3, 2, 2)}, ["Conv"]),  # what a transposed one becomes
    (f"(float[N, 4] x) => (float[N, 6] y) {{ c = Gemm <alpha = 2.0, beta = 0.5> (x, w, b) "
     f"{NORM} }}", 6, {"w": weight(4, 6), "b": weight(6)}, ["Gemm"]),
    (f"(float[N, 4] x) => (float[N, 6] y) {{ c = Gemm <transB = 1> (x, w) {NORM} }}",
     6, {"w": weight(6, 4)}, ["Gemm"]),
    # Read twice, or wanted as an output: the convolution's own result stays.
    (f"(float[1, 4, 7, 5] x) => (float[N, M, H, W] z) {{ c = Conv(x, w) {NORM} z = Add(c, y) }}",
     6, {"w": weight(6, 4, 3, 3)}, ["Conv", "BatchNormalization", "Add"]),
    (f"(float[1, 4, 7, 5] x) => (float[N, M, H, W] y, float[N, M, H, W] c) "
     f"{{ c = Conv(x, w) {NORM} }}", 6, {"w": weight(6, 4, 3, 3)}, ["Conv", "BatchNormalization"]),
    (f"(float[1, 4, 7, 5] x, float[6, 4, 3, 3] w) => (float[N, M, H, W] y) "
     f"{{ c = Conv(x, w) {NORM} }}", 6, {}, ["Conv", "BatchNormalization"]),
])  # fmt: skip
def test_folding(graph, channels, arrays, left):
    proto = model("g " + graph, **parameters(channels), **arrays)
    assert assert_same(proto, rewritten(proto), rtol=2e-5, atol=2e-5) == left


def test_a_shared_weight_is_folded_once_per_reader():
    proto = model(
        "g (float[1, 4, 7, 5] x) => (float[N, M, H, W] y, float[N, M, H, W] z) "
        f"{{ c = Conv(x, w) {NORM} z = Conv <dilations = [2, 1]> (x, w) }}",
        **parameters(6), w=weight(6, 4, 3, 3),
    )  # fmt: skip
    assert assert_same(proto, rewritten(proto), rtol=2e-5, atol=2e-5) == ["Conv", "Conv"]


def test_a_range_that_float16_lacks_is_left():
    values = parameters(6, "float16")
    values["v"][:], values["s"][:] = 0, 6e4
    proto = model(
        "g (float16[1, 4, 7, 5] x) => (float16[N, M, H, W] y) "
        "{ c = Conv(x, w) y = BatchNormalization <epsilon = 1e-8> (c, s, t, m, v) }",
        **values, w=weight(6, 4, 3, 3, dtype="float16"),
    )  # fmt: skip
    names = [node.op_type for node in rewritten(proto).graph]
    assert names == ["Conv", "BatchNormalization"]


@pytest.mark.parametrize("pads, mode, kept", [
    ([0, 0, 1, 2, 0, 0, 0, 3], "constant", False),
    ([0, 0, 1, 1, 0, 0, 1, 1], "reflect", True),
    ([0, 1, 1, 1, 0, 0, 1, 1], "constant", True),  # a channel is added
    ([0, 0, -1, 1, 0, 0, 1, 1], "constant", True),
])  # fmt: skip
def test_pad_folds_into_conv_only_as_zeros_around_the_image(pads, mode, kept):
    channels = 4 + pads[1]
    proto = model(
        f'g (float[1, 4, 7, 5] x) => (float[N, M, H, W] y) {{ p = Pad <mode = "{mode}"> (x, pads) '
        "y = Conv <pads = [1, 0, 0, 1]> (p, w) }",
        pads=np.array(pads), w=weight(6, channels, 3, 3),
    )  # fmt: skip
    assert ("Pad" in assert_same(proto, rewritten(proto), rtol=1e-4, atol=1e-5)) == kept


def test_a_pad_with_ones_stays():
    proto = model(
        "g (float[1, 4, 7, 5] x) => (float[N, M, H, W] y) { p = Pad(x, pads, one) y = Conv(p, w) }",
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]), one=np.float32(1)[None].reshape(()),
        w=weight(6, 4, 3, 3),
    )  # fmt: skip
    assert assert_same(proto, rewritten(proto), rtol=1e-4, atol=1e-5) == ["Pad", "Conv"]
