"""1x1 convolutions in front of what enlarges images, and where they stay behind it."""

import numpy as np
import pytest

from .checking import assert_same, model, operators, rewritten

LINEAR = '<mode = "linear", coordinate_transformation_mode = "half_pixel">'
CUBIC = '<mode = "cubic", coordinate_transformation_mode = "align_corners">'


def network(body, opset=18, filters=8, channels=40, **arrays):
    """``body`` makes k of x[2, 8, 16, 12], a[2, 16, 8, 6] and c[2, 16, 5, 3]; k is convolved."""
    rng = np.random.default_rng(0)
    size = (filters, channels, 1, 1)
    w, b = (rng.normal(size=shape).astype("float32") for shape in (size, filters))
    graph = (
        "g (float[2, 8, 16, 12] x, float[2, 16, 8, 6] a, float[2, 16, 5, 3] c) "
        f"=> (float[2, {filters}, 16, 12] y) {{ {body} y = Conv (k, w, b) }}"
    )
    return model(graph, opset, w=w, b=b, **arrays)


def kept(proto):
    return assert_same(proto, rewritten(proto, 2), rtol=1e-4, atol=1e-4)


TWICE, SIZES = np.array([1, 1, 2, 2], "float32"), np.array([2, 16, 16, 12])


@pytest.mark.parametrize("resize", [LINEAR, CUBIC, '<mode = "nearest">'])
@pytest.mark.parametrize("places", ["r, x, q", "x, r, q", "q, r, x"])
def test_each_image_is_convolved_before_it_grows(resize, places):
    body = f"r = Resize {resize} (a, , s) q = Resize {resize} (c, , , z) k = Concat <axis = 1> "
    proto = network(f"{body} ({places})", s=TWICE, z=SIZES)
    found = kept(proto)
    assert sorted(found) == ["Add", "Add", "Conv", "Conv", "Conv", "Resize", "Resize"]
    assert found.index("Resize") > found.index("Conv")


def test_axes_of_sizes_may_name_the_channels():
    body = 'k = Resize <mode = "nearest", axes = [-1, 1, 2]> (a, , , z)'
    proto = network(body, filters=12, channels=16, z=np.array([12, 16, 16]))
    assert kept(proto) == ["Conv", "Resize"]


@pytest.mark.parametrize("ends", ["0, 2", "0, 2, 0, 1"])
def test_sizes_that_follow_any_number_of_images(ends):
    """As torch writes them: those of the operand, then those of the image."""
    names = ", ".join(f"n{end.strip()}" for end in ends.split(","))
    body = f"""t = Shape (a)  first = Slice (t, {names})  z = Concat <axis = 0> (first, image)
               r = Resize {LINEAR} (a, , , z)  k = Concat <axis = 1> (x, r)"""
    numbers = {f"n{n}": np.array([n]) for n in (0, 1, 2)}
    proto = network(body, channels=24, image=np.array([16, 12]), **numbers)
    for info in proto.graph.input:
        info.type.tensor_type.shape.dim[0].dim_param = "N"
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "N"
    found = [op for op in kept(proto) if op in ("Add", "Conv", "Resize")]
    assert sorted(found) == ["Add", "Conv", "Conv", "Resize"]
    assert found.index("Resize") > found.index("Conv")


def test_plain_images_stay_together():
    body = f"r = Resize {LINEAR} (a, , s) k = Concat <axis = -3> (x, r, x, x)"
    assert sorted(kept(network(body, s=TWICE))) == ["Add", "Concat", "Conv", "Conv", "Resize"]


@pytest.mark.parametrize("filters, body", [
    (40, "r = Resize <mode = \"nearest\"> (a, , s) k = Concat <axis = 1> (r, x, r)"),
    (33, "r = Resize <mode = \"nearest\"> (a, , s) k = Concat <axis = 1> (r, x, x, x)"),
    (8, "t = Resize <mode = \"nearest\"> (a, , s) r = Relu (t) k = Concat <axis = 1> (r, x, x, x)"),
    (8, "r = Resize <mode = \"nearest\"> (x, , i) k = Concat <axis = 1> (r, x, x, x, x)"),
    (8, "r = Resize <mode = \"linear\", coordinate_transformation_mode = \"tf_crop_and_resize\"> "
        "(a, f, s) k = Concat <axis = 1> (r, x, x, x)"),
])  # fmt: skip
def test_what_others_read_or_costs_more_stays(filters, body):
    ones, roi = np.ones(4, "float32"), np.array([0, 0, 0.1, 0.1, 1, 1, 1.5, 0.9], "float32")
    proto = network(body, filters=filters, s=TWICE, i=ones, f=roi)
    assert operators(rewritten(proto, 2)).count("Conv") == 1
