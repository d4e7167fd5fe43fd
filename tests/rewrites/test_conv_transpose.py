"""Transposed convolutions become a convolution of all phases, and a move."""

import numpy as np
import onnxruntime
import pytest

from tests.oracle import check_model, node_model

from .checking import assert_same, model, operators, rewritten

RNG = np.random.default_rng(0)
PHASES = [*["Conv"] * 4, "Concat", "DepthToSpace", "Slice"]


def spread(attributes, weight, *, bias=True, opset=18, sizes=(3, 5, 4)):
    channels, outputs, *taps = weight.shape
    operands = "x, w, b" if bias else "x, w"
    arrays = {"w": weight} | ({"b": RNG.normal(size=outputs).astype("float32")} if bias else {})
    dims = ", ".join(str(size) for size in sizes[: len(taps)])
    names = ", ".join("ABC"[: len(taps)])
    return model(
        f"g (float[N, {channels}, {dims}] x) => (float[N, {outputs}, {names}] y) "
        f"{{ y = ConvTranspose <{attributes}> ({operands}) }}",
        opset, **arrays,
    )  # fmt: skip


def weights(*shape):
    return RNG.normal(size=shape).astype("float32")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(4, 3, 2, 2), (1, 1, 3, 3), (5, 7, 4, 4)])
def test_windows_that_touch(shape, bias):
    proto = spread(f"strides = [{shape[2]}, {shape[2]}]", weights(*shape), bias=bias)
    assert assert_same(proto, rewritten(proto)) == ["Conv", "DepthToSpace"]


@pytest.mark.parametrize(
    ("attributes", "shape", "operators"),
    [
        ("strides = [2, 2]", (4, 3, 3, 3), ["Conv", "DepthToSpace", "Slice"]),
        ("strides = [2, 2]", (4, 17, 3, 3), PHASES),
        ("strides = [2, 2], pads = [2, 1, 0, 2]", (2, 16, 5, 4), PHASES),
        ("strides = [2, 2], pads = [0, 2, 0, 0]", (2, 16, 1, 3), PHASES),
        ("strides = [2, 2], pads = [1, 1, 1, 1]", (4, 3, 4, 4), ["Conv", "DepthToSpace", "Slice"]),
        ("strides = [2, 2], pads = [1, 0, 0, 0]", (4, 3, 2, 2), ["Conv", "DepthToSpace", "Slice"]),
        (
            "strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]",
            (4, 16, 3, 3),
            PHASES,
        ),
        ("strides = [3, 3], pads = [2, 0, 4, 3]", (1, 2, 8, 7), ["Conv", "DepthToSpace", "Slice"]),
        (
            "strides = [3, 3], output_padding = [2, 1]",
            (2, 2, 2, 1),
            ["Conv", "DepthToSpace", "Slice"],
        ),
        ("strides = [2, 3]", (4, 3, 2, 3), ["Conv", "PhasesToSpace"]),
        (
            "strides = [4], pads = [2, 1]",
            (4, 3, 8),
            ["Conv", "PhasesToSpace", "Slice"],
        ),
        (
            "strides = [2, 1, 3], pads = [1, 0, 1, 1, 2, 0]",
            (2, 3, 3, 4, 5),
            ["Conv", "PhasesToSpace", "Slice"],
        ),
        ("strides = [1, 1], pads = [0, 1, 2, 1]", (4, 3, 3, 2), ["Conv"]),
    ],
)
def test_windows_that_overlap_or_leave_gaps(attributes, shape, operators):
    proto = spread(attributes, weights(*shape))
    assert assert_same(proto, rewritten(proto)) == operators


@pytest.mark.parametrize(
    ("attributes", "shape", "operators"),
    [
        (
            "strides = [2, 2], pads = [1, 1, 1, 1], group = 3",
            (6, 4, 3, 3),
            ["Conv", "DepthToSpace", "Slice"],
        ),
        (
            "strides = [3], group = 2",
            (4, 5, 4),
            ["Conv", "Reshape", "Transpose", "Reshape", "Slice"],
        ),
        ("strides = [1, 1], group = 2", (2, 3, 2, 3), ["Conv"]),
    ],
)
def test_groups(attributes, shape, operators):
    channels, filters, *taps = shape
    sizes, names = ", ".join(["4", "5"][: len(taps)]), ", ".join("AB"[: len(taps)])
    outputs = filters * int(attributes.rpartition("group = ")[2])
    bias = RNG.normal(size=outputs).astype("float32")
    proto = model(
        f"g (float[N, {channels}, {sizes}] x) => (float[N, {outputs}, {names}] y) "
        f"{{ y = ConvTranspose <{attributes}> (x, w, b) }}", 18, w=weights(*shape), b=bias,
    )  # fmt: skip
    assert assert_same(proto, rewritten(proto)) == operators


@pytest.mark.parametrize("opset", [9, 10, 11, 18])
@pytest.mark.parametrize(
    ("attributes", "shape", "names"),
    [
        ("dilations = [2, 3], pads = [1, 0, 2, 3]", (4, 3, 3, 2), ["Conv"]),
        ("strides = [2, 2], dilations = [2, 3]", (4, 3, 3, 2), ["Conv", "DepthToSpace", "Slice"]),
        ("strides = [3, 3], dilations = [5, 2]", (4, 3, 1, 1), ["Conv", "DepthToSpace", "Slice"]),
        ('strides = [2, 2], auto_pad = "VALID"', (4, 3, 2, 2), ["Conv", "DepthToSpace"]),
    ],
)
def test_dilations_and_opsets(attributes, shape, names, opset):
    proto = spread(attributes, weights(*shape), opset=opset)
    assert assert_same(proto, rewritten(proto)) == names


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ("strides = [1, 2], dilations = [3, 2]", (4, 3, 2, 3)),
        ("strides = [3], dilations = [2], pads = [1, 1]", (4, 3, 3)),
    ],
)
def test_dilations_of_strides_that_differ(attributes, shape):
    proto = spread(attributes, weights(*shape))
    assert assert_same(proto, rewritten(proto)) == ["Conv", "PhasesToSpace", "Slice"]


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "NOTSET"])
@pytest.mark.parametrize(
    ("attributes", "kernel"),
    [
        ({"strides": [2, 2], "output_shape": [6, 11]}, (3, 4)),
        ({"strides": [2, 3], "output_shape": [8, 14]}, (3, 2)),
        ({"strides": [1, 2], "dilations": [2, 1], "output_shape": [3, 10]}, (2, 3)),
        ({"strides": [2, 2]}, (3, 4)),
        ({"strides": [3, 2], "output_padding": [1, 1]}, (2, 5)),
        ({"strides": [2, 1], "dilations": [2, 2]}, (3, 3)),
    ],
)
def test_results_of_a_given_size(attributes, kernel, mode, group):
    x, w = (RNG.normal(size=dims).astype("float32") for dims in ((2, 4, 3, 5), (4, 2, *kernel)))
    attributes = attributes | {"auto_pad": mode, "group": group}
    proto = node_model("ConvTranspose", [x, w], attributes, constants=[1])
    if "output_shape" in attributes:
        proto.graph.output[0].type.tensor_type.ClearField("shape")
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    expected = session.run(None, {"x0": x})
    assert "ConvTranspose" not in operators(rewritten(proto))
    check_model(proto, {"x0": x}, expected=expected, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("attributes", "shape", "groups"),
    [
        ("strides = [2, 2]", (4, 3, 2, 2), 1),
        ("strides = [2, 2], pads = [2, 1, 0, 2]", (2, 16, 5, 4), 1),
        ("strides = [3, 2], pads = [2, 0, 4, 3]", (1, 2, 8, 7), 1),
        ("strides = [2, 2], pads = [1, 1, 1, 1], group = 3", (6, 4, 3, 3), 3),
        ("strides = [3], group = 2", (4, 5, 4), 2),
        ("strides = [1, 1], pads = [0, 1, 2, 1]", (4, 3, 3, 2), 1),
        ("strides = [2, 1, 3], pads = [1, 0, 1, 1, 2, 0]", (2, 3, 3, 4, 5), 1),
    ],
)
def test_weights_known_at_run_time_only(attributes, shape, groups, bias):
    channels, filters, *taps = shape
    sizes, names = ", ".join("345"[: len(taps)]), ", ".join("ABC"[: len(taps)])
    dims, outputs = ", ".join(map(str, shape)), filters * groups
    more = (f", float[{outputs}] b", ", b") if bias else ("", "")
    proto = model(
        f"g (float[N, {channels}, {sizes}] x, float[{dims}] w{more[0]}) "
        f"=> (float[N, {outputs}, {names}] y) "
        f"{{ y = ConvTranspose <{attributes}> (x, w{more[1]}) }}"
    )
    names = assert_same(proto, rewritten(proto), atol=1e-5)
    assert "Conv" in names and "ConvTranspose" not in names


def test_weights_of_unknown_size_stay():
    proto = model(
        "g (float[N, 4, 3, 5] x, float[4, M, 2, 2] w) => (float[N, M, A, B] y) "
        "{ y = ConvTranspose <strides = [2, 2]> (x, w) }"
    )
    assert assert_same(proto, rewritten(proto)) == ["ConvTranspose"]


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ("strides = [2, 2], group = 4", (4, 1, 2, 2)),
        ("strides = [2, 2], pads = [4, 0, 0, 0]", (4, 3, 3, 3)),
    ],
)
def test_others_stay(attributes, shape):
    proto = spread(attributes, weights(*shape), bias=False)
    if "group" in attributes:
        proto = model(
            "g (float[N, 4, 3, 5] x) => (float[N, 4, H, W] y) "
            f"{{ y = ConvTranspose <{attributes}> (x, w) }}", w=weights(*shape),
        )  # fmt: skip
    assert assert_same(proto, rewritten(proto)) == ["ConvTranspose"]


def test_before_the_mode_that_is_needed():
    proto = model(
        "g (float[N, 4, 3, 5] x) => (float[N, 6, H, W] y) "
        "{ y = ConvTranspose <strides = [2, 2], group = 2> (x, w) }", 10, w=weights(4, 3, 2, 2),
    )  # fmt: skip
    assert assert_same(proto, rewritten(proto)) == ["ConvTranspose"]
