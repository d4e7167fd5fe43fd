"""Convolutions of a few filters, by parts that are shifted and added."""

import numpy as np
import pytest

from tests.oracle import node_model, reference
from tvm_ext import convert_and_build

PARTS = "shifted_sums"


def convolution(x, filters, window, symbolic=(), **attributes):
    rng = np.random.default_rng(1)
    x = rng.standard_normal(x).astype("float32")
    channels = x.shape[1] // attributes.get("group", 1)
    w = rng.standard_normal((filters, channels, *window)).astype("float32")
    b = rng.standard_normal(filters).astype("float32")
    w /= np.sqrt(w[0].size)
    model = node_model("Conv", [x, w, b], attributes, constants=[1, 2])
    for at in symbolic:
        model.graph.input[0].type.tensor_type.shape.dim[at].dim_param = "nchw"[at]
        model.graph.output[0].type.tensor_type.shape.dim[at].dim_param = f"of_{at}"
    return model, {"x0": x}


def check(model, feeds, **options):
    """The built model, once its result is right."""
    built = convert_and_build(model, options.pop("target", "llvm"), **options)
    (wanted,) = reference(model, feeds)
    np.testing.assert_allclose(built.run(None, feeds)[0], wanted, rtol=1e-4, atol=1e-5)
    return built


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=core-avx2"])
@pytest.mark.parametrize(
    ("x", "filters", "window", "attributes"),
    [
        ((1, 32, 20, 23), 3, (9, 9), {}),
        ((2, 64, 13, 17), 3, (7, 7), {"pads": [3, 3, 3, 3]}),
        ((1, 48, 11, 29), 1, (5, 7), {"pads": [0, 4, 1, 2]}),
        ((1, 40, 12, 30), 2, (4, 6), {"dilations": [2, 3], "pads": [1, 0, 0, 5]}),
        ((1, 64, 19, 31), 1, (3, 8), {"strides": [2, 2], "pads": [2, 2, 2, 2]}),
        ((1, 24, 16, 16), 1, (1, 5), {"auto_pad": "SAME_LOWER"}),
        ((1, 32, 61), 1, (7,), {"pads": [3, 3]}),
        ((1, 64, 40), 2, (3,), {"dilations": [4], "pads": [0, 8]}),
    ],
)
def test_parts_are_shifted_and_added(x, filters, window, attributes, target):
    built = check(*convolution(x, filters, window, **attributes), target=target)
    kernels = built.profile(repeat=1).kernels
    assert any(PARTS in kernel.kernel for kernel in kernels)
    assert all(kernel.nodes for kernel in kernels)


def test_a_symbolic_number_of_images():
    model, feeds = convolution((3, 32, 12, 14), 3, (5, 5), symbolic=[0])
    assert PARTS in check(model, feeds).sources()["schedule"]


@pytest.mark.parametrize(
    ("window", "attributes"),
    [
        ((9, 9), {"pads": [4, 4, 4, 4]}),
        ((5, 7), {"pads": [0, 4, 1, 2]}),
        ((3, 8), {"strides": [2, 2], "pads": [2, 2, 2, 2]}),
        ((4, 6), {"dilations": [2, 3], "pads": [1, 8, 0, 8]}),
    ],
)
def test_images_of_symbolic_size(window, attributes):
    model, feeds = convolution((2, 64, 20, 23), 1, window, symbolic=[0, 2, 3], **attributes)
    built = check(model, feeds)
    assert PARTS in built.sources()["schedule"]
    rng = np.random.default_rng(3)
    for dims in (1, 9, 9), (3, 31, 16), (1, 13, 64):
        x = rng.standard_normal((dims[0], 64, *dims[1:])).astype("float32")
        (wanted,) = reference(model, {"x0": x})
        np.testing.assert_allclose(built.run(None, {"x0": x})[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
def test_each_level(opt_level):
    model, feeds = convolution((1, 32, 12, 14), 3, (5, 5), pads=[2, 2, 2, 2])
    text = check(model, feeds, opt_level=opt_level).sources()["schedule"]
    assert (PARTS in text) == (opt_level >= 2)


@pytest.mark.parametrize(
    ("x", "filters", "window", "attributes"),
    [
        ((1, 64, 20, 23), 16, (7, 7), {}),  # full vectors
        ((1, 64, 20, 23), 3, (3, 3), {}),  # Winograd's
        ((1, 64, 20, 23), 3, (7, 1), {}),  # one column
        ((1, 3, 20, 23), 3, (2, 5), {}),  # little to sum
        ((1, 64, 20, 41), 3, (4, 4), {"strides": [4, 4]}),  # of four parts one would be used
        ((1, 64, 20, 23), 4, (5, 5), {"group": 2}),
    ],
)
def test_where_it_does_not_pay(x, filters, window, attributes):
    built = check(*convolution(x, filters, window, **attributes))
    assert PARTS not in built.sources()["schedule"]


def test_infinite_pixels_stay_where_they_are():
    model, feeds = convolution((1, 32, 9, 20), 3, (5, 5), pads=[2, 2, 2, 2])
    feeds["x0"][0, 3, 4, 10] = np.inf
    (wanted,), (got,) = reference(model, feeds), convert_and_build(model).run(None, feeds)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    np.testing.assert_allclose(got[finite], wanted[finite], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=core-avx2"])
@pytest.mark.parametrize(
    ("x", "filters", "window", "attributes"),
    [
        ((1, 32, 20, 23), 3, (9, 9), {"pads": [4, 4, 4, 4]}),
        ((2, 48, 11, 29), 1, (5, 11), {"pads": [0, 4, 1, 2]}),
        ((1, 64, 19, 31), 2, (3, 12), {"dilations": [2, 2], "strides": [2, 1]}),
    ],
)
def test_sums_of_bytes(x, filters, window, attributes, target):
    rng = np.random.default_rng(2)
    x = rng.integers(0, 256, x).astype("uint8")
    w = rng.integers(-128, 128, (filters, x.shape[1], *window)).astype("int8")
    zero = np.array(131, "uint8")
    model = node_model("ConvInteger", [x, w, zero], attributes, constants=[1, 2])
    built = convert_and_build(model, target)
    (got,) = built.run(None, {"x0": x})
    np.testing.assert_array_equal(got, reference(model, {"x0": x})[0])
    assert PARTS in built.sources()["schedule"]
