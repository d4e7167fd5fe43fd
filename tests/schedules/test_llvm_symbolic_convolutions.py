"""Convolutions of symbolic sizes whose weights come from memory."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.oracle import reference
from tvm_ext import convert_and_build

SIZES = (1, 1, 1), (1, 2, 9), (1, 7, 7), (2, 5, 23), (1, 30, 17)


def model(channels, filters, window):
    """A convolution of images of any number and size, and a Relu."""
    rng = np.random.default_rng(1)
    w = rng.standard_normal((filters, channels, window, window)).astype("float32")
    w /= np.sqrt(w[0].size)
    pad = window // 2
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[pad] * 4),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", count, "h", "w_"])
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
