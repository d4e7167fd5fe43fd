"""Convolutions of symbolic sizes."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.oracle import reference
from tvm_ext import convert_and_build

SIZES = (1, 1, 1), (1, 2, 9), (1, 7, 7), (2, 5, 23), (1, 30, 17)


def model(channels, filters, window, dims=("n", "h", "w_")):
    """A convolution of images of any number and size, or as ``dims`` say, and a Relu."""
    rng = np.random.default_rng(1)
    w = rng.standard_normal((filters, channels, window, window)).astype("float32")
    w /= np.sqrt(w[0].size)
    pad = window // 2
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[pad] * 4),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    images, *sides = dims
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [images, count, *sides])
        for name, count in (("x", channels), ("y", filters))
    ]
    weights = [numpy_helper.from_array(w, "w")]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=core-avx2"])
@pytest.mark.parametrize(
    ("channels", "filters", "window", "rule", "fetched"),
    [
        (48, 64, 3, "winograd", True),
        (16, 48, 3, "winograd", False),  # its weights stay in a cache
        (512, 1024, 1, "blocked", True),
        (64, 128, 1, "blocked", False),
    ],
)
def test_the_next_panel_is_fetched_ahead(channels, filters, window, rule, fetched, target):
    """Also behind the last panel, where nothing is: a prefetch never faults."""
    given = model(channels, filters, window)
    built = convert_and_build(given, target)
    assert f"conv2d_{rule}" in built.sources()["schedule"]
    assert ("llvm.prefetch" in built.sources()["llvm"]) == fetched
    rng = np.random.default_rng(2)
    for images, height, width in SIZES:
        x = rng.standard_normal((images, channels, height, width)).astype("float32")
        (wanted,) = reference(given, {"x": x})
        np.testing.assert_allclose(built(x), wanted, rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=core-avx2"])
@pytest.mark.parametrize("dims", [(1, "h", 23), ("n", "h", 23), (1, 6, "w_"), ("n", "h", 1)])
@pytest.mark.parametrize(("channels", "filters", "window"), [(64, 64, 3), (24, 40, 5), (3, 24, 3)])
def test_a_side_that_is_known(channels, filters, window, dims, target):
    """Spectrograms have any length and so many bands. Tiles of several widths serve these too."""
    given = model(channels, filters, window, dims)
    built = convert_and_build(given, target)
    assert 'T.sblock("columns_' in built.sources()["schedule"]
    rng = np.random.default_rng(3)
    for images, height, width in SIZES:
        sizes = [
            size if isinstance(dim, str) else dim
            for dim, size in zip(dims, (images, height, width), strict=True)
        ]
        x = rng.standard_normal((sizes[0], channels, *sizes[1:])).astype("float32")
        (wanted,) = reference(given, {"x": x})
        np.testing.assert_allclose(built(x), wanted, rtol=1e-4, atol=3e-5)
