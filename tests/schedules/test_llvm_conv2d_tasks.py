"""What the threads of a blocked convolution share: rows, channels, or rows of some channels."""

import re

import numpy as np
import pytest

from tests.oracle import node_model, reference
from tests.this_cpu import WITHOUT_TILES
from tvm_ext import convert_and_build


def convolution(images, channels, filters, side, window, **attributes):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((images, channels, *side)).astype("float32")
    shape = filters, channels // attributes.get("group", 1), *window
    w = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32")
    return node_model("Conv", [x, w], attributes, constants=[1]), {"x0": x}


def kernel(model, feeds, cores):
    """The convolution's schedule, once its numbers are right."""
    built = convert_and_build(model, WITHOUT_TILES | {"num-cores": cores}, without=["Winograd"])
    (wanted,) = reference(model, feeds)
    for _ in range(2):  # what is padded lies where the first run has written
        np.testing.assert_allclose(built.run(None, feeds)[0], wanted, rtol=1e-4, atol=1e-5)
    kernels = built.sources()["schedule"].split("def ")
    (text,) = (kernel for kernel in kernels if kernel.startswith("conv2d_blocked"))
    return text


def shared(model, feeds, cores):
    """The extents of the convolution's parallel loops."""
    text = kernel(model, feeds, cores)
    return [int(extent) for extent in re.findall(r"T\.parallel\(T\.int64\((\d+)\)\)", text)]


@pytest.mark.parametrize("cores", [2, 3, 4])
@pytest.mark.parametrize(
    ("images", "channels", "filters", "side", "window"),
    [
        (1, 432, 432, (14, 14), (1, 1)),
        (1, 640, 176, (14, 14), (1, 1)),
        (1, 480, 240, (7, 7), (1, 1)),
        (3, 240, 336, (7, 5), (3, 3)),
        (1, 1024, 208, (13, 11), (1, 1)),
    ],
)
def test_threads_get_equal_parts(images, channels, filters, side, window, cores):
    pads = [size // 2 for size in window] * 2
    model, feeds = convolution(images, channels, filters, side, window, pads=pads)
    tasks = shared(model, feeds, cores)[-1]
    assert -(-tasks // cores) * cores <= 1.12 * tasks


@pytest.mark.parametrize(
    ("channels", "filters", "side"),
    [(240, 960, (7, 7)), (480, 512, (14, 14)), (64, 256, (56, 56))],  # channels, channels, rows
)
def test_a_panel_of_weights_serves_a_block_of_rows(channels, filters, side):
    text = kernel(*convolution(1, channels, filters, side, (1, 1)), 2)
    # By these names where tiles are of rows, and where an image's rows are one.
    tile_of_channels, row_in_block = r"(o|ax1)_0(_1)?", "(i0_fused|ax2_0)_1"
    assert re.search(rf"for .*\b{tile_of_channels}, {row_in_block}\b", text)


@pytest.mark.parametrize("window", [1, 3])
def test_a_symbolic_number_of_images(window):
    pads = [window // 2] * 4
    model, feeds = convolution(1, 480, 240, (7, 7), (window, window), pads=pads)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    for images in 1, 3:
        tiled = {"x0": np.tile(feeds["x0"], (images, 1, 1, 1))}
        tasks = shared(model, tiled, 2)[-1]
        assert -(-tasks // 2) * 2 <= 1.12 * tasks


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize(
    ("side", "window", "attributes"),
    [
        ((56, 40), (3, 3), {"pads": [1, 1, 1, 1]}),
        ((57, 33), (3, 3), {"pads": [0, 1, 1, 0], "strides": [2, 2]}),
        ((40, 24), (5, 3), {"pads": [2, 0, 2, 2], "group": 2}),
        ((64, 20), (5, 5), {"pads": [2, 2, 2, 2], "strides": [2, 2]}),
        ((32, 32), (3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    ],
)
def test_tasks_pad_their_own_rows(images, side, window, attributes):
    model, feeds = convolution(images, 16, 32, side, window, **attributes)
    assert len(shared(model, feeds, 2)) == 1


def test_what_many_tasks_see_is_padded_once():
    attributes = {"pads": [12, 12, 12, 12], "dilations": [12, 12]}
    model, feeds = convolution(1, 32, 48, (40, 40), (3, 3), **attributes)
    assert len(shared(model, feeds, 2)) == 2
