"""GridSample, AffineGrid and RoiAlign; oracles: torch, onnx.reference."""

import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn import functional

from tests.oracle import check_node, node_model

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_grid_sample(mode, padding_mode, align_corners):
    x = RNG.normal(size=(1, 2, 4, 5)).astype("float32")
    grid = RNG.uniform(-1.7, 1.7, (1, 3, 4, 2)).astype("float32")
    # Of a cubic at the border torch and onnxruntime clamp the pixels, onnx.reference the point.
    torch_mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    tensors = torch.from_numpy(x), torch.from_numpy(grid)
    want = functional.grid_sample(*tensors, torch_mode, padding_mode, bool(align_corners)).numpy()
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    check_node("GridSample", [x, grid], attributes, expected=[want], atol=1e-5, opset=20)


@pytest.mark.parametrize(
    "mode, padding_mode", [("linear", "zeros"), ("linear", "border"), ("cubic", "reflection")]
)
def test_grid_sample_of_many_channels(mode, padding_mode):
    x = RNG.normal(size=(2, 19, 7, 5)).astype("float32")
    if mode == "linear":
        x[0, 3, 0, 0], x[1, 2, 6, 4] = np.inf, np.nan  # corners, which no point outside may meet
    grid = RNG.uniform(-1.7, 1.7, (2, 11, 6, 2)).astype("float32")
    tensors = torch.from_numpy(x), torch.from_numpy(grid)
    torch_mode = {"linear": "bilinear", "cubic": "bicubic"}[mode]
    want = functional.grid_sample(*tensors, torch_mode, padding_mode, False).numpy()
    attributes = {"mode": mode, "padding_mode": padding_mode}
    check_node(
        "GridSample", [x, grid], attributes, expected=[want], atol=1e-5, opset=20, opt_levels=(3,)
    )


@pytest.mark.parametrize("channels", [1, 8])
def test_grid_sample_of_a_volume(channels):
    x = RNG.normal(size=(2, channels, 3, 4, 5)).astype("float32")
    grid = RNG.uniform(-1.2, 1.2, (2, 2, 1, 3, 3)).astype("float32")
    want = functional.grid_sample(torch.from_numpy(x), torch.from_numpy(grid), align_corners=False)
    check_node("GridSample", [x, grid], expected=[want.numpy()], atol=1e-5)


@pytest.mark.parametrize("align_corners", [0, 1])
def test_affine_grid(align_corners):
    theta = RNG.normal(size=(2, 2, 3)).astype("float32")
    want = functional.affine_grid(torch.from_numpy(theta), (2, 1, 4, 5), bool(align_corners))
    size = np.array([2, 1, 4, 5])
    check_node("AffineGrid", [theta, size], {"align_corners": align_corners}, constants=(1,),
               expected=[want.numpy()])  # fmt: skip


@pytest.mark.parametrize("sampling_ratio", [0, 2])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_roi_align(sampling_ratio, coordinates):
    channels = 19 if (sampling_ratio == 0) == (coordinates == "half_pixel") else 3
    x = RNG.normal(size=(2, channels, 8, 9)).astype("float32")
    rois = np.array([[0, 0, 6, 6], [2, 1, 8, 5], [3, 3, 4, 4]], "float32")
    attributes = {"output_height": 3, "output_width": 2, "sampling_ratio": sampling_ratio,
                  "coordinate_transformation_mode": coordinates}  # fmt: skip
    check_node("RoiAlign", [x, rois, np.array([0, 1, 1])], attributes, atol=1e-5)


def test_largest_corner_of_a_region_in_many_channels():
    x = RNG.normal(size=(1, 17, 6, 7)).astype("float32")
    rois = np.array([[0.5, 1, 5, 4.5], [2, 2, 2.5, 3]], "float32")
    attributes = {"output_height": 2, "output_width": 3, "sampling_ratio": 2, "mode": "max"}
    model = node_model("RoiAlign", [x, rois, np.array([0, 0])], attributes, opset=16)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    want = session.run(None, {"x0": x, "x1": rois, "x2": np.array([0, 0])})
    check_node("RoiAlign", [x, rois, np.array([0, 0])], attributes, opset=16, expected=want,
               atol=1e-5)  # fmt: skip


@pytest.mark.parametrize("height, width, channels", [(8, 7, 3), (50, 50, 16)])
def test_max_roi_pool(height, width, channels):
    """Oracle: onnxruntime. Regions reach beyond the image, and cells are empty."""
    x = RNG.normal(size=(2, channels, height, width)).astype("float32")
    rois = np.array([[0, 0, 0, 6, 7], [1, 2, 1, 5.4, 3], [1, 6, 6, 9, 12]], "float32")
    attributes = {"pooled_shape": [3, 2], "spatial_scale": 0.9}
    model = node_model("MaxRoiPool", [x, rois], attributes, opset=21)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    want = session.run(None, {"x0": x, "x1": rois})
    check_node("MaxRoiPool", [x, rois], attributes, opset=21, expected=want)
