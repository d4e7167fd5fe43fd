"""Pooling; oracles: torch, onnxruntime where torch has no such option, numpy for indices."""

import re

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch.nn import functional
from tvm import tirx
from tvm_ext.frontend.window import resolve

from tests.oracle import check_model, check_node, node_model
from tvm_ext import convert_and_build
from tvm_ext.errors import RunError

RNG = np.random.default_rng(0)


def data(*shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


def check_against_onnxruntime(op_type, x, attributes, opset=22, **options):
    """onnxruntime counts what a partial window has beyond the end pad as torch does not."""
    model = node_model(op_type, [x], attributes, opset=opset, **options)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    check_model(model, {"x0": x}, expected=session.run(None, {"x0": x}))


MAX = [functional.max_pool1d, functional.max_pool2d, functional.max_pool3d]
AVERAGE = [functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d]


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize(
    "shape, kernel, stride, pad, dilation",
    [
        pytest.param((2, 3, 11), 3, 2, 1, 2, id="1d"),
        pytest.param((1, 2, 8, 7), 3, 2, 1, 1, id="2d"),
        pytest.param((1, 2, 9, 11), 2, 3, 0, 2, id="2d dilated"),
        pytest.param((1, 1, 5, 6, 4), 2, 2, 1, 1, id="3d"),
    ],
)
def test_max_pool(shape, kernel, stride, pad, dilation, ceil_mode):
    x, rank = data(*shape), len(shape) - 2
    want = MAX[rank - 1](torch.from_numpy(x), kernel, stride, pad, dilation, bool(ceil_mode))
    attributes = {"kernel_shape": [kernel] * rank, "strides": [stride] * rank,
                  "pads": [pad] * 2 * rank, "dilations": [dilation] * rank,
                  "ceil_mode": ceil_mode}  # fmt: skip
    check_node("MaxPool", [x], attributes, expected=[want.numpy()])


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 16, 5, 7), (1, 2, 3, 2, 4)])
def test_the_global_maximum_is_nan_where_there_is_one(shape):
    x = data(*shape)
    x[0, 1, -1] = np.nan
    expected = x.max(axis=tuple(range(2, x.ndim)), keepdims=True)
    check_node("GlobalMaxPool", [x], expected=[expected], opt_levels=(0, 3))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_the_average_of_a_window_of_pads_alone(size, symbolic):
    """NaN, as in onnx.reference; onnxruntime gives 0."""
    attributes = {"kernel_shape": [2], "dilations": [2], "pads": [1, 1]}
    check_node("AveragePool", [data(1, 3, size)], attributes, symbolic=symbolic, opt_levels=(0, 3))
    attributes = {"kernel_shape": [2], "pads": [0, 4]}
    check_node("AveragePool", [data(1, 3, size)], attributes, symbolic=symbolic, opt_levels=(0, 3))


@pytest.mark.parametrize("storage_order", [0, 1])
def test_max_pool_indices_name_the_first_of_equals(storage_order):
    x = RNG.integers(0, 3, (2, 2, 6, 5)).astype("float32")
    want, places = functional.max_pool2d(torch.from_numpy(x), 3, 2, 1, return_indices=True)
    places = places.numpy()
    if storage_order:
        places = places // 5 + places % 5 * 6
    places = places + np.arange(4).reshape(2, 2, 1, 1) * 30
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1],
                  "storage_order": storage_order}  # fmt: skip
    check_node("MaxPool", [x], attributes, outputs=2, expected=[want.numpy(), places])


@pytest.mark.parametrize(("kernel", "pads"), [(2, [0, 0]), (3, [1, 1]), (2, [1, 1]), (3, [0, 2])])
def test_the_sizes_of_pools_that_round_up_one_after_another(kernel, pads):
    """A formula in which the size before it is there twice doubles with each."""
    window = resolve([1], [kernel], [2], None, pads, "NOTSET")
    dim = tirx.Var("n", "int64")
    for _ in range(7):
        (dim,) = window.outputs([dim], ceil_mode=1)
    assert re.findall(r"\bn\b", str(dim)) == ["n"]


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
def test_windows_wider_than_the_padded_image(op_type):
    """Onnxruntime and the inference of onnx divide towards 0, where ONNX rounds down."""
    x = data(1, 2, 3)
    for kernel, ceil_mode, count in [(4, 0, 0), (5, 0, 0), (4, 1, 1), (5, 1, 0)]:
        attributes = {"kernel_shape": [kernel], "strides": [2], "ceil_mode": ceil_mode}
        if count:
            check_against_onnxruntime(op_type, x, attributes)
        else:
            check_node(op_type, [x], attributes, expected=[x[..., :0]])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "float64"])
def test_max_pool_types(dtype):
    x = RNG.integers(-100 if dtype != "uint8" else 0, 100, (1, 2, 5, 5)).astype(dtype)
    want = functional.max_pool2d(torch.from_numpy(x.astype("float64")), 2, 1, 1).numpy()
    check_node("MaxPool", [x], {"kernel_shape": [2, 2], "pads": [1] * 4}, expected=[want])


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
def test_auto_pad(op_type, auto_pad):
    attributes = {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": auto_pad}
    check_against_onnxruntime(op_type, data(1, 2, 8, 7), attributes)


@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("shape", [(2, 3, 10), (1, 2, 8, 9), (1, 1, 5, 6, 4)])
def test_average_pool(shape, ceil_mode, count_include_pad):
    x, rank = data(*shape), len(shape) - 2
    want = AVERAGE[rank - 1](torch.from_numpy(x), 3, 2, 1, bool(ceil_mode), bool(count_include_pad))
    attributes = {"kernel_shape": [3] * rank, "strides": [2] * rank, "pads": [1] * 2 * rank,
                  "ceil_mode": ceil_mode, "count_include_pad": count_include_pad}  # fmt: skip
    check_node("AveragePool", [x], attributes, expected=[want.numpy()])


@pytest.mark.parametrize("count_include_pad", [0, 1])
def test_dilated_average_pool(count_include_pad):
    """A constant image stays constant where pads do not count."""
    x = np.ones((1, 1, 6, 5), "float32")
    padded = np.pad(x, ((0, 0), (0, 0), (2, 0), (0, 2)))
    taps = [padded[:, :, i : i + 6, j : j + 5] for i in (0, 2) for j in (0, 2)]
    want = sum(taps) / 4 if count_include_pad else x
    attributes = {"kernel_shape": [2, 2], "dilations": [2, 2], "pads": [2, 0, 0, 2]}
    check_node("AveragePool", [x], attributes | {"count_include_pad": count_include_pad},
               expected=[want])  # fmt: skip


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(p):
    x = data(1, 2, 6, 7)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("float64"), (3, 2), (2, 3))
    want = (np.abs(windows[:, :, ::2]) ** p).sum((-1, -2)) ** (1 / p)
    attributes = {"kernel_shape": [3, 2], "strides": [2, 1], "p": p}
    check_node("LpPool", [x], attributes, expected=[want])


@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global_pools(op_type):
    x = data(2, 3, 5, 4)
    expected = {
        "GlobalAveragePool": x.mean((2, 3), "float64", keepdims=True),
        "GlobalMaxPool": x.max((2, 3), keepdims=True),
        "GlobalLpPool": np.sqrt((x.astype("float64") ** 2).sum((2, 3), keepdims=True)),
    }[op_type]
    check_node(op_type, [x], symbolic=True, expected=[expected])


def test_pools_over_symbolic_dims():
    x = data(2, 3, 8, 9)
    want = functional.avg_pool2d(torch.from_numpy(x), 3, 2, 1).numpy()
    check_node("AveragePool", [x], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4,
               "count_include_pad": 1}, symbolic=True, expected=[want])  # fmt: skip


def test_max_unpool_undoes_max_pool():
    x = torch.from_numpy(data(1, 2, 6, 4))
    y, places = functional.max_pool2d(x, 2, return_indices=True)
    want = functional.max_unpool2d(y, places, 2).numpy()
    # torch numbers each channel on its own.
    places = places.numpy() + np.arange(2).reshape(1, 2, 1, 1) * 24
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    check_node("MaxUnpool", [y.numpy(), places], attributes, expected=[want])


def test_max_unpool_into_a_larger_image():
    """Places count in the image that the windows give; one of another channel is refused."""
    x, places = data(2, 2, 2, 2), np.arange(16).reshape(2, 2, 2, 2) * 4
    want = np.zeros((2, 2, 16), "float32")
    for n, c, i in np.ndindex(2, 2, 4):
        place = places.reshape(2, 2, 4)[n, c, i] - (2 * n + c) * 16
        want[n, c, place] = x.reshape(2, 2, 4)[n, c, i]
    want = np.pad(want.reshape(2, 2, 4, 4), [(0, 0), (0, 0), (0, 1), (0, 3)])
    inputs = [x, places, np.array([2, 2, 5, 7])]
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    check_node("MaxUnpool", inputs, attributes, expected=[want], constants=(2,), opt_levels=(0, 3))
    places[1, 0, 1, 1] = 2
    with pytest.raises(RunError, match=r"a place in a channel is -30, not 0\.\.15"):
        check_node("MaxUnpool", inputs, attributes, expected=[want], constants=(2,))


@pytest.mark.parametrize("symbolic", [False, True])
def test_max_unpool_of_a_pool_that_leaves_rows_out(symbolic):
    """onnxruntime's places too count in the image of odd sizes, not in that of the windows."""
    dims = "A, B, C, D" if symbolic else "2, 3, 7, 5"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> '
        f"g (float[{dims}] x) => (float[E, F, G, H] y) {{ "
        "p, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) s = Shape(x) "
        "y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (p, i, s) }"
    )
    x = data(2, 3, 7, 5)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (want,) = session.run(None, {"x": x})
    for level in (0, 3):
        built = convert_and_build(model, "llvm", opt_level=level)
        np.testing.assert_array_equal(built(x), want)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("pads, strides", [([1] * 4, [1, 1]), ([0] * 4, [2, 2])], ids=str)
def test_max_pool_keeps_nan_and_minus_infinity(dtype, pads, strides):
    """A maximum that starts at the least finite number never is -inf; a compare drops NaN."""
    x = data(1, 3, 8, 9, dtype=dtype)
    x[0, 0, 3, 4], x[0, 1] = np.nan, -np.inf
    size = 3 if any(pads) else 2
    want = functional.max_pool2d(torch.from_numpy(x).double(), size, strides[0], pads[0])
    want = want.numpy().astype(dtype)
    assert np.isnan(want).any() and np.isneginf(want).any()
    attributes = {"kernel_shape": [size] * 2, "pads": pads, "strides": strides}
    check_node("MaxPool", [x], attributes, expected=[want], opt_levels=(0, 3))


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
def test_no_level_counts_a_window_that_starts_in_the_end_pad(op_type):
    """Before opset 22 onnx's own shape inference does."""
    x = np.arange(6, dtype="float32").reshape(1, 1, 6)
    model = node_model(op_type, [x], {"kernel_shape": [1], "strides": [2], "ceil_mode": 1},
                       opset=18)  # fmt: skip
    for dim in model.graph.output[0].type.tensor_type.shape.dim:
        dim.Clear()
    check_model(model, {"x0": x}, expected=[x[:, :, ::2]], opt_levels=(0, 1, 3))
