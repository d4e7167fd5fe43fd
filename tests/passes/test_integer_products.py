"""Products of 8-bit integers, exact; oracle: int64 arithmetic of numpy and torch."""

import re

import numpy as np
import pytest
import torch
from onnx import helper, numpy_helper

from tests.this_cpu import needs_avx512_vnni
from tvm_ext import convert_and_build
from tvm_ext.ops.integer_winograd import MOST_CHANNELS

RNG = np.random.default_rng(0)
# This machine, and such that sum 2 neighbours and 1.
TARGETS = {
    "native": "llvm",
    "avx2": {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2},
    "sse": {"kind": "llvm", "mcpu": "x86-64-v2"},
}


def integers(dtype, *shape):
    """All values, the ends of the range among them."""
    info = np.iinfo(dtype)
    values = RNG.integers(info.min, info.max + 1, shape).astype(dtype)
    values.reshape(-1)[:2] = (info.min, info.max)[: values.size]
    return values


def built(operator, x, w, zero, known_zero, target, shape=None, **attributes):
    """The node with constant weights, and a zero point that is constant or an input.

    ``shape`` of ``x``, where it has symbols.
    """
    kinds = {a.dtype: helper.np_dtype_to_tensor_dtype(a.dtype) for a in (x, w, zero)}
    inputs = [helper.make_tensor_value_info("x", kinds[x.dtype], shape or x.shape)]
    constants = [numpy_helper.from_array(w, "w")]
    if known_zero:
        constants.append(numpy_helper.from_array(zero, "zero"))
    else:
        inputs.append(helper.make_tensor_value_info("zero", kinds[zero.dtype], ()))
    node = helper.make_node(operator, ["x", "w", "zero"], ["y"], **attributes)
    result = [helper.make_tensor_value_info("y", 6, None)]
    graph = helper.make_graph([node], "graph", inputs, result, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    compiled = convert_and_build(model, target)
    feeds = {"x": x} if known_zero else {"x": x, "zero": zero}
    return compiled.run(None, feeds)[0], compiled


@pytest.mark.parametrize(
    ("rows", "k", "n", "dtype", "known"),
    [
        ((128,), 64, 96, "uint8", True),
        ((1,), 33, 17, "int8", False),
        ((2, 7), 30, 48, "int8", True),
        ((2, 7), 65, 1, "int8", True),
        ((64,), 30, 1, "uint8", False),
    ],
)
@pytest.mark.parametrize("target", TARGETS)
def test_matrix_product(rows, k, n, dtype, known, target):
    x, w, zero = integers(dtype, *rows, k), integers("int8", k, n), integers(dtype, 2)[0]
    zero = np.array(zero)
    y, compiled = built("MatMulInteger", x, w, zero, known, TARGETS[target])
    np.testing.assert_array_equal(y, (x.astype("int64") - int(zero)) @ w.astype("int64"))
    assert "matmul_integer" in compiled.sources()["select"]


@pytest.mark.parametrize(
    ("dtype", "k", "n", "known"), [("uint8", 64, 96, False), ("int8", 33, 17, True)]
)
@pytest.mark.parametrize("target", TARGETS)
def test_matrix_product_of_symbolically_many_rows(target, dtype, k, n, known):
    """Whole tiles of rows, what is left over, one row, and none."""
    w, zero = integers("int8", k, n), np.array(integers(dtype, 3)[2])
    first, shape = integers(dtype, 1, 2, k), ("rows", "more", k)
    _, compiled = built("MatMulInteger", first, w, zero, known, TARGETS[target], shape)
    assert "matmul_integer" in compiled.sources()["select"]
    for rows in (1, 1), (1, 7), (3, 41), (0, 5):
        x = integers(dtype, *rows, k) if 0 not in rows else np.empty((*rows, k), dtype)
        y = compiled.run(None, {"x": x} | ({} if known else {"zero": zero}))[0]
        np.testing.assert_array_equal(y, (x.astype("int64") - int(zero)) @ w.astype("int64"))


CONVOLUTIONS = {
    "first layer": ((1, 3, 17, 15), (32, 3, 3, 3), {"strides": [2, 2], "pads": [1, 0, 2, 1]}),
    "pointwise": ((2, 64, 7, 7), (32, 64, 1, 1), {}),
    "pointwise, padded channels": ((1, 6, 5, 5), (8, 6, 1, 1), {}),
    "dilated": ((1, 24, 8, 9), (40, 24, 3, 3), {"dilations": [2, 1], "pads": [1, 1, 1, 1]}),
    "odd": ((1, 17, 7, 5), (3, 17, 3, 3), {"pads": [1, 1, 1, 1]}),
    "groups": ((1, 32, 9, 9), (32, 16, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    "groups of one block and a half": (
        (1, 144, 9, 7),
        (144, 24, 3, 3),
        {"group": 6, "strides": [2, 2], "pads": [1, 1, 1, 1]},
    ),
    "depthwise": ((1, 24, 9, 9), (24, 1, 3, 3), {"group": 24, "pads": [1, 1, 1, 1]}),
}


def convolved(x, w, zero, attributes):
    """What ConvInteger gives, by torch."""
    top, left, bottom, right = attributes.get("pads", [0] * 4)
    wide = np.pad(x.astype("int64") - int(zero), ((0, 0), (0, 0), (top, bottom), (left, right)))
    y = torch.nn.functional.conv2d(
        torch.from_numpy(wide.astype("float64")),
        torch.from_numpy(w.astype("float64")),
        stride=attributes.get("strides", 1),
        dilation=attributes.get("dilations", 1),
        groups=attributes.get("group", 1),
    )
    return y.numpy()


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize(
    ("dtype", "known", "target"),
    [("uint8", True, "native"), ("int8", False, "native"), ("int8", True, "avx2"),
     ("uint8", False, "sse")],
)  # fmt: skip
def test_convolution_pads_with_the_zero_point(case, dtype, known, target):
    shape, filters, attributes = CONVOLUTIONS[case]
    x, w, zero = integers(dtype, *shape), integers("int8", *filters), integers(dtype, 3)[2]
    target = TARGETS[target]
    y, compiled = built("ConvInteger", x, w, np.array(zero), known, target, **attributes)
    np.testing.assert_array_equal(y, convolved(x, w, zero, attributes))
    assert "conv2d_integer" in compiled.sources()["select"]


# 3x3 windows that Winograd's method takes: sides that tiles do not divide, images, groups, pads.
OF_TILES = {
    "square": ((1, 64, 14, 14), (64, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
    "odd, several images": ((3, 32, 13, 7), (64, 32, 3, 3), {"pads": [1, 0, 2, 1]}),
    "no pads": ((1, 64, 10, 11), (128, 64, 3, 3), {}),
    "groups": ((1, 64, 15, 16), (128, 32, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    "padded channels": ((1, 48, 12, 12), (72, 48, 3, 3), {"pads": [1, 1, 1, 1]}),
}


@pytest.mark.parametrize("case", OF_TILES)
@pytest.mark.parametrize(("dtype", "known"), [("uint8", False), ("int8", True)])
def test_convolution_by_winograds_method_is_exact(case, dtype, known):
    """Of the largest numbers, too: the corners of the ranges fill whole windows."""
    shape, filters, attributes = OF_TILES[case]
    x, w, zero = integers(dtype, *shape), integers("int8", *filters), integers(dtype, 3)[2]
    info = np.iinfo(dtype)
    x[:, :, :5], w[0], w[1] = info.max, -128, 127
    y, compiled = built("ConvInteger", x, w, np.array(zero), known, TARGETS["avx2"], **attributes)
    np.testing.assert_array_equal(y, convolved(x, w, zero, attributes))
    select = compiled.sources()["select"]
    assert "conv2d_integer" in select and "half_out" in select


@pytest.mark.parametrize("fits", [True, False])
def test_as_many_channels_as_winograds_method_holds(fits):
    """Four times a sum must fit 32 bits."""
    channels = (MOST_CHANNELS // 8 + (not fits)) * 8
    x, w = np.full((1, channels, 8, 8), 255, "uint8"), np.full((64, channels, 3, 3), -128, "int8")
    zero, attributes = np.array(0, "uint8"), {"pads": [1, 1, 1, 1]}
    y, compiled = built("ConvInteger", x, w, zero, True, TARGETS["avx2"], **attributes)
    np.testing.assert_array_equal(y, convolved(x, w, zero, attributes))
    assert ("half_out" in compiled.sources()["select"]) == fits


@pytest.mark.parametrize(
    ("operator", "x", "w", "attributes"),
    [
        ("MatMulInteger", (130, 64), (64, 48), {}),
        ("MatMulInteger", (3, 64), (64, 48), {}),
        ("ConvInteger", (1, 32, 9, 9), (32, 32, 1, 1), {}),
        ("ConvInteger", (1, 64, 9, 9), (64, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
        ("ConvInteger", (1, 32, 9, 9), (32, 1, 3, 3), {"group": 32}),
    ],
)
def test_pairs_are_multiplied_at_once(operator, x, w, attributes):
    """By one instruction; pairs of activations are loaded by one, too."""
    x, w, zero = integers("uint8", *x), integers("int8", *w), np.array(9, "uint8")
    _, compiled = built(operator, x, w, zero, True, TARGETS["avx2"], **attributes)
    assembly = compiled.sources()["asm"]
    assert "vpmaddwd" in assembly
    assert "group" in attributes or re.search(r"vpbroadcastd\s+\S*\(%r", assembly)


SEQUENCES = {
    "as it comes": ((2, 24, 31), (32, 24, 3), {}),
    "strides": ((1, 48, 40), (17, 48, 3), {"strides": [2], "pads": [1, 2]}),
    "dilated": ((1, 16, 29), (16, 16, 4), {"dilations": [3], "pads": [0, 5], "kernel_shape": [4]}),
    "groups": ((3, 32, 13), (64, 16, 5), {"group": 2, "pads": [2, 2]}),
    "depthwise": ((1, 24, 19), (24, 1, 3), {"group": 24, "pads": [1, 1]}),
}


@pytest.mark.parametrize("case", SEQUENCES)
@pytest.mark.parametrize(("dtype", "known"), [("uint8", True), ("int8", False)])
def test_convolution_of_sequences(case, dtype, known):
    shape, filters, attributes = SEQUENCES[case]
    x, w, zero = integers(dtype, *shape), integers("int8", *filters), integers(dtype, 3)[2]
    y, compiled = built("ConvInteger", x, w, np.array(zero), known, "llvm", **attributes)
    before, after = attributes.get("pads", (0, 0))
    of_images = {
        "strides": [1, *attributes.get("strides", [1])],
        "dilations": [1, *attributes.get("dilations", [1])],
        "pads": [0, before, 0, after],
        "group": attributes.get("group", 1),
    }
    wanted = convolved(x[:, :, None], w[:, :, None], zero, of_images)
    np.testing.assert_array_equal(y, wanted[:, :, 0])
    assert "conv2d_integer" in compiled.sources()["select"]


WINDOWS = {
    "one tap": ("uint8", True, (1, 32, 5, 6), (1, 1), {}),
    "rows": ("int8", True, (2, 16, 9, 8), (5, 1), {"pads": [2, 0, 2, 0]}),
    "two columns": ("int8", False, (1, 16, 6, 7), (2, 2), {"pads": [0, 1, 1, 0]}),
    "four columns": ("uint8", True, (1, 48, 7, 20), (1, 4), {}),
    "five": ("int8", True, (1, 24, 17, 15), (5, 5), {"pads": [2, 1, 0, 3], "strides": [2, 3]}),
    "seven": ("uint8", False, (1, 8, 7, 7), (7, 7), {"pads": [3, 3, 3, 3]}),
    "dilated rows": (
        "int8", False, (1, 16, 12, 9), (3, 3), {"pads": [3, 1, 3, 1], "dilations": [3, 1]},
    ),
    "dilated columns": (
        "uint8", True, (1, 16, 9, 12), (3, 3), {"pads": [1, 2, 1, 2], "dilations": [1, 2]},
    ),
    "wide": ("int8", True, (1, 16, 3, 131), (3, 3), {"pads": [1, 1, 1, 1]}),
}  # fmt: skip
# What sums four bytes, with and without shuffles of bytes across a register, or what does not.
CPUS = {"native": "llvm", "vnni": "llvm -mcpu=cascadelake", "avx2": "x86-64-v3"}


@pytest.mark.parametrize(
    "target", ["native", pytest.param("vnni", marks=needs_avx512_vnni), "avx2"]
)
@pytest.mark.parametrize("case", WINDOWS)
def test_windows_of_single_channels(case, target):
    dtype, known, shape, window, attributes = WINDOWS[case]
    attributes = attributes | {"group": shape[1]}
    x, w, zero = (
        integers(dtype, *shape),
        integers("int8", shape[1], 1, *window),
        np.array(77, dtype),
    )
    y, compiled = built("ConvInteger", x, w, zero, known, CPUS[target], **attributes)
    np.testing.assert_array_equal(y, convolved(x, w, zero, attributes))
    assert "depthwise_conv2d_integer" in compiled.sources()["select"]
    if target == "vnni":
        of_words = window[1] > 1 and attributes.get("dilations", [1, 1])[1] == 1
        assert ("vpdpbusd" in compiled.sources()["asm"]) == of_words


@pytest.mark.parametrize(
    ("case", "dtype", "known", "target"),
    [
        ("first layer", "uint8", True, "native"),
        ("dilated", "int8", False, "avx2"),
        ("odd", "int8", True, "native"),
        ("groups", "uint8", False, "native"),
        ("groups of one block and a half", "uint8", True, "native"),
        ("depthwise", "uint8", True, "native"),
    ],
)
def test_convolution_of_symbolic_rows_and_columns(case, dtype, known, target):
    """Tiles of several widths, single columns, and images that pads outweigh."""
    (_, channels, *_), filters, attributes = CONVOLUTIONS[case]
    w, zero = integers("int8", *filters), integers(dtype, 3)[2]
    if case == "first layer":  # such as ReLU leaves
        zero = zero - zero
    compiled = None
    for size in (1, 17, 15), (2, 5, 47), (1, 5, 5), (1, 3, 97):
        x = integers(dtype, size[0], channels, *size[1:])
        if compiled is None:
            y, compiled = built(
                "ConvInteger", x, w, np.array(zero), known, TARGETS[target],
                ("n", channels, "h", "w"), **attributes,
            )  # fmt: skip
            assert "conv2d_integer" in compiled.sources()["select"]
        else:
            y = compiled.run(None, {"x": x} | ({} if known else {"zero": np.array(zero)}))[0]
        np.testing.assert_array_equal(y, convolved(x, w, zero, attributes))


def unsigned_weights(operator, x, w, zero, **attributes):
    """The node with constant uint8 weights and their zero point; its result."""
    nodes = [helper.make_node(operator, ["x", "w", "", "zero"], ["y"], **attributes)]
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info("x", 2, x.shape)],
        [helper.make_tensor_value_info("y", 6, None)],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.array(zero, "uint8"), "zero")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    compiled = convert_and_build(model, "llvm")
    return compiled(x), compiled.sources()["select"]


@pytest.mark.parametrize("zero", [0, 117, 128, 255])
def test_weights_of_nine_bits(zero):
    """``w - zero`` of uint8 weights reaches -128 .. 127 with 128 only."""
    w, x = integers("uint8", 16, 8), integers("uint8", 4, 16)
    y, selected = unsigned_weights("MatMulInteger", x, w, zero)
    np.testing.assert_array_equal(y, x.astype("int64") @ (w.astype("int64") - zero))
    assert "matmul_integer" in selected


@pytest.mark.parametrize(
    ("case", "kernel"),
    [
        ("first layer", "conv2d_integer"),
        ("depthwise", "depthwise_conv2d_integer"),
        ("groups", None),
    ],
)
def test_filters_of_nine_bits(case, kernel):
    shape, filters, attributes = CONVOLUTIONS[case]
    w, x = integers("uint8", *filters), integers("uint8", *shape)
    y, selected = unsigned_weights("ConvInteger", x, w, 117, **attributes)
    top, left, bottom, right = attributes["pads"]
    want = torch.nn.functional.conv2d(
        torch.nn.functional.pad(torch.from_numpy(x.astype("float64")), (left, right, top, bottom)),
        torch.from_numpy(w.astype("float64") - 117),
        stride=attributes.get("strides", 1),
        groups=attributes.get("group", 1),
    )
    np.testing.assert_array_equal(y, want.numpy())
    assert kernel in selected if kernel else "conv2d_integer" not in selected


def of_activations(left, right, zeros, known, target):
    """MatMulInteger of inputs of these shapes, of the types of their ``zeros``; and a function that
    checks it for some sizes."""
    zeros = dict(zip(("a0", "b0"), zeros, strict=True))
    kinds = {name: helper.np_dtype_to_tensor_dtype(zero.dtype) for name, zero in zeros.items()}
    kinds |= {"a": kinds["a0"], "b": kinds["b0"]}
    shapes = {"a": left, "b": right} | ({} if known else {"a0": (), "b0": ()})
    inputs = [helper.make_tensor_value_info(k, kinds[k], shape) for k, shape in shapes.items()]
    constants = [numpy_helper.from_array(v, k) for k, v in zeros.items() if known]
    node = helper.make_node("MatMulInteger", ["a", "b", "a0", "b0"], ["y"])
    result = [helper.make_tensor_value_info("y", 6, None)]
    graph = helper.make_graph([node], "graph", inputs, result, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    compiled = convert_and_build(model, TARGETS[target])

    def check(left, right):
        a, b = integers(zeros["a0"].dtype, *left), integers(zeros["b0"].dtype, *right)
        want = (a.astype("int64") - int(zeros["a0"])) @ (b.astype("int64") - int(zeros["b0"]))
        y = compiled.run(None, {"a": a, "b": b} | ({} if known else zeros))[0]
        np.testing.assert_array_equal(y, want)

    return compiled.sources()["select"], check


# Of both sides: some and none, of bytes that are signed or not.
ZEROS = {
    "u8 s8": (np.array(3, "uint8"), np.array(-128, "int8")),
    "u8 s8, none": (np.array(0, "uint8"), np.array(0, "int8")),
    "s8 s8": (np.array(-7, "int8"), np.array(0, "int8")),
    "s8 s8, low": (np.array(-128, "int8"), np.array(5, "int8")),
    "u8 u8": (np.array(0, "uint8"), np.array(128, "uint8")),
    "u8 u8, high": (np.array(255, "uint8"), np.array(255, "uint8")),
    "s8 u8": (np.array(127, "int8"), np.array(0, "uint8")),
}
# Differences of 16 bits, elsewhere than on this machine, know nothing of signs.
SIDES = [("native", name) for name in ZEROS] + [("avx2", "u8 s8"), ("sse", "s8 u8")]


@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 24, 40), (3, 40, 48)), ((2, 1, 17, 33), (3, 33, 19)), ((10, 6), (2, 6, 16)),
     ((3, 9, 35), (35, 20))],
)  # fmt: skip
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("target", "zeros"), SIDES)
def test_product_of_activations(target, zeros, known, left, right):
    """Differences of nine bits, depths that fill no whole word, batches that are broadcast."""
    selected, check = of_activations(left, right, ZEROS[zeros], known, target)
    check(left, right)
    assert "matmul_integer" in selected


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("target", "zeros"), SIDES)
def test_product_of_activations_of_symbolic_sizes(target, zeros, known):
    """Depths of an even and an odd number, one row, one column, and nothing."""
    left, right = ("batch", "m", "k"), ("batch", "k", "n")
    selected, check = of_activations(left, right, ZEROS[zeros], known, target)
    assert "matmul_integer" in selected
    for batch, m, k, n in (2, 13, 40, 70), (1, 1, 7, 1), (3, 5, 33, 16), (2, 4, 0, 3), (0, 2, 2, 2):
        check((batch, m, k), (batch, k, n))


@pytest.mark.parametrize("target", TARGETS)
def test_product_of_activations_of_other_batches(target):
    """Such as broadcast, and symbolic: the product of TVM's."""
    selected, check = of_activations(("m", 33), (2, 33, "n"), ZEROS["u8 s8"], True, target)
    assert "matmul_integer" not in selected
    for m, n in (13, 70), (1, 1):
        check((m, 33), (2, 33, n))


def test_convolution_that_is_quantised_at_run_time():
    """The product of both scales is a kernel of one number, fused into that of the layer."""
    x, w = RNG.standard_normal((1, 16, 9, 9)).astype("float32"), integers("int8", 32, 16, 3, 3)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("ConvInteger", ["q", "w", "z"], ["total"], pads=[1, 1, 1, 1]),
        helper.make_node("Cast", ["total"], ["wide"], to=1),
        helper.make_node("Mul", ["s", "c"], ["scale"]),
        helper.make_node("Mul", ["wide", "scale"], ["y"]),
    ]
    constants = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.float32([0.5]), "c")]
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info("x", 1, x.shape)],
        [helper.make_tensor_value_info("y", 1, None)], constants,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    compiled = convert_and_build(model, TARGETS["avx2"])
    scale = (x.max() - x.min()) / 255
    codes = np.round(x / scale) * scale
    want = torch.nn.functional.conv2d(
        torch.from_numpy(codes), torch.from_numpy(w.astype("float32") * 0.5), padding=1
    )
    np.testing.assert_allclose(compiled(x), want.numpy(), rtol=1e-4, atol=1e-3)
    assert "integer_pair_dot" in compiled.sources()["schedule"]
