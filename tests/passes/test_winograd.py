"""Which convolutions of a network become Winograd's, and that the network stays right."""

from itertools import product
from math import inf

import numpy as np
import pytest
from onnx import helper

from tests.oracle import reference
from tests.passes.test_blocked_layout import LLVM, conv_network, feeds
from tvm_ext import convert_and_build, pipeline, targets
from tvm_ext.passes.winograd import winograd
from tvm_ext.schedules.llvm.winograd import Convolution, WinogradModel

# Of tiles of several widths, where sizes are symbolic.
_TILES = 'T.sblock("columns_'


def always(target):
    """The default pipeline with Winograd wherever it can be."""
    step = winograd(WinogradModel(gain=inf))
    base = pipeline.default(target, 3).without("Winograd")
    return base.insert("Winograd", step, before="BlockedConv2d")


def network(image, filters, **attributes):
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], **attributes),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Add", ["r", "c"], ["y"]),
    ]
    return conv_network(nodes, image, {"w": filters, "b": filters[:1]})


def selected(model, steps):
    return "conv2d_winograd" in convert_and_build(model, steps=steps).sources()["select"]


def test_the_step_is_there_at_level_3_only():
    steps = {level: str(pipeline.default(LLVM, level)) for level in range(4)}
    assert [level for level, text in steps.items() if "Winograd" in text] == [3]


@pytest.mark.parametrize(
    ("image", "filters", "pads"),
    [
        ((1, 17, 13, 11), 21, [1, 1, 1, 1]),
        ((2, 3, 7, 5), 32, [0, 2, 1, 0]),
        ((3, 32, 2, 2), 24, [1, 1, 1, 1]),
        ((5, 16, 3, 2), 1, [1, 1, 1, 1]),
        ((1, 40, 29, 31), 64, [1, 1, 1, 1]),
    ],
)
@pytest.mark.parametrize("stride", [1, 2])
def test_networks_of_any_shape_are_right(image, filters, pads, stride):
    model = network(image, (filters, image[1], 3, 3), pads=pads, strides=[stride] * 2)
    built = convert_and_build(model, steps=always(targets.resolve("llvm")))
    taken = "conv2d_winograd" in built.sources()["select"]
    assert taken or (stride == 2 and min(image[2:]) == 2)  # of whose windows taps meet pads only
    for mean in 0, 1000:
        x = {"x": (feeds(image)["x"] + mean).astype("float32")}
        (want,), (got,) = reference(model, x), built.run(None, x)
        # A filter's |w| sum to about 0.8 * 3 * sqrt(C).
        scale = np.abs(x["x"]).max() * 2.4 * image[1] ** 0.5
        np.testing.assert_allclose(got, want, rtol=0, atol=8 * 2.0**-24 * scale)


@pytest.mark.parametrize(("side", "spread"), [(14, 2), (20, 0)])
def test_points_of_a_tile_lie_in_different_sets_of_the_cache(side, spread):
    """Of inputs and products: with 8 blocks of 16 tiles, 8 kB apart, but not with 25."""
    image = (1, 128, side, side)
    model = network(image, (128, 16, 3, 3), group=8, pads=[1] * 4)
    always_4 = winograd(WinogradModel(gain=inf, sizes=(4,)))
    base = pipeline.default(LLVM, 3).without("Winograd")
    steps = base.insert("Winograd", always_4, before="BlockedConv2d")
    source = convert_and_build(model, steps=steps).sources()["schedule"]
    assert source.count('"buffer_dim_align": [[0, 2, 256, 16]]') == spread
    x = feeds(image)
    built = convert_and_build(model, steps=always(targets.resolve("llvm")))
    (want,), (got,) = reference(model, x), built.run(None, x)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("image", "filters", "dilation"),
    [((1, 17, 13, 11), 21, 2), ((3, 32, 9, 14), 24, 3), (("n", 16, 8, 9), 32, 4)],
)
def test_dilated_networks_are_right(image, filters, dilation):
    """Of any number of images, too: their phases are joined again."""
    size, pads = (filters, image[1], 3, 3), [dilation, 0, dilation, dilation]
    model = network(image, size, pads=pads, dilations=[dilation] * 2)
    built = convert_and_build(model, steps=always(targets.resolve("llvm")))
    assert "conv2d_winograd" in built.sources()["select"]
    for n in (1, 3) if image[0] == "n" else image[:1]:
        x = feeds((n, *image[1:]))
        (want,), (got,) = reference(model, x), built.run(None, x)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def check(model, *images):
    """Winograd's method is taken, and right; the kernels."""
    built = convert_and_build(model, steps=always(targets.resolve("llvm")))
    assert "conv2d_winograd" in built.sources()["select"]
    for image, mean in product(images, (0, 1000)):
        x = {"x": (feeds(image)["x"] + mean).astype("float32")}
        (want,), (got,) = reference(model, x), built.run(None, x)
        scale = np.abs(x["x"]).max() * 2.4 * image[1] ** 0.5
        np.testing.assert_allclose(got, want, rtol=0, atol=8 * 2.0**-24 * scale)
    return built.sources()["schedule"]


@pytest.mark.parametrize(
    ("image", "window", "attributes"),
    [
        ((2, 17, 13, 11), (3, 3), {"dilations": [2, 1], "pads": [2, 1, 1, 0]}),
        ((1, 32, 7, 16), (3, 3), {"dilations": [1, 3], "pads": [1, 3, 1, 3]}),
        ((1, 24, 9, 13), (1, 3), {"pads": [0, 1, 0, 1]}),
        ((3, 16, 8, 5), (3, 1), {"pads": [1, 0, 1, 0]}),
        ((1, 17, 13, 6), (5, 1), {"pads": [2, 0, 1, 0], "dilations": [2, 5]}),
        ((2, 40, 3, 19), (1, 4), {}),
        ((1, 32, 17, 17), (1, 7), {"pads": [0, 3, 0, 3]}),
        ((1, 33, 17, 5), (7, 1), {"pads": [3, 0, 3, 0]}),
        ((1, 64, 6, 30), (1, 9), {"group": 4, "pads": [0, 2, 0, 4], "dilations": [1, 2]}),
        ((1, 16, 1, 301), (1, 3), {"pads": [0, 1, 0, 1]}),
        ((1, 48, 13, 8), (5, 5), {"pads": [2] * 4}),
        ((2, 17, 9, 14), (4, 4), {"pads": [1, 0, 2, 3], "dilations": [2, 1]}),
    ],
)
def test_other_windows_and_dilations(image, window, attributes):
    filters = (48, image[1] // attributes.get("group", 1), *window)
    check(network(image, filters, **attributes), image)


@pytest.mark.parametrize(
    ("image", "taps", "attributes"),
    [
        ((1, 17, 3), 3, {}),
        ((1, 32, 301), 3, {"pads": [1, 1]}),
        ((2, 24, 1000), 3, {"pads": [3, 3], "dilations": [3]}),
        ((3, 40, 77), 5, {"pads": [2, 0]}),
        ((1, 64, 130), 4, {"group": 2, "pads": [0, 5]}),
        ((1, 32, 200), 7, {"pads": [3, 3]}),
        ((2, 48, 133), 11, {"group": 3, "pads": [25, 25], "dilations": [5]}),
    ],
)
def test_signals(image, taps, attributes):
    filters = (48, image[1] // attributes.get("group", 1), taps)
    check(network(image, filters, **attributes), image)


def test_signals_of_any_number():
    check(network(("n", 32, 150), (32, 32, 5), pads=[2, 2]), (1, 32, 150), (3, 32, 150))


@pytest.mark.parametrize(
    ("images", "filters", "taps", "attributes"),
    [
        (1, 48, 3, {"pads": [1, 1]}),
        ("n", 32, 3, {"pads": [3, 2], "dilations": [3]}),
        (1, 40, 5, {"pads": [2, 2]}),
        (2, 64, 4, {"group": 2, "pads": [3, 0]}),
        (1, 32, 7, {"pads": [3, 3]}),
        ("n", 48, 11, {"group": 3, "pads": [25, 25], "dilations": [5]}),
    ],
)
def test_signals_of_any_length(images, filters, taps, attributes):
    channels = 48
    model = network(
        (images, channels, "t"),
        (filters, channels // attributes.get("group", 1), taps),
        **attributes,
    )
    n = 2 if images == "n" else images
    lengths = 7, 30, 101, 400
    assert _TILES in check(model, *((n, channels, length) for length in lengths))


@pytest.mark.parametrize(
    ("sizes", "window", "attributes"),
    [
        (("h", "w"), (1, 3), {"pads": [0, 1, 0, 1]}),
        (("h", 20), (3, 1), {"pads": [1, 0, 1, 0]}),
        ((20, "w"), (7, 1), {"pads": [3, 0, 3, 0]}),
        (("h", "w"), (1, 5), {"pads": [0, 4, 0, 4], "dilations": [1, 2]}),
        (("h", "w"), (5, 5), {"pads": [2] * 4}),
        (("h", 20), (3, 3), {"pads": [2, 1, 2, 1], "dilations": [2, 1]}),
        (("h", "w"), (3, 3), {"pads": [1, 3, 1, 3], "dilations": [1, 3]}),
    ],
)
def test_rows_and_columns_of_images_of_any_size(sizes, window, attributes):
    model = network((1, 32, *sizes), (48, 32, *window), **attributes)
    images = [(1, 32, 20, 20)]
    images += [
        (1, 32, *(own if isinstance(own, int) else k for own, k in zip(sizes, other, strict=True)))
        for other in ((3, 7), (41, 38))
    ]
    assert _TILES in check(model, *images)


@pytest.mark.parametrize(
    ("channels", "filters", "stride", "dilation"),
    [(17, 21, 1, 1), (64, 32, 1, 1), (17, 32, 2, 1), (17, 21, 1, 2), (32, 48, 1, 3)],
)
def test_images_of_any_size_are_right(channels, filters, stride, dilation):
    """Fewer tiles than go in a group, whole groups, and some that overlap; tiles past the end."""
    pads = [dilation, dilation - 1, dilation + 1, dilation]
    attributes = {"pads": pads, "strides": [stride] * 2, "dilations": [dilation] * 2}
    model = network(("n", channels, "h", "w"), (filters, channels, 3, 3), **attributes)
    least = (1, channels, 1, dilation + 1)
    check(model, least, (2, channels, 9, 13), (1, channels, 38, 41))


@pytest.mark.parametrize(
    ("channels", "filters", "groups", "attributes"),
    [
        (48, 48, 3, {"pads": [1] * 4}),
        (96, 192, 4, {"pads": [0, 1, 2, 1]}),  # of 24, two of which are convolved as one
        (64, 128, 2, {"pads": [1] * 4, "strides": [2, 2]}),
        (32, 32, 8, {"pads": [2] * 4, "dilations": [2, 2]}),
    ],
)
@pytest.mark.parametrize("sizes", [(2, 13, 11), ("n", 13, 11), ("n", "h", "w")])
def test_groups_of_channels_are_right(channels, filters, groups, attributes, sizes):
    images, *rest = sizes
    shape = (filters, channels // groups, 3, 3)
    model = network((images, channels, *rest), shape, group=groups, **attributes)
    built = convert_and_build(model, steps=always(targets.resolve("llvm")))
    assert "conv2d_winograd" in built.sources()["select"]
    x = feeds((2, channels, 13, 11))
    (want,), (got,) = reference(model, x), built.run(None, x)
    scale = np.abs(x["x"]).max() * 2.4 * shape[1] ** 0.5
    np.testing.assert_allclose(got, want, rtol=0, atol=8 * 2.0**-24 * scale)


def test_groups_weigh_less():
    """Of one block of channels m = 4 pays where images are large, and m = 2 hardly anywhere."""

    def chosen(size, groups):
        conv = Convolution(1, 512, 512, size, size, 16, 16, groups=groups)
        plan = WinogradModel().choose(conv, LLVM)
        return plan.m if plan else 0

    assert [chosen(size, 32) for size in (28, 7)] == [4, 0]
    assert [chosen(size, 1) for size in (28, 7)] == [4, 2]


@pytest.mark.parametrize("image", [(1, 17, 5, 7, 9), (2, 16, 8, 6, 5)])
def test_volumes_are_convolved_frame_by_frame(image):
    around, deep = [1] * 6, {"strides": [2, 1, 1], "dilations": [2, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], pads=around),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], pads=[2, 1, 1, 4, 2, 0], **deep),
        helper.make_node("Conv", ["r0", "w2"], ["c2"], strides=[2, 1, 1], pads=[0, 1, 1, 0, 2, 0]),
        helper.make_node("Concat", ["c1", "c2"], ["c3"], axis=1),
        helper.make_node("Conv", ["c3", "w3"], ["y"], strides=[1, 2, 2], pads=around),
    ]
    shapes = {"w0": (32, image[1], 3, 3, 3), "b0": (32,)}
    shapes |= {"w1": (24, 32, 4, 3, 3), "w2": (5, 32, 1, 3, 3), "w3": (16, 29, 2, 3, 3)}
    model, x = conv_network(nodes, image, shapes), feeds(image)
    built = convert_and_build(model, steps=always(targets.resolve("llvm")))
    assert built.sources()["select"].split("def main(")[1].count("cls.conv2d_winograd") == 4
    (want,) = reference(model, x)
    (got,) = built.run(None, x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("filters", "attributes"),
    [
        ((32, 32, 3, 3), {"strides": [1, 2]}),
        ((32, 32, 3, 3), {"strides": [3, 3]}),
        ((32, 32, 3, 3), {"dilations": [2, 1], "strides": [2, 2]}),
        ((32, 32, 3, 1), {"strides": [2, 1]}),
        ((32, 32, 1, 2), {}),
        ((32, 32, 2, 3), {}),
        ((32, 32, 5, 5), {"pads": [2] * 4, "strides": [2, 2]}),
        ((32, 32, 7, 7), {"pads": [3] * 4}),
        ((32, 1, 3, 3), {"group": 32}),
    ],
)
def test_other_convolutions_stay_direct(filters, attributes):
    assert not selected(network((1, 32, 9, 9), filters, **attributes), always(LLVM))


def test_the_default_model_takes_a_large_layer_and_leaves_a_tiny_one():
    steps = pipeline.default(LLVM, 3)
    assert selected(network((1, 64, 32, 32), (64, 64, 3, 3), pads=[1] * 4), steps)
    assert not selected(network((1, 16, 3, 3), (16, 16, 3, 3), pads=[1] * 4), steps)
