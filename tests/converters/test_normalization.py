"""Normalisation; oracles: onnx.reference in float64, and numpy."""

import ml_dtypes
import numpy as np
import pytest
from onnx import parser

from tests.oracle import check_model, check_node
from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError

RNG = np.random.default_rng(0)


def data(*shape, mean=0.0, dtype="float32"):
    return RNG.normal(mean, size=shape).astype(dtype)


def normalised(x, axes, epsilon=1e-5):
    x = x.astype("float64")
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axes, keepdims=True) + epsilon)


# The error of a float32 mean near 1000 is about 6e-5 of the standard deviation.
LARGE_MEAN = {"atol": 1e-3}


@pytest.mark.parametrize("shape", [(2, 3, 37), (1, 1, 5, 7), (2, 2, 3, 1, 5)])
def test_instance_norm_keeps_the_variance_of_a_large_mean(shape):
    x, scale, bias = data(*shape, mean=1000), data(shape[1]), data(shape[1])
    check_node("InstanceNormalization", [x, scale, bias], **LARGE_MEAN)


@pytest.mark.parametrize("dtype, atol", [("float16", 5e-3), ("bfloat16", 4e-2), ("float64", 1e-9)])
def test_instance_norm_types(dtype, atol):
    dtype = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    x = data(2, 3, 6, 5, mean=10).astype(dtype)
    one = np.ones(3, dtype)
    expected = normalised(x, (2, 3)) + 1
    check_node("InstanceNormalization", [x, one, one], expected=[expected], atol=atol, rtol=atol)


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_layer_norm_with_statistics(axis):
    x = data(3, 4, 5, mean=1000)
    scale, bias = data(*x.shape[axis:]), data(5)
    check_node("LayerNormalization", [x, scale, bias], {"axis": axis, "epsilon": 1e-3}, outputs=3,
               **LARGE_MEAN)  # fmt: skip


def test_layer_norm_without_bias_over_symbolic_dims():
    check_node("LayerNormalization", [data(3, 5, 7), data(7)], constants=(1,), symbolic=True)


@pytest.mark.parametrize("constants", [(), (1, 2)])
def test_group_norm(constants):
    x, scale, bias = data(2, 6, 5, 3, mean=100), data(6), data(6)
    grouped = normalised(x.reshape(2, 2, 3, 5, 3), (2, 3, 4)).reshape(x.shape)
    expected = grouped * scale[:, None, None] + bias[:, None, None]
    check_node("GroupNormalization", [x, scale, bias], {"num_groups": 2}, constants=constants,
               expected=[expected], atol=1e-4)  # fmt: skip


def test_rms_norm():
    check_node("RMSNormalization", [data(2, 3, 8), data(3, 8)], {"axis": -2})


@pytest.mark.parametrize("axes", [[0, 2, 3], [1], [0, 1, 2, 3]])
def test_mean_variance_normalization(axes):
    x = data(2, 3, 4, 5, mean=1000)
    expected = normalised(x, tuple(axes), epsilon=0)
    check_node("MeanVarianceNormalization", [x], {"axes": axes}, expected=[expected], **LARGE_MEAN)


def test_axes_that_are_not_there_are_refused():
    text = "<ir_version: 8, opset_import: ['': 13]> g (float[2, 3, 4] x) => (float[2, 3, 4] y) {"
    for node in "MeanVarianceNormalization <axes = [2, 3]> (x)", "LpNormalization <axis = 3> (x)":
        model = parser.parse_model(text.replace("'", '"') + f" y = {node} }}")
        with pytest.raises(ConversionError, match="axis 3 of a tensor of rank 3"):
            convert_and_build(model)


@pytest.mark.parametrize("p, axis", [(1, 0), (2, -1)])
def test_lp_normalization_leaves_zeros(p, axis):
    x = data(3, 4)
    x[1] = x[:, 2] = 0
    norm = np.linalg.norm(x.astype("float64"), p, axis, keepdims=True)
    check_node("LpNormalization", [x], {"p": p, "axis": axis},
               expected=[x / np.where(norm == 0, 1, norm)])  # fmt: skip


@pytest.mark.parametrize("size", [1, 4, 5])
def test_lrn(size):
    """An even size has one channel more after than before."""
    x = data(2, 7, 3, 2)
    square = np.zeros(x.shape)
    for c in range(7):
        low, high = max(0, c - (size - 1) // 2), min(7, c + size // 2 + 1)
        square[:, c] = (x[:, low:high].astype("float64") ** 2).sum(1)
    expected = x / (1.5 + 0.3 / size * square) ** 0.6
    check_node("LRN", [x], {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.5},
               expected=[expected])  # fmt: skip


def batch_norm_inputs(shape=(4, 3, 5)):
    c = shape[1]
    return [data(*shape), data(c), data(c), data(c), RNG.random(c).astype("float32") + 0.1]


@pytest.mark.parametrize("constants", [(), (1, 2, 3, 4)])
@pytest.mark.parametrize("opset", [9, 15])
def test_batch_norm(opset, constants):
    x, *parameters = inputs = batch_norm_inputs()
    s, b, m, v = (p.astype("float64")[:, None] for p in parameters)
    expected = (x - m) / np.sqrt(v + 1e-5) * s + b
    check_node("BatchNormalization", inputs, opset=opset, constants=constants, expected=[expected])


def test_batch_norm_of_a_matrix():
    check_node("BatchNormalization", batch_norm_inputs((4, 3)), constants=(1, 2, 3, 4))


def test_batch_norm_training():
    check_node("BatchNormalization", batch_norm_inputs(), {"training_mode": 1, "momentum": 0.7},
               outputs=3)  # fmt: skip


def test_old_batch_norm_trains_where_statistics_are_asked_for():
    x, scale, bias, mean, variance = inputs = batch_norm_inputs()
    batch = x.mean((0, 2)), x.var((0, 2))
    running = [old * 0.9 + new * 0.1 for old, new in zip((mean, variance), batch, strict=True)]
    y = normalised(x, (0, 2)) * scale[:, None] + bias[:, None]
    check_node("BatchNormalization", inputs, opset=7, outputs=5, expected=[y, *running, *batch])


def test_old_batch_norm_per_element():
    x, parameters = data(4, 3, 2), [data(3, 2) for _ in range(3)]
    variance = RNG.random((3, 2)).astype("float32") + 0.1
    scale, bias, mean = parameters
    expected = (x - mean) / np.sqrt(variance + 1e-5) * scale + bias
    check_node("BatchNormalization", [x, *parameters, variance], {"spatial": 0}, opset=7,
               expected=[expected])  # fmt: skip


def test_batch_norm_constants_of_symbolic_channels():
    x, ones = data(2, 5, 3), np.ones(5, "float32")
    check_node("BatchNormalization", [x, ones, ones, ones, ones], constants=(1, 2, 3, 4),
               symbolic=True)  # fmt: skip


def test_deprecated_versions_are_served():
    """Runtimes run what later opsets took back; GroupNormalization of opset 18 is per group."""
    x, scale, bias = (RNG.normal(size=s).astype("float32") for s in ((2, 6, 5), (3,), (3,)))
    groups = x.reshape(2, 3, 10).astype("float64")
    spread = np.sqrt(groups.var(2, keepdims=True) + 1e-5)
    expected = (groups - groups.mean(2, keepdims=True)) / spread * scale[:, None] + bias[:, None]
    check_node("GroupNormalization", [x, scale, bias], {"num_groups": 3}, opset=18,
               expected=[expected.reshape(x.shape)], opt_levels=(0, 3))  # fmt: skip


@pytest.mark.parametrize("opt_level", [0, 2])
def test_channels_that_only_the_scale_tells(opt_level):
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, c, h, w] x) => (float[n, c, h, w] y) <float[3] s = {1, 2, 3}> {
            r = Relu(x)  i = InstanceNormalization(r, s, s)  y = Add(i, r)
        }
    """)
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 4), "float32")
    check_model(model, {"x": x}, opt_levels=[opt_level])
    with pytest.raises(RuntimeError):
        convert_and_build(model, "llvm", opt_level=opt_level)(x[:, :2])
