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


def check_sizes(built, given):
    """Compare with the reference on images of ``SIZES``, where the model declares no other."""
    declared = given.graph.input[0].type.tensor_type.shape.dim
    rng = np.random.default_rng(2)
    for images, *sides in SIZES:
        sizes = zip(declared, (images, 0, *sides), strict=True)
        shape = [dim.dim_value or size for dim, size in sizes]
        x = rng.standard_normal(shape).astype("float32")
        (wanted,) = reference(given, {"x": x})
        np.testing.assert_allclose(built(x), wanted, rtol=1e-4, atol=3e-5)


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
    check_sizes(built, given)


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=core-avx2"])
@pytest.mark.parametrize("dims", [(1, "h", 23), ("n", "h", 23), (1, 6, "w_"), ("n", "h", 1)])
@pytest.mark.parametrize(("channels", "filters", "window"), [(64, 64, 3), (24, 40, 5), (3, 24, 3)])
def test_a_side_that_is_known(channels, filters, window, dims, target):
    """Spectrograms have any length and so many bands. Tiles of several widths serve these too."""
    given = model(channels, filters, window, dims)
    built = convert_and_build(given, target)
    assert 'T.sblock("columns_' in built.sources()["schedule"]
    check_sizes(built, given)


@pytest.mark.parametrize("groups", [1, 64])
@pytest.mark.parametrize("dims", [("n", "h", "w_"), (1, 5, "w_")])
def test_a_stride_over_a_sum_of_sizes(groups, dims):
    """Of ``2 * w + 3`` columns ``w + 2`` are left, which are known to lie in the padded image."""
    given = model(64, 64, 3, dims)
    weights = numpy_helper.to_array(given.graph.initializer[0])[:, : 64 // groups]
    given.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights.copy(), "w"))
    for name, value in ("twice", np.float32([1, 1, 2, 2])), ("by", [0, 0, 1, 1, 0, 0, 1, 2]):
        given.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    conv, relu = given.graph.node
    conv.input[0] = "padded"
    conv.attribute.append(helper.make_attribute("strides", [2, 2]))
    conv.attribute.append(helper.make_attribute("group", groups))
    before = [
        helper.make_node("Resize", ["x", "", "twice"], ["r"], mode="nearest"),
        helper.make_node("Pad", ["r", "by"], ["padded"]),
    ]
    given.graph.ClearField("node")
    given.graph.node.extend([*before, conv, relu])
    given.graph.output[0].type.tensor_type.ClearField("shape")
    built = convert_and_build(given, "llvm")
    assert 'T.sblock("columns_' in built.sources()["schedule"]
    check_sizes(built, given)
