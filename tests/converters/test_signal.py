"""Fourier transforms and windows (oracle: numpy); Col2Im (torch) and TensorScatter (numpy)."""

import numpy as np
import pytest
import torch

from tests.oracle import check_model, check_node, node_model
from tvm_ext import convert_and_build
from tvm_ext.errors import RunError

RNG = np.random.default_rng(0)


def pairs(z):
    return np.stack([z.real, z.imag], -1)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("length", [5, 7, 12])
def test_dft(axis, length):
    """Lengths that cut, keep and pad."""
    x = RNG.normal(size=(2, 7, 7, 2)).astype("float32")
    want = pairs(np.fft.fft(x[..., 0] + 1j * x[..., 1], length, axis))
    check_node("DFT", [x, np.array(length), np.array(axis)], constants=(1, 2), expected=[want],
               atol=1e-5)  # fmt: skip


def test_dft_of_a_real_signal_and_back():
    x = RNG.normal(size=(3, 11, 1)).astype("float32")
    check_node("DFT", [x], {"onesided": 1, "axis": 1}, opset=17,
               expected=[pairs(np.fft.rfft(x[..., 0]))], atol=1e-5)  # fmt: skip
    z = pairs(np.fft.fft(x[..., 0])).astype("float32")
    check_node("DFT", [z], {"inverse": 1, "axis": 1}, opset=17,
               expected=[np.concatenate([x, np.zeros_like(x)], -1)], atol=1e-5)  # fmt: skip


@pytest.mark.parametrize("onesided", [0, 1])
def test_stft(onesided):
    x, window = RNG.normal(size=(2, 33, 1)).astype("float32"), np.hanning(8).astype("float32")
    frames = np.lib.stride_tricks.sliding_window_view(x[..., 0], 8, 1)[:, ::5] * window
    want = pairs((np.fft.rfft if onesided else np.fft.fft)(frames))
    for signal in (x, x[..., 0]):  # torch's exporter leaves out the last axis
        check_node("STFT", [signal, np.array(5), window], {"onesided": onesided}, constants=(1, 2),
                   expected=[want], atol=1e-5)  # fmt: skip


def test_stft_is_one_sided_by_default():
    """onnx's own shape inference takes it for two-sided."""
    x = RNG.normal(size=(1, 12)).astype("float32")
    model = node_model("STFT", [x[..., None], np.array(4), None, np.array(8)], constants=(1, 3))
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 5
    frames = np.stack([x[:, :8], x[:, 4:]], 1)
    check_model(model, {"x0": x[..., None]}, expected=[pairs(np.fft.rfft(frames))], atol=1e-5,
                opt_levels=(0, 3))  # fmt: skip


@pytest.mark.parametrize(
    "length, axis, symbolic", [(60, 1, False), (67, 0, False), (1021, 1, True)]
)
def test_dft_by_its_factors(length, axis, symbolic):
    """Of two factors, of one, and of a prime that is too large; there and back."""
    x = RNG.normal(size=(3, 64, 2)).astype("float32")
    inputs = [x, np.array(length), np.array(axis)]
    z = np.fft.fft(x[..., 0] + 1j * x[..., 1], length, axis)
    check_node("DFT", inputs, constants=(1, 2), expected=[pairs(z)], atol=1e-5, symbolic=symbolic)
    back = np.fft.ifft(x[..., 0] + 1j * x[..., 1], length, axis)
    check_node("DFT", inputs, {"inverse": 1}, constants=(1, 2), expected=[pairs(back)], atol=1e-6)


@pytest.mark.parametrize("op_type", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(op_type, periodic):
    check_node(op_type, [np.array(9)], {"periodic": periodic})


# 40 bands of 32 bins: corners that fall together.
@pytest.mark.parametrize("constants", [range(5), ()])
@pytest.mark.parametrize("bands", [8, 40])
def test_mel_weight_matrix(bands, constants):
    inputs = [np.array(bands), np.array(64), np.array(8192), np.float32(0), np.float32(4096)]
    inputs[3:] = [np.asarray(edge) for edge in inputs[3:]]
    check_node("MelWeightMatrix", [*inputs], constants=constants)


@pytest.mark.parametrize("constants", [(1, 2), ()])
def test_col2im_is_fold(constants):
    x = RNG.normal(size=(2, 3 * 6, 9)).astype("float32")
    want = torch.nn.functional.fold(torch.from_numpy(x), (6, 8), (2, 3), (2, 1), (1, 0), (2, 2))
    attributes = {"dilations": [2, 1], "pads": [1, 0, 1, 0], "strides": [2, 2]}
    check_node("Col2Im", [x, np.array([6, 8]), np.array([2, 3])], attributes, constants=constants,
               expected=[want.numpy()])  # fmt: skip


def test_col2im_of_blocks_without_elements_is_an_error():
    x = np.ones((1, 6, 9), "float32")
    model = convert_and_build(node_model("Col2Im", [x, np.array([6, 8]), np.array([2, 3])]))
    with pytest.raises(RunError):
        model(x, np.array([6, 8]), np.array([0, 3]))


def test_tensor_scatter_wraps_around():
    cache, update = RNG.normal(size=(2, 5, 3)).astype("float32"), np.ones((2, 2, 3), "float32")
    want = cache.copy()
    want[0, [1, 2]] = want[1, [4, 0]] = 1
    check_node("TensorScatter", [cache, update, np.array([1, 4])], {"mode": "circular"},
               expected=[want])  # fmt: skip


@pytest.mark.parametrize("axis", [0, -2])
def test_axis_at_run_time(axis):
    x = RNG.normal(size=(3, 7, 2)).astype("float32")
    want = pairs(np.fft.fft(x[..., 0] + 1j * x[..., 1], 5, axis if axis >= 0 else axis + 1))
    check_node("DFT", [x, np.array(5), np.array(axis)], expected=[want], atol=1e-5)


@pytest.mark.parametrize("length", [5, 6, 48, 62])
def test_back_from_half_of_the_frequencies(length):
    half = np.fft.rfft(RNG.normal(size=(2, length, 3)), axis=1)
    inputs = [pairs(half).astype("float32"), np.array(length), np.array(1)]
    check_node("DFT", inputs, {"inverse": 1, "onesided": 1}, constants=(1, 2), atol=1e-5,
               expected=[np.fft.irfft(half, length, 1)[..., None]])  # fmt: skip
