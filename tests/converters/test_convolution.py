"""Conv, ConvTranspose and DeformConv; oracles: onnx.reference in float64, and torch."""

import numpy as np
import pytest
import torch
from onnx import parser

from tests.oracle import check_model, check_node, node_model

RNG = np.random.default_rng(0)


def data(*shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


@pytest.mark.parametrize(
    "x, w, attributes",
    [
        pytest.param((2, 3, 11), (5, 3, 3), {"pads": [2, 1]}, id="1d, asymmetric pads"),
        pytest.param((1, 6, 7, 5), (4, 3, 3, 2), {"group": 2, "strides": [2, 1]}, id="groups"),
        pytest.param((1, 4, 9, 8), (4, 1, 3, 3), {"group": 4, "dilations": [2, 3]}, id="depthwise"),
        pytest.param((2, 2, 5, 4, 6), (3, 2, 2, 3, 1), {"pads": [1, 0, 0, 0, 1, 2]}, id="3d"),
        pytest.param((1, 1, 1, 1), (1, 1, 1, 1), {}, id="one of everything"),
    ],
)
def test_conv(x, w, attributes):
    check_node("Conv", [data(*x), data(*w), data(w[0])], attributes, constants=(1, 2))


@pytest.mark.parametrize("length, kernel, symbolic", [(6, 4, False), (1, 3, True), (5, 1, True)])
def test_causal_conv_with_state(length, kernel, symbolic):
    x, w, b = data(2, 3, length), data(3, 1, kernel), data(3)
    past = data(2, 3, kernel - 1)
    check_node("CausalConvWithState", [x, w, b, past], {"activation": "silu"}, outputs=2,
               symbolic=symbolic)  # fmt: skip
    check_node("CausalConvWithState", [x, w], outputs=2, symbolic=symbolic)


def test_a_causal_step_whose_inputs_have_dims_of_their_own():
    inputs = [data(2, 3, 1), data(3, 1, 4), data(3), data(2, 3, 3)]
    model = node_model("CausalConvWithState", inputs, outputs=2)
    for info in (*model.graph.input, *model.graph.output):
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            dim.dim_param = f"{info.name}_{axis}"
    check_model(model, {f"x{k}": array for k, array in enumerate(inputs)})


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_conv_auto_pad(auto_pad):
    attributes = {"auto_pad": auto_pad, "strides": [2, 3], "dilations": [1, 2]}
    check_node("Conv", [data(1, 2, 7, 8), data(3, 2, 4, 2)], attributes)


def test_conv_auto_pad_over_symbolic_dims():
    x, w = data(2, 3, 7, 10), data(4, 3, 3, 3)
    check_node("Conv", [x, w], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, constants=(1,),
               symbolic=True)  # fmt: skip


def test_conv_sums_narrow_floats_in_float32():
    """2048 products of 1 and 1, then as many of -1: float16 alone would stick at 2048."""
    x = np.ones((1, 4096, 1, 1), "float16")
    w = np.concatenate([np.ones(3072), -np.ones(1024)]).astype("float16").reshape(1, 4096, 1, 1)
    check_node("Conv", [x, w], rtol=0, atol=0, expected=[np.full((1, 1, 1, 1), 2048, "float16")])


@pytest.mark.parametrize(
    "spatial, kernel, attributes",
    [
        pytest.param((5,), (4,), {"strides": [3], "pads": [1, 2]}, id="1d"),
        pytest.param((3, 4), (3, 2), {"strides": [2, 3], "output_padding": [1, 2]}, id="2d"),
        pytest.param((3, 3), (3, 3), {"dilations": [2, 3], "strides": [2, 2]}, id="dilated"),
        pytest.param((2, 3, 2), (2, 1, 3), {"strides": [2, 1, 3]}, id="3d"),
    ],
)
@pytest.mark.parametrize("group", [1, 2])
def test_conv_transpose(spatial, kernel, attributes, group):
    x, w, b = data(2, 4, *spatial), data(4, 3, *kernel), data(3 * group)
    rank = len(spatial)
    pads = attributes.get("pads", [0] * 2 * rank)
    function = [torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d][rank - 1]
    full = function(
        *map(torch.from_numpy, (x, w, b)), attributes.get("strides", 1), 0,
        attributes.get("output_padding", 0), group, attributes.get("dilations", 1),
    ).numpy()  # fmt: skip
    crop = tuple(slice(pads[k], full.shape[2 + k] - pads[rank + k]) for k in range(rank))
    expected = full[(slice(None), slice(None), *crop)]
    check_node("ConvTranspose", [x, w, b], attributes | {"group": group}, expected=[expected],
               atol=1e-5)  # fmt: skip


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("dtype, atol", [("float32", 1e-4), ("float16", 5e-2)])
@pytest.mark.parametrize("group", [1, 4])
def test_conv_transpose_of_blocks_of_channels(group, dtype, atol, symbolic):
    """Weights known at run time only, of which there are enough to fill vectors."""
    x, w, b = (data(*dims).astype(dtype) for dims in ((2, 64, 5, 7), (64, 16, 3, 3), (16 * group,)))
    tensors = (torch.from_numpy(array.astype("float64")) for array in (x, w, b))
    expected = torch.conv_transpose2d(*tensors, 2, 1, 1, group).numpy()
    attributes = {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1], "group": group}
    model = node_model("ConvTranspose", [x, w, b], attributes)
    if symbolic:
        for axis, name in ((0, "n"), (2, "h"), (3, "v")):
            model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
        model.graph.output[0].type.tensor_type.ClearField("shape")
    feeds = {"x0": x, "x1": w, "x2": b}
    check_model(model, feeds, expected=[expected], atol=atol, opt_levels=(0, 3))


@pytest.mark.parametrize(
    "attributes",
    [
        {"output_shape": [10, 8], "strides": [3, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
    ],
)
def test_conv_transpose_output_shape(attributes):
    check_node("ConvTranspose", [data(1, 1, 3, 3), data(1, 2, 3, 3)], attributes)


def test_deform_conv_without_offsets_is_conv():
    x, w = data(1, 4, 6, 5), data(6, 2, 3, 3)
    expected = torch.conv2d(
        torch.from_numpy(x), torch.from_numpy(w), stride=2, padding=1, groups=2
    ).numpy()
    offset = np.zeros((1, 2 * 9 * 2, *expected.shape[2:]), "float32")
    attributes = {"group": 2, "offset_group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1]}
    check_node("DeformConv", [x, w, offset], attributes, expected=[expected], atol=1e-5)


def test_deform_conv_samples_between_and_beyond_pixels():
    x, w, b = data(1, 2, 4, 5), data(3, 2, 2, 2), data(3)
    offset = (2 * data(1, 8, 3, 4)).astype("float32")
    mask = RNG.random((1, 4, 3, 4)).astype("float32")
    check_node("DeformConv", [x, w, offset, b, mask], {"kernel_shape": [2, 2]}, atol=1e-5)


@pytest.mark.parametrize("group, offset_group", [(1, 1), (3, 2), (2, 6)])
def test_deform_conv_of_groups_that_cross(group, offset_group):
    x, w = data(2, 12, 5, 7), data(6, 12 // group, 3, 2)
    offset = (3 * data(2, 12 * offset_group, 5, 8)).astype("float32")
    mask = RNG.random((2, 6 * offset_group, 5, 8)).astype("float32")
    attributes = {"group": group, "offset_group": offset_group, "pads": [1, 1, 1, 1]}
    symbolic = group == 2
    check_node("DeformConv", [x, w, offset, None, mask], attributes, symbolic=symbolic, atol=1e-4,
               constants=() if symbolic else (1,), opt_levels=(3,))  # fmt: skip


@pytest.mark.parametrize("symbolic", [False, True])
def test_conv_transpose_same_with_gaps_between_the_windows(symbolic):
    """As onnxruntime and ONNX's shape inference: the result ends with the last window."""
    x, w = data(1, 1, 3), data(1, 1, 2)
    expected = torch.conv_transpose1d(torch.from_numpy(x), torch.from_numpy(w), stride=3).numpy()
    check_node("ConvTranspose", [x, w], {"auto_pad": "SAME_UPPER", "strides": [3]},
               constants=(1,), symbolic=symbolic, expected=[expected])  # fmt: skip


@pytest.mark.parametrize("dtype, rtol", [("float16", 1e-3), ("bfloat16", 8e-3)])
@pytest.mark.parametrize("group", [1, 16])
def test_narrow_floats_are_summed_in_float32_at_every_level(dtype, rtol, group):
    x, b = data(1, 16, 20, 20).astype(dtype), data(16).astype(dtype)
    w = (data(16, 16 // group, 3, 3) / 12).astype(dtype)
    wide = [torch.from_numpy(array.astype("float64")) for array in (x, w, b)]
    expected = torch.conv2d(*wide, padding=1, groups=group).numpy()
    attributes = {"pads": [1, 1, 1, 1], "group": group}
    check_node("Conv", [x, w, b], attributes, constants=(1, 2), expected=[expected],
               rtol=rtol, atol=1e-4, opt_levels=(0, 2, 3))  # fmt: skip


def test_weights_of_run_time_sizes():
    x, w, b = data(2, 6, 9, 7), data(4, 3, 5, 1), data(4)
    attributes = {"group": 2, "pads": [3, 0, 1, 2], "strides": [2, 3], "dilations": [1, 2]}
    check_node("Conv", [x, w, b], attributes, symbolic=True, opt_levels=(0, 3))
    same = {"auto_pad": "SAME_LOWER", "strides": [3, 1], "group": 2}
    check_node("Conv", [x, w], same, symbolic=True, opt_levels=(3,))
    w = data(6, 2, 4, 3)  # the reference is wrong about more than one channel per group
    attributes = {"pads": [1, 0, 2, 1], "strides": [2, 3], "dilations": [3, 2]}
    check_node("ConvTranspose", [x, w], attributes, symbolic=True, opt_levels=(3,))


@pytest.mark.parametrize("width", [1, 5])
def test_rows_whose_width_is_a_multiple_of_a_symbolic_size(width):
    """No row is narrower than a tile but an empty one, by whose width TVM divided."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[n, 3, 9, w] x) => (float[n, 24, m] y)
        <int64[3] rows = {0, 3, -1}, int64[3] full = {24, 3, 5}> {
          k = ConstantOfShape <value = float[1] {0.1}> (full)
          flat = Reshape (x, rows)
          y = Conv <pads = [2, 2]> (flat, k)
        }"""
    )
    x = data(2, 3, 9, width)
    flat, kernel = torch.from_numpy(x.reshape(2, 3, -1)), torch.full((24, 3, 5), 0.1)
    expected = torch.conv1d(flat, kernel, padding=2).numpy()
    check_model(model, {"x": x}, expected=[expected])


def test_windows_of_one_element_along_symbolic_rows():
    """Without a loop over their elements their sums began with what was in memory."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[n, 2, t] x) => (float[n, 16, m] y)
        <int64[3] full = {16, 1, 1}> {
          k = ConstantOfShape <value = float[1] {0.1}> (full)
          y = Conv <group = 2, pads = [1, 1]> (x, k)
        }"""
    )
    x = data(2, 2, 5)
    expected = np.pad(np.repeat(x * np.float32(0.1), 8, axis=1), ((0, 0), (0, 0), (1, 1)))
    check_model(model, {"x": x}, expected=[expected])
