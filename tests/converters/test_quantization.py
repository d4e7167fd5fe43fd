"""Quantisation; oracles: numpy and ml_dtypes in exact arithmetic, onnx.reference."""

import ml_dtypes
import numpy as np
import pytest
from onnx.numpy_helper import saturate_cast

from tests.oracle import check_node

RNG = np.random.default_rng(0)
FLOAT8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]


def quantised(x, scale, zero, dtype):
    info = np.iinfo(dtype)
    return np.clip(np.rint(x.astype("float64") / scale) + zero, info.min, info.max).astype(dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_per_tensor_rounds_to_even_and_saturates(dtype):
    x = np.array([-0.5, 0.5, 1.5, 2.5, 1e20, -1e20, 254.5], "float32")
    scale, zero = np.float32(1), np.array(3, dtype)
    check_node("QuantizeLinear", [x, np.array(scale), zero],
               expected=[quantised(x, scale, 3, dtype)], rtol=0)  # fmt: skip


def test_a_number_by_a_scale_that_has_a_dim():
    x, scale, zero = np.array(1.3, "float32"), np.float32([0.5]), np.int8([4])
    code = np.array(7, "int8")
    check_node("QuantizeLinear", [x, scale, zero], expected=[code])
    check_node("DequantizeLinear", [code, scale, zero], expected=[np.array(1.5, "float32")])


@pytest.mark.parametrize("axis", [0, -1])
def test_per_axis(axis):
    x = RNG.normal(size=(3, 4, 3)).astype("float32")
    scale, zero = np.array([0.01, 0.5, 0.02], "float32"), np.array([0, -7, 9], "int8")
    along = (3, 1, 1) if axis == 0 else (1, 1, 3)
    y = quantised(x, scale.reshape(along).astype("float64"), zero.reshape(along), "int8")
    check_node("QuantizeLinear", [x, scale, zero], {"axis": axis}, expected=[y], rtol=0)
    back = (y.astype("float64") - zero.reshape(along)) * scale.reshape(along)
    check_node("DequantizeLinear", [y, scale, zero], {"axis": axis}, expected=[back])


def test_blocks_with_a_partial_last_one():
    x = RNG.normal(size=(2, 7)).astype("float32")
    scale = RNG.uniform(0.01, 0.1, (2, 3)).astype("float32")
    wide = scale.repeat(3, 1)[:, :7]
    y = quantised(x, wide, 0, "int8")
    attributes = {"axis": 1, "block_size": 3}
    zero = np.zeros((2, 3), "int8")
    check_node("QuantizeLinear", [x, scale, zero], attributes, expected=[y], rtol=0, opset=23)
    check_node("DequantizeLinear", [y, scale], attributes, expected=[y * wide], opset=23)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_float8_code(dtype):
    dtype = np.dtype(getattr(ml_dtypes, dtype))
    codes = np.arange(256, dtype="uint8").view(dtype)
    one = np.array(1, "float32")
    check_node("DequantizeLinear", [codes, one], expected=[codes.astype("float32")], rtol=0)

    values = codes.astype("float32")
    between = (values[:-1] + values[1:]) / 2  # ties, subnormal ones included
    x = np.concatenate([values, between, [1e-9, -1e-9, 1e9, -1e9]]).astype("float32")
    # saturate_cast knows no code of these types for infinity.
    x = x[~np.isinf(x)]
    zero = np.zeros((), dtype)
    check_node("QuantizeLinear", [x, one, zero],
               expected=[saturate_cast(x, dtype).astype("float32")], rtol=0, atol=0)  # fmt: skip


@pytest.mark.parametrize("x", [[0.0, 2, -3, 7.25], [1.0, 2, 3], [-5.0, -1], [0.0, 0]])
def test_dynamic_range_contains_zero(x):
    x = np.array(x, "float32")
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32(high - low) / np.float32(255) if high > low else np.float32(1)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    y = np.clip(np.rint(x / scale) + zero, 0, 255).astype("uint8")
    check_node("DynamicQuantizeLinear", [x], outputs=3, expected=[y, scale, zero.astype("uint8")])


def integers(*shape, dtype="uint8"):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


@pytest.mark.parametrize("zero_a", [np.array(12, "uint8"), integers(3), None])
def test_matmul_integer(zero_a):
    a, b, zero_b = integers(2, 3, 5), integers(5, 4, dtype="int8"), integers(4, dtype="int8")
    left = a.astype("int32") - (0 if zero_a is None else zero_a.astype("int32").reshape(-1, 1))
    expected = (left @ (b.astype("int32") - zero_b)).astype("int32")
    check_node("MatMulInteger", [a, b, zero_a, zero_b], expected=[expected], rtol=0)


@pytest.mark.parametrize("symbolic", [False, True])
def test_qlinear_matmul(symbolic):
    a, b = integers(4, 6), integers(6, 3, dtype="int8")
    scales = np.array([0.02], "float32"), np.array([0.01, 0.02, 0.03], "float32")
    zeros = np.array([100], "uint8"), np.array([1, 0, -3], "int8")
    y_scale, y_zero = np.array(0.1, "float32"), np.array(120, "uint8")
    total = (a.astype("int64") - zeros[0]) @ (b.astype("int64") - zeros[1])
    expected = quantised(total * (scales[0] * scales[1].astype("float64")), y_scale, 120, "uint8")
    check_node("QLinearMatMul", [a, scales[0], zeros[0], b, scales[1], zeros[1], y_scale, y_zero],
               expected=[expected], symbolic=symbolic, rtol=0, atol=1)  # fmt: skip


def convolved(x, w, stride):
    """NCHW convolution in int64, pads of one pixel of zeros."""
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    return np.einsum("nchwyx,mcyx->nmhw", windows[:, :, ::stride, ::stride], w)


def test_integer_convolutions_pad_with_the_zero_point():
    x, w = integers(1, 3, 6, 5), integers(4, 3, 3, 3, dtype="int8")
    x_zero, w_zero = np.array(77, "uint8"), np.array([1, 0, -2, 5], "int8")
    total = convolved(x.astype("int64") - 77, w.astype("int64") - w_zero[:, None, None, None], 2)
    attributes = {"pads": [1] * 4, "strides": [2, 2]}
    check_node("ConvInteger", [x, w, x_zero, w_zero], attributes, expected=[total], rtol=0)

    x_scale, y_scale = np.array(0.05, "float32"), np.array(2.5, "float32")
    w_scale, y_zero = RNG.uniform(0.01, 0.1, 4).astype("float32"), np.array(100, "uint8")
    bias = integers(4, dtype="int16").astype("int32")
    factor = 0.05 * w_scale.astype("float64")[:, None, None]
    y = quantised((total + bias[:, None, None]) * factor, 2.5, 100, "uint8")
    inputs = [x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias]
    check_node("QLinearConv", inputs, attributes, expected=[y], rtol=0, atol=1)


@pytest.mark.parametrize("dtype", ["int2", "int4", "uint2", "uint4"])
@pytest.mark.parametrize("constants", [(), (0, 1, 2)])
def test_integers_narrower_than_a_byte(dtype, constants):
    dtype = getattr(ml_dtypes, dtype)
    info = ml_dtypes.iinfo(dtype)
    codes = np.arange(info.min, info.max + 1).astype(dtype)
    scale, zero = np.array(0.5, "float32"), np.array(1, dtype)
    value = (codes.astype("float32") - 1) * 0.5
    check_node("DequantizeLinear", [codes, scale, zero], constants=constants[:3], expected=[value])
    x = np.concatenate([value, [-99, 99]]).astype("float32")
    want = np.clip(np.rint(x / 0.5) + 1, info.min, info.max)
    check_node("QuantizeLinear", [x, scale, zero], constants=constants[1:], expected=[want])
