"""Resize in its modes: static scales, symbolic dims, run-time sizes; Upsample."""

import numpy as np
import pytest
from onnx import parser

from tests.onnxruntime_oracle import check_against_onnxruntime, run_onnxruntime
from tests.oracle import check_node
from tvm_ext import convert_and_build

X = np.random.default_rng(0).normal(size=(1, 2, 5, 7)).astype("float32")


def scales(*values):
    return np.array(values, "float32")


def sizes(*values):
    return np.array(values, "int64")


@pytest.mark.parametrize(
    "mode, coordinates",
    [
        ("nearest", "asymmetric"),
        ("nearest", "half_pixel"),
        ("linear", "half_pixel"),
        ("linear", "align_corners"),
        ("linear", "pytorch_half_pixel"),
        ("cubic", "half_pixel"),
        ("cubic", "asymmetric"),
        ("linear", "half_pixel_symmetric"),
    ],
)
@pytest.mark.parametrize("known, symbolic", [(True, False), (True, True), (False, False)])
def test_modes(mode, coordinates, known, symbolic):
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    constants = [2] if known else []
    check_node(
        "Resize",
        [X, None, scales(1, 1, 2.7, 0.6)],
        attributes,
        constants=constants,
        symbolic=symbolic,
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("symbolic", [(), True])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel"])
@pytest.mark.parametrize("mode", ["nearest", "cubic"])
def test_scales_are_float32(mode, coordinates, symbolic):
    # 5 * 2.6 is 13 and 3 / 0.6 is 5; in float64, of these float32, both are less.
    x = np.random.default_rng(1).normal(size=(1, 2, 5, 10)).astype("float32")
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = "floor"
    check_against_onnxruntime(
        "Resize",
        [x, None, scales(1, 1, 2.6, 0.6)],
        attributes,
        constants=(2,),
        symbolic=symbolic,
        domain="",
        rtol=1e-4,
    )


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_nearest_modes(rounding):
    attributes = {"mode": "nearest", "nearest_mode": rounding}
    check_node("Resize", [X, None, scales(1, 1, 2, 3)], attributes, constants=[2])
    check_node("Resize", [X, None, None, sizes(1, 2, 3, 10)], attributes, constants=[3])


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("constants", [[3], []])
def test_antialias(mode, constants):
    check_node(
        "Resize",
        [X, None, None, sizes(2, 3)],
        {"mode": mode, "antialias": 1, "axes": [2, 3], "exclude_outside": 1},
        constants=constants,
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("constants", [[3], []])
def test_kept_aspect_ratio(policy, constants):
    check_node(
        "Resize",
        [X, None, None, sizes(9, 8)],
        {"mode": "nearest", "keep_aspect_ratio_policy": policy, "axes": [3, 2]},
        constants=constants,
    )


@pytest.mark.parametrize("constants", [[1, 3], [3]])
def test_crop_and_resize(constants):
    region = np.array([0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7], "float32")
    check_node(
        "Resize",
        [X, region, None, sizes(1, 2, 3, 4)],
        {
            "mode": "linear",
            "coordinate_transformation_mode": "tf_crop_and_resize",
            "extrapolation_value": 10.0,
        },
        constants=constants,
        rtol=1e-4,
        atol=1e-5,
        opt_levels=(0, 3),
    )


@pytest.mark.parametrize("given", [scales(1, 1, 1.3, 0.7), sizes(1, 2, 3, 7)])
def test_places_that_are_computed_of_symbolic_sizes(given):
    """TVM's analysis of what names stand for failed of such floats."""
    crop = {"mode": "nearest", "coordinate_transformation_mode": "tf_crop_and_resize"}
    region = np.array([0, 0, 0, 0.26, 1, 1, 1, 1.04], "float32")
    antialias = {"mode": "cubic", "coordinate_transformation_mode": "asymmetric", "antialias": 1}
    for attributes, roi in ((crop, region), (antialias, None)):
        inputs = [X, roi, given] if given.dtype == np.float32 else [X, roi, None, given]
        check_node("Resize", inputs, attributes, constants=[1, 2, 3], symbolic=True,
                   opt_levels=(0, 3), rtol=1e-4, atol=1e-5)  # fmt: skip


def test_integers_round_and_saturate():
    x = np.array([[[[0, 255, 0]]]], "uint8")
    check_node("Resize", [x, None, scales(1, 1, 1, 2)], {"mode": "cubic"}, constants=[2])


def test_older_opsets():
    doubled = X.repeat(2, 2).repeat(3, 3)
    factors = scales(1, 1, 2, 3)
    check_node("Upsample", [X], {"scales": [1.0, 1.0, 2.0, 3.0]}, opset=7, expected=[doubled])
    check_node("Upsample", [X, factors], opset=9, constants=[1], expected=[doubled])
    check_node("Resize", [X, factors], opset=10, constants=[1], expected=[doubled])
    check_node(
        "Resize",
        [X, scales(), factors],
        {"mode": "nearest"},
        opset=11,
        constants=[1, 2],
        expected=[doubled],
    )


@pytest.mark.parametrize("opset", [11, 13, 19])
def test_scales_without_elements_are_left_out(opset):
    """As PaddlePaddle's exporter writes them at every opset."""
    inputs = [X, scales(), scales(), sizes(1, 2, 7, 9)]
    check_node("Resize", inputs, {"mode": "linear"}, opset=opset, constants=[1, 2, 3])


@pytest.mark.parametrize("target", [(9, 4), (3, 11)])
def test_channels_side_by_side_are_resized_along_all_axes_at_once(target):
    images = np.random.default_rng(1).normal(size=(1, 4, 5, 7)).astype("float32")
    attributes = {"mode": "linear", "axes": [2, 3]}
    check_node("Resize", [images, None, None, sizes(*target)], attributes, constants=[3],
               rtol=1e-4, atol=1e-5)  # fmt: skip


def test_tokens_are_resized_axis_by_axis():
    """Their channels do not lie side by side: at once, each element would be gathered."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,15,4] tokens) => (float[1,4,11,7] y) {
      turned = Transpose<perm = [0, 2, 1]>(tokens)
      dims = Constant<value_ints = [1, 4, 5, 3]>()
      image = Reshape(turned, dims)
      size = Constant<value_ints = [1, 4, 11, 7]>()
      y = Resize<mode = "linear">(image, , , size)
    }""")
    tokens = np.random.default_rng(1).normal(size=(1, 15, 4)).astype("float32")
    compiled = convert_and_build(model, "llvm")
    (want,) = run_onnxruntime(model, {"tokens": tokens})
    np.testing.assert_allclose(compiled(tokens), want, rtol=1e-4, atol=1e-5)
    symbols = [kernel.symbol for kernel in compiled.executor.plan.kernels]
    assert sum("weighted" in symbol for symbol in symbols) == 2
