"""Convolutions and what stands between them run blocked; layouts change only at the ends."""

import re

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tests.onnxruntime_oracle import run_onnxruntime
from tests.oracle import check_model, reference
from tvm_ext import convert_and_build, targets
from tvm_ext.passes.blocked_layout import blocked_layout
from tvm_ext.passes.legalize import legalize
from tvm_ext.passes.lift_channels import lift_channels

LLVM = targets.resolve({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 2})


def conv_network(nodes, shape, weights, seed=0):
    """A model over ``x`` of ``shape``; ``weights`` are shapes of normal initializers."""
    rng = np.random.default_rng(seed)
    initializers = []
    for name, dims in weights.items():
        fan_in = max(int(np.prod(dims[1:])), 1)
        array = rng.standard_normal(dims) / np.sqrt(fan_in)
        initializers.append(numpy_helper.from_array(array.astype("float32"), name))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info("y")],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model)


def feeds(shape, seed=1):
    return {"x": np.random.default_rng(seed).standard_normal(shape).astype("float32")}


def select(model):
    """The kernels of a network after the select phase of opt level 3, as text."""
    return convert_and_build(model, LLVM).sources()["select"].split("def main(")[1]


CHAIN = conv_network(
    [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("MaxPool", ["r0"], ["p0"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Conv", ["p0", "w1"], ["c1"], group=64, pads=[1, 1, 1, 1]),
        helper.make_node("InstanceNormalization", ["c1", "s", "s"], ["n1"]),
        helper.make_node("Split", ["n1"], ["a", "b"], axis=1),
        helper.make_node("Sigmoid", ["a"], ["sa"]),
        helper.make_node("Concat", ["sa", "b"], ["cat"], axis=1),
        helper.make_node("Add", ["cat", "p0"], ["sum"]),
        helper.make_node("GlobalAveragePool", ["sum"], ["y"]),
    ],
    (2, 16, 13, 11),
    {"w0": (64, 16, 3, 3), "b0": (64,), "w1": (64, 1, 3, 3), "s": (64,)},
)


def test_layout_changes_only_at_the_ends():
    text = select(CHAIN)
    calls = [line.split("cls.")[1].split(",")[0] for line in text.splitlines() if "cls." in line]
    assert [call for call in calls if call.startswith("block")] == calls[:1]
    # One pixel of each channel lies the same in both layouts: the last change is a view.
    assert not any(call.startswith("unblock") for call in calls)
    assert text.count("R.reshape") == 1


BEHIND_AN_IF = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,16,5,4] x) => (float[a,b,c,d] y, float[e,f,g,h] z)
      <float[16,16,1,1] w = {}, float[4,3] v = {}, float[4] bias = {}> {
        conv = Conv (x, w)
        leaky = LeakyRelu (conv)
        sum = Add (leaky, bias)
        total = ReduceMax <keepdims = 0> (conv)
        opposite = Neg (total)
        flag = Less (total, opposite)
        z = If (flag) <then_branch = t () => (float[1,16,5,4] p) { p = Relu (x) },
                       else_branch = e () => (float[1,16,5,4] q) { q = Tanh (conv) }>
        product = MatMul (sum, v)
        y = Tanh (product)
    }""")


def test_a_blocked_result_that_a_product_behind_an_if_reads():
    model, random = onnx.ModelProto(), np.random.default_rng(5)
    model.CopyFrom(BEHIND_AN_IF)
    for tensor in model.graph.initializer:
        array = random.standard_normal(list(tensor.dims)).astype("float32")
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    check_model(model, feeds((1, 16, 5, 4)), opt_levels=(3,), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("image, keepdims", [((40,), 0), ((40,), 1), ((5, 8), 0), ((2, 4, 5), 0)])
@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMean"])
def test_what_pixels_are_reduced_to_is_read_from_blocks(op_type, image, keepdims):
    axes = list(range(2, 2 + len(image)))
    shape = (2, 16, *image)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node(op_type, ["c"], ["m"], axes=axes, keepdims=keepdims),
        helper.make_node("Tanh", ["m"], ["y"]),
    ]
    model = conv_network(nodes, shape, {"w": (48, 16, *[1] * len(image))})
    assert "unblock" not in select(model)
    check_model(model, feeds(shape))


def test_a_chain_of_blocked_kernels_is_right():
    check_model(CHAIN, feeds((2, 16, 13, 11)), opt_levels=(2, 3), rtol=1e-4, atol=1e-5)


def test_any_number_of_images_runs_blocked():
    """Direct, depthwise and Winograd's convolutions, and what stands between them."""
    nodes = [
        *CHAIN.graph.node[:-1],
        helper.make_node("Conv", ["sum", "w2"], ["c2"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c2", "w3"], ["c3"], strides=[2, 2], group=2),
        helper.make_node("GlobalAveragePool", ["c3"], ["y"]),
    ]
    weights = {"w0": (64, 16, 3, 3), "b0": (64,), "w1": (64, 1, 3, 3), "s": (64,)}
    model = conv_network(
        nodes, ("n", 16, 45, 29), weights | {"w2": (128, 64, 3, 3), "w3": (64, 64, 3, 3)}
    )
    built = convert_and_build(model, "llvm")
    text = built.sources()["select"].split("def main(")[1]
    calls = [line.split("cls.")[1].split(",")[0] for line in text.splitlines() if "cls." in line]
    assert "conv2d_winograd" in calls
    assert [call for call in calls if call.startswith("block")] == calls[:1]
    assert not any(call.startswith("unblock") for call in calls)
    for images in 1, 2, 7:
        x = feeds((images, 16, 45, 29))
        np.testing.assert_allclose(built.run(None, x), reference(model, x), rtol=1e-4, atol=1e-5)


def kernels(built):
    """What ``main`` calls after the select phase, in order."""
    text = built.sources()["select"].split("def main(")[1]
    return [line.split("cls.")[1].split(",")[0] for line in text.splitlines() if "cls." in line]


def check_sizes(built, model, shapes):
    for shape in shapes:
        x = feeds(shape)
        for got, expected in zip(built.run(None, x), reference(model, x), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_images_of_any_size_run_blocked():
    """Rows shorter than tiles, of one pixel, and as long as several that overlap."""
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], strides=[2, 1], pads=[1, 0, 2, 1]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], group=40, pads=[2, 2, 2, 2]),
        helper.make_node("Add", ["c1", "r0"], ["sum"]),
        helper.make_node("MaxPool", ["sum"], ["p"], kernel_shape=[3, 3], strides=[2, 2],
                         pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["p", "w2"], ["c2"], group=2, pads=[2] * 4, dilations=[2, 2]),
        helper.make_node("Resize", ["c2", "", "twice"], ["up"], mode="nearest"),
        helper.make_node("Conv", ["up", "w3", "b3"], ["c3"]),
        helper.make_node("Concat", ["up", "up"], ["both"], axis=1),
        helper.make_node("Conv", ["both", "w4"], ["c4"], strides=[3, 3]),
        helper.make_node("GlobalAveragePool", ["c4"], ["g"]),
        helper.make_node("Sigmoid", ["c3"], ["y"]),
    ]  # fmt: skip
    weights = {
        "w0": (40, 3, 3, 2), "b0": (40,), "w1": (40, 1, 5, 5), "w2": (48, 20, 3, 3),
        "w3": (17, 48, 1, 1), "b3": (17,), "w4": (16, 96, 1, 1),
    }  # fmt: skip
    model = conv_network(nodes, ("n", 3, "h", "w"), weights)
    model.graph.initializer.append(numpy_helper.from_array(np.float32([1, 1, 2, 2]), "twice"))
    model.graph.output.append(helper.make_tensor_value_info("g", TensorProto.FLOAT, None))
    built = convert_and_build(model, "llvm")
    calls = [call for call in kernels(built) if call.startswith("conv2d")]
    assert all("blocked" in call or "winograd" in call for call in calls)
    assert sum(call.startswith("unblock") for call in kernels(built)) == 1
    check_sizes(built, model, [(1, 3, 2, 3), (2, 3, 9, 67), (1, 3, 31, 17)])


@pytest.mark.parametrize("axes", [1, 3])
def test_lines_and_volumes_of_any_size_run_blocked(axes):
    taps = 31 if axes == 1 else 3  # more than registers hold
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1] * 2 * axes,
                         strides=[1] * (axes - 1) + [2]),
        helper.make_node("Conv", ["c0", "w1"], ["c1"], group=24, pads=[taps // 2] * 2 * axes),
        helper.make_node("Conv", ["c1", "w2"], ["y"]),
    ]  # fmt: skip
    window = (3,) * axes
    weights = {
        "w0": (24, 1, *window), "b0": (24,), "w1": (24, 1, *(taps,) * axes),
        "w2": (3, 24, *(1,) * axes),
    }  # fmt: skip
    sizes = "d", "h", "w"
    model = conv_network(nodes, (1, 1, *sizes[-axes:]), weights)
    built = convert_and_build(model, "llvm")
    assert f"conv{axes}d" not in kernels(built)
    check_sizes(built, model, [(1, 1, *(3, 5, 41)[-axes:]), (1, 1, *(1,) * axes)])


@pytest.mark.parametrize("seed", range(6))
def test_depthwise_windows_at_the_edges_of_images_of_any_size(seed):
    """Pads are not stored: taps beyond the image, on any side, are left out where they occur."""
    rng = np.random.default_rng(seed)
    axes = int(rng.choice([1, 2, 2, 3]))
    window, strides, dilations = (rng.choice(some, axes).tolist() for some in EDGES)
    pads = [
        int(rng.integers(0, (k - 1) * d + 2)) for k, d in zip(window, dilations, strict=True)
    ] * 2
    pads[axes:] = rng.permutation(pads[axes:]).tolist()
    node = helper.make_node(
        "Conv", ["x", "w"], ["c"], group=24, strides=strides, pads=pads, dilations=dilations
    )
    model = conv_network(
        [node, helper.make_node("Relu", ["c"], ["y"])],
        ("n", 24, *"dhw"[-axes:]),
        {"w": (24, 1, *window)},
        seed,
    )
    least = [
        max(1, (k - 1) * d + 1 - before - after)
        for k, d, before, after in zip(window, dilations, pads[:axes], pads[axes:], strict=True)
    ]
    shapes = [(n, 24, *(s + int(rng.integers(0, extra)) for s in least))
              for n, extra in ((1, 1), (2, 4), (1, 30))]  # fmt: skip
    check_sizes(convert_and_build(model, "llvm"), model, shapes)


#: Taps, strides and dilations.
EDGES = (1, 2, 3, 5, 9), (1, 1, 2, 3), (1, 1, 2, 4)


def test_a_number_of_images_that_is_a_formula():
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"]),
        helper.make_node("Concat", ["c0", "c0"], ["twice"], axis=0),
        helper.make_node("Conv", ["twice", "w1"], ["c1"]),
        helper.make_node("Relu", ["c1"], ["y"]),
    ]
    weights = {"w0": (16, 3, 3, 3), "w1": (16, 16, 3, 3)}
    model = conv_network(nodes, ("n", 3, 6, 7), weights)
    built = convert_and_build(model, "llvm")
    assert sum(call.startswith("unblock") for call in kernels(built)) <= 2
    for images in 1, 3:
        x = feeds((images, 3, 6, 7))
        np.testing.assert_allclose(built.run(None, x), reference(model, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("channels", "filters", "group", "kernel", "attributes"),
    [
        (3, 32, 1, (7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
        (17, 21, 1, (3, 3), {"pads": [1, 0, 2, 1]}),
        (24, 40, 1, (1, 1), {}),
        (1, 3, 1, (3, 3), {"dilations": [2, 1], "strides": [1, 2]}),
        (64, 64, 2, (3, 3), {"pads": [1, 1, 1, 1]}),
        (12, 24, 4, (3, 3), {"pads": [1, 1, 1, 1]}),  # groups smaller than a block
        (64, 64, 16, (3, 3), {"strides": [2, 2]}),  # groups of a quarter of a block
        (24, 100, 1, (2, 3), {"pads": [1, 0, 0, 1]}),  # blocks of 4, summed in vectors of 16
        (40, 40, 40, (3, 3), {"strides": [2, 1], "pads": [1, 1, 1, 1]}),
        (6, 6, 6, (3, 3), {}),  # too few channels for lanes
        (8, 16, 8, (3, 3), {}),  # depthwise with a multiplier
    ],
)
@pytest.mark.parametrize("shape", [(19, 17), (7, 113)])
def test_convolutions_of_any_shape(channels, filters, group, kernel, attributes, shape):
    model = conv_network(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], group=group, **attributes),
            helper.make_node("LeakyRelu", ["c"], ["y"], alpha=0.1),
        ],
        (1, channels, *shape),
        {"w": (filters, channels // group, *kernel), "b": (filters,)},
    )
    check_model(model, feeds((1, channels, *shape)), opt_levels=(3,), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "window", "geometry"),
    [
        ((2, 20, 57), (3,), {"pads": [3, 1], "dilations": [2], "strides": [1]}),
        ((1, 5, 6, 9, 11), (3, 2, 3), {"pads": [1, 0, 1, 1, 1, 1], "strides": [2, 1, 1]}),
    ],
)
def test_convolutions_along_one_and_three_axes_run_blocked(shape, window, geometry):
    around, ones = {"pads": [1] * 2 * len(window)}, (1,) * len(window)
    model = conv_network(
        [
            helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], **geometry),
            helper.make_node("Relu", ["c0"], ["r0"]),
            helper.make_node("Conv", ["r0", "w1"], ["c1"], group=40, **around),
            helper.make_node("Add", ["c1", "r0"], ["a1"]),
            helper.make_node("Conv", ["a1", "w2", "b2"], ["c2"], strides=[3 for _ in window]),
            helper.make_node("Conv", ["a1", "w3"], ["c3"], group=10, **around),
            helper.make_node("GlobalAveragePool", ["c2"], ["p2"]),
            helper.make_node("Concat", ["c3", "r0"], ["l3"], axis=1),
            helper.make_node("GlobalAveragePool", ["l3"], ["p3"]),
            helper.make_node("Concat", ["p2", "p3"], ["y"], axis=1),
        ],
        shape,
        {
            "w0": (40, shape[1], *window), "b0": (40,), "w1": (40, 1, *(3 for _ in window)),
            "w2": (7, 40, *ones), "b2": (7,), "w3": (20, 4, *(3 for _ in window)),
        },
    )  # fmt: skip
    check_model(model, feeds(shape), opt_levels=(3,), rtol=1e-4, atol=1e-5)
    assert f"conv{len(window)}d" not in select(model)


@pytest.mark.parametrize(
    ("shape", "kernel", "attributes"),
    [
        ((1, 16, 7, 5, 9), (3, 1, 1), {"pads": [1, 0, 0, 1, 0, 0]}),
        ((2, 32, 9, 4, 15), (7, 1, 1), {"pads": [3, 0, 0, 2, 0, 0], "strides": [2, 1, 1]}),
        ((1, 16, 6, 5, 11), (3, 1, 3), {"pads": [4, 0, 0, 4, 0, 0], "dilations": [3, 1, 1]}),
        ((1, 16, 6, 7, 11), (2, 3, 1), {"pads": [0, 2, 0, 0, 0, 0], "strides": [1, 2, 3]}),
        ((1, 24, 14, 14), (5, 1), {"pads": [4, 0, 4, 0], "dilations": [2, 1]}),
        ((2, 16, 9, 17), (2, 3), {"pads": [0, 0, 1, 0], "strides": [3, 2]}),
    ],
)
@pytest.mark.parametrize("group", [1, 2])
def test_zeros_above_and_below_the_rows_are_not_stored(shape, kernel, attributes, group):
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], group=group, **attributes),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    model = conv_network(nodes, shape, {"w": (48, shape[1] // group, *kernel), "b": (48,)})
    built = convert_and_build(model, without=["Winograd"])
    source = built.sources()["schedule"]
    assert "conv2d_blocked" in source and "padded = " not in source
    (got,), (want,) = built.run(None, feeds(shape)), reference(model, feeds(shape))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "kernel", "attributes"),
    [
        ((1, 24, 28, 28), (5, 5), {"pads": [2, 2, 2, 2]}),  # rows in two parts, half registers
        ((3, 16, 30, 113), (3, 3), {"pads": [0, 1, 2, 0]}),
        ((2, 48, 13, 7), (5, 5), {"strides": [2, 2], "pads": [2, 2, 2, 2]}),
        ((1, 16, 8, 31), (3, 5), {"dilations": [2, 3], "pads": [2, 6, 2, 6]}),
    ],
)
def test_depthwise_convolutions_of_any_shape(shape, kernel, attributes):
    channels = shape[1]
    model = conv_network(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], group=channels, **attributes),
            helper.make_node("LeakyRelu", ["c"], ["y"], alpha=0.1),
        ],
        shape,
        {"w": (channels, 1, *kernel), "b": (channels,)},
    )
    check_model(model, feeds(shape), opt_levels=(3,), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("shape", "times", "kernel"),
    [
        ((2, 16, 9, 11), 9, (3, 3)),  # blocks of one channel and a part of the next
        ((1, 5, 7, 7), 16, (3, 3)),
        ((1, 24, 17, 13), 2, (5, 3)),
        ((3, 7, 40), 8, (3,)),
        ((1, 3, 8, 8), 5, (3, 3)),  # 15 channels fill no lanes
    ],
)
def test_several_filters_a_channel_are_no_product_of_channels(shape, times, kernel, symbolic):
    channels = shape[1]
    dims = ["n", channels, *"hw"[: len(kernel)]] if symbolic else shape
    around = {"pads": [size // 2 for size in kernel] * 2}
    model = conv_network(
        [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("Conv", ["r", "w", "b"], ["y"], group=channels, **around),
        ],
        dims,
        {"w": (channels * times, 1, *kernel), "b": (channels * times,)},
    )
    check_model(model, feeds(shape), opt_levels=(3,), rtol=1e-4, atol=1e-5)
    in_lanes = channels * times % 4 == 0
    assert ("depthwise_conv2d_blocked" in select(model)) == in_lanes
    assert "winograd" not in select(model)


FEW_REGISTERS = targets.resolve({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("shape", "filters", "group", "flat"),
    [
        ((1, 64, 7, 7), 256, 1, True),
        ((2, 320, 7, 7), 88, 1, True),
        ((1, 24, 14, 14), 144, 1, True),
        ((1, 17, 9, 7), 48, 1, True),
        ((1, 17, 5, 11), 48, 1, False),
        ((1, 32, 13, 3), 32, 2, True),
        ((1, 64, 8, 12), 64, 1, False),  # tiles fill rows
    ],
)
def test_windows_of_one_pixel_run_over_rows_that_tiles_do_not_fill(
    shape, filters, group, flat, gated
):
    """As machines of few registers have them; with a residual, and with a gate in front."""
    channels = shape[1]
    squeeze = [
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Sigmoid", ["p"], ["gate"]),
        helper.make_node("Mul", ["r", "gate"], ["s"]),
    ]
    source = "s" if gated else "r"
    model = conv_network(
        [
            helper.make_node("Relu", ["x"], ["r"]),
            *(squeeze if gated else []),
            helper.make_node("Conv", [source, "w0", "b0"], ["c0"], group=group),
            helper.make_node("Relu", ["c0"], ["r0"]),
            helper.make_node("Conv", ["r0", "w1"], ["c1"], group=group),
            helper.make_node("Add", ["c1", "r0"], ["a"]),
            helper.make_node("Relu", ["a"], ["y"]),
        ],
        shape,
        {
            "w0": (filters, channels // group, 1, 1), "b0": (filters,),
            "w1": (filters, filters // group, 1, 1),
        },
    )  # fmt: skip
    built, given = convert_and_build(model, FEW_REGISTERS), feeds(shape)
    (expected,) = run_onnxruntime(model, given)
    np.testing.assert_allclose(built(**given), expected, rtol=1e-4, atol=1e-5)
    sources = built.sources()
    assert ("flat" in sources["select"]) == flat
    # The rule of convolutions has taken all of them.
    kernels = [text for text in sources["schedule"].split("@T.prim_func") if "convolution" in text]
    assert len(kernels) == 2
    assert all("T.unroll" in text and '"flat"' not in text for text in kernels)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("shape", "steps"),
    [((1, 64, 14, 14), [2, 2]), ((2, 48, 13, 21), [2, 3]), ((1, 17, 21, 7), [3, 1])],
)
def test_windows_of_one_pixel_that_step_run_over_pixels_of_their_own(shape, steps, gated):
    gate = [
        helper.make_node("GlobalAveragePool", ["x"], ["p"]),
        helper.make_node("Mul", ["x", "p"], ["s"]),
    ]
    model = conv_network(
        [
            *(gate if gated else []),
            helper.make_node("Conv", ["s" if gated else "x", "w0", "b0"], ["c"], strides=steps),
            helper.make_node("Relu", ["c"], ["y"]),
        ],
        shape,
        {"w0": (256, shape[1], 1, 1), "b0": (256,)},
    )
    built, given = convert_and_build(model, FEW_REGISTERS), feeds(shape)
    (expected,) = run_onnxruntime(model, given)
    np.testing.assert_allclose(built(**given), expected, rtol=1e-4, atol=1e-5)
    kernels = [k for k in built.sources()["schedule"].split("@T.prim_func") if "convolution" in k]
    assert len(kernels) == 1
    assert "T.unroll" in kernels[0] and ('"flat"' in kernels[0] or '"gated"' in kernels[0])


GATED = conv_network(
    [
        helper.make_node("Conv", ["x", "w0"], ["c0"], pads=[1, 1, 1, 1], group=32),
        helper.make_node("GlobalAveragePool", ["c0"], ["p"]),
        helper.make_node("Conv", ["p", "w1", "b1"], ["c1"]),
        helper.make_node("Sigmoid", ["c1"], ["gate"]),
        helper.make_node("Mul", ["c0", "gate"], ["y"]),
    ],
    (1, 32, 6, 5),
    {"w0": (32, 1, 3, 3), "w1": (32, 32, 1, 1), "b1": (32,)},
)


def test_weights_of_run_time_are_packed_then():
    cases = {
        "a": ([40, 32, 3, 3], {"pads": [1, 1, 1, 1]}),
        "b": ([35, 32, 5, 5], {"strides": [2, 2]}),
        "c": ([32, 16, 3, 3], {"group": 2, "dilations": [2, 2]}),
        "d": ([32, 1, 7, 7], {"group": 32, "pads": [3, 3, 3, 3]}),
        "e": ([32, 4, 1, 1], {"group": 8}),
    }
    nodes = [helper.make_node("Conv", ["x", k], ["y" + k], **a) for k, (_, a) in cases.items()]
    shapes = {"x": [2, 32, 9, 13]} | {k: shape for k, (shape, _) in cases.items()}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in shapes.items()],
        [helper.make_empty_tensor_value_info("y" + k) for k in cases],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = onnx.shape_inference.infer_shapes(model)
    rng = np.random.default_rng(0)
    inputs = {k: rng.standard_normal(v).astype("float32") for k, v in shapes.items()}
    built = convert_and_build(model)
    for got, want in zip(built(**inputs), reference(model, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    # Groups that fill no block would have to be merged.
    text = built.sources()["select"].split("def main(")[1]
    assert len(re.findall(r"call_tir\(cls\.pack", text)) == 4


@pytest.mark.parametrize("images", [1, "N"])
def test_a_gate_is_computed_once_not_for_each_pixel(images):
    model = onnx.ModelProto()
    model.CopyFrom(GATED)
    if images == "N":
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = images
        del model.graph.value_info[:]
    text = convert_and_build(model, LLVM).sources()["fuse"]
    gate = next(line for line in text.splitlines() if "def " in line and "sigmoid" in line)
    assert "multiply" not in gate
    assert "add" in gate  # the bias is an epilogue all the same
    check_model(model, feeds((1, 32, 6, 5)), opt_levels=(3,), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "filters", "strides"),
    [
        ((1, 24, 28, 29), 40, [1, 1]),  # rows are shared, and gated where they are used
        ((3, 40, 7, 5), 24, [2, 1]),
        ((1, 640, 7, 7), 512, [1, 1]),  # channels are shared
        ((1, 10, 5, 3), 7, [1, 1]),  # no whole blocks
    ],
)
def test_gated_channels_enter_a_projection(shape, filters, strides):
    channels = shape[1]
    model = conv_network(
        [
            helper.make_node("Conv", ["x", "w0"], ["c0"], group=channels),
            helper.make_node("GlobalAveragePool", ["c0"], ["p"]),
            helper.make_node("Conv", ["p", "w1", "b1"], ["c1"]),
            helper.make_node("Sigmoid", ["c1"], ["gate"]),
            helper.make_node("Mul", ["gate", "c0"], ["gated"]),
            helper.make_node("Conv", ["gated", "w2", "b2"], ["c2"], strides=strides),
            helper.make_node("Relu", ["c2"], ["y"]),
        ],
        shape,
        {
            "w0": (channels, 1, 1, 1),
            "w1": (channels, channels, 1, 1),
            "b1": (channels,),
            "w2": (filters, channels, 1, 1),
            "b2": (filters,),
        },
    )
    if channels != 10:
        names = [kernel.symbol for kernel in convert_and_build(model, LLVM).executor.plan.kernels]
        assert any("gated_conv2d_blocked" in name for name in names)
        assert not any("multiply" in name for name in names)
    check_model(model, feeds(shape), opt_levels=(3,), rtol=1e-4, atol=1e-4)


def test_a_concat_of_single_blocks_stays_blocked():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Concat", ["c", "r", "c"], ["cat"], axis=1),
        helper.make_node("Conv", ["cat", "v"], ["y"]),
    ]
    model = conv_network(nodes, (1, 16, 5, 7), {"w": (16, 16, 3, 3), "v": (16, 48, 1, 1)})
    assert select(model).count("unblock") == 1
    check_model(model, feeds((1, 16, 5, 7)), opt_levels=(2, 3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 8, 5, 7), (2, 8, 1, 3), (None, 8, 6, 5)], ids=str)
@pytest.mark.parametrize("first, second", [(24, 24), (8, 56), (4, 44), (48, 20)])
def test_channels_of_other_blocks_are_joined_as_blocks(first, second, shape):
    """As many as fill whole vectors together, and not by themselves; of any number of images."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["x", "u"], ["d"]),
        helper.make_node("Relu", ["d"], ["r"]),
        helper.make_node("Concat", ["c", "r"], ["cat"], axis=1),
        helper.make_node("Conv", ["cat", "v"], ["e"], group=first + second, pads=[1, 1, 1, 1]),
        helper.make_node("Split", ["e", "sizes"], ["f", "g"], axis=1),
        helper.make_node("Conv", ["f", "t"], ["h"]),
        helper.make_node("Conv", ["g", "s"], ["k"]),
        helper.make_node("Add", ["h", "k"], ["y"]),
    ]
    weights = {"w": (first, 8, 3, 3), "u": (second, 8, 1, 1), "v": (first + second, 1, 3, 3)}
    weights |= {"t": (16, first, 1, 1), "s": (16, second, 1, 1)}
    named = ["n" if dim is None else dim for dim in shape]
    model = conv_network(nodes, named, weights)
    sizes = numpy_helper.from_array(np.array([first, second], "int64"), "sizes")
    model.graph.initializer.append(sizes)
    del model.graph.value_info[:]  # inferred without the sizes
    assert select(model).count("unblock") == 1
    x = feeds([3 if dim is None else dim for dim in shape])
    check_model(model, x, opt_levels=(2, 3), rtol=1e-4, atol=1e-5)


def test_a_concat_chooses_by_block_not_by_lane():
    text = convert_and_build(CHAIN, LLVM).sources()["select"]
    conditions = [
        line for line in text.splitlines() if "T_concat" in line and "if_then_else" in line
    ]
    assert conditions and all("if_then_else(T.int64(2) <= v1," in line for line in conditions)


def module_of(*operators):
    """``main`` applies each operator to ``x[1, 32, 5, 5]``."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([1, 32, 5, 5], "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            results = [bb.emit(operator(x)) for operator in operators]
            output = bb.emit_output(relax.Tuple(results))
        bb.emit_func_output(output)
    return bb.get()


def test_a_kernel_that_mixes_channels_is_not_lifted():
    module = legalize()(
        module_of(
            relax.op.nn.relu,
            lambda x: relax.op.nn.softmax(x, 1),
            lambda x: relax.op.flip(x, 1),
            lambda x: relax.op.nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1]),
            lambda x: relax.op.concat([x, x], 1),
        )
    )
    for lanes in (16, 32):  # two blocks, and exactly one
        lifted = {
            gv.name_hint: lift_channels(f, lanes) is not None
            for gv, f in module.functions_items()
            if isinstance(f, tvm.tirx.PrimFunc)
        }
        expected = {"relu": True, "softmax": False, "flip": False, "pad": True, "concatenate": True}
        assert lifted == expected


def test_a_program_is_not_lifted():
    """No block says what it writes: what scatters rows into channels did not build."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 17]>
        graph (float[2, 7, 16] x, int64[2, 2] at, float[2, 16] rows) => (float[2, 8, 16] y)
        {
            c = Conv <kernel_shape = [5], pads = [2, 2]> (x, w)
            r = Relu (c)
            y = ScatterND (r, at, rows)
        }""")
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((8, 7, 5)).astype("float32") / 6
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    arrays = {
        "x": rng.standard_normal((2, 7, 16)).astype("float32"),
        "at": np.array([[0, 5], [1, -2]]),
        "rows": rng.standard_normal((2, 16)).astype("float32"),
    }
    check_model(model, arrays, opt_levels=(3,))


def test_a_line_of_a_sum_of_dims_and_fewer_filters_than_a_block():
    """TVM's search for reshapes ended with an error where a kernel divides by such a sum."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 9]>
        graph (float[2, 2, t] x) => (float[a, b, c] y) <float[3] s = {1, 1, 2}> {
            c = Conv <kernel_shape = [2], pads = [1, 2]> (x, w)
            y = Upsample <mode = "linear"> (c, s)
        }""")
    rng = np.random.default_rng(4)
    weights = rng.standard_normal((2, 2, 2)).astype("float32")
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    given = {"x": rng.standard_normal((2, 2, 5)).astype("float32")}
    check_model(model, given, opt_levels=(3,), expected=run_onnxruntime(model, given))


def tokens(dims, channels, body):
    """A model of ``t``, tokens of so many channels; w is a depthwise window of 3 x 3."""
    head = '<ir_version: 9, opset_import: ["": 17]>'
    declared = ", ".join(map(str, dims))
    model = onnx.parser.parse_model(f"{head} case (float[{declared}] t) => (float y) {{ {body} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    window = np.random.default_rng(0).standard_normal((channels, 1, 3, 3)).astype("float32")
    model.graph.initializer.append(numpy_helper.from_array(window, "w"))
    return model


# Between tokens and an image: flat, and as rows and columns.
FLAT = """to = Constant <value_ints = [1, {c}, 6, 7]> ()
          flat = Constant <value_ints = [1, {c}, 42]> ()
          a = Transpose <perm = [0, 2, 1]> (t)  b = Reshape (a, to)
          q = Conv <group = {c}, pads = [1, 1, 1, 1]> (b, w)
          d = Reshape (q, flat)  e = Transpose <perm = [0, 2, 1]> (d)  y = Sigmoid (e)"""
SQUARE = """a = Transpose <perm = [0, 3, 1, 2]> (t)
            b = Conv <group = {c}, pads = [1, 1, 1, 1]> (a, w)  r = Relu (b)
            q = Conv <group = {c}, pads = [1, 1, 1, 1]> (r, w)
            e = Transpose <perm = [0, 2, 3, 1]> (q)  y = Sigmoid (e)"""


@pytest.mark.parametrize("channels", [32, 24, 5])
@pytest.mark.parametrize(
    ("dims", "shape", "body"),
    [
        ((1, 42, "{c}"), (1, 42), FLAT),
        ((1, 6, 7, "{c}"), (1, 6, 7), SQUARE),
        (("n", "h", "w", "{c}"), (2, 5, 3), SQUARE),
    ],
)
def test_transposes_between_tokens_and_images(dims, shape, body, channels):
    dims = [str(dim).format(c=channels) for dim in dims]
    model = tokens(dims, channels, body.format(c=channels))
    x = np.random.default_rng(1).standard_normal((*shape, channels)).astype("float32")
    built = convert_and_build(model, LLVM)
    if channels > 5:
        assert "permute_dims" not in built.sources()["select"]
    (got,), (want,) = (run(model, {"t": x}) for run in (run_here, run_onnxruntime))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def run_here(model, arrays):
    return convert_and_build(model, "llvm").run(None, arrays)


@pytest.mark.parametrize(
    "change",
    [
        ("perm = [0, 2, 1]> (d)", "perm = [2, 0, 1]> (d)"),  # other axes
        ("[1, {c}, 42]", "[1, 42, {c}]"),  # pixels are no axis
    ],
)
def test_other_transposes_are_what_they_were(change):
    model = tokens([1, 42, 32], 32, FLAT.replace(*change).format(c=32))
    x = np.random.default_rng(1).standard_normal((1, 42, 32)).astype("float32")
    (got,), (want,) = (run(model, {"t": x}) for run in (run_here, run_onnxruntime))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


# As SQUARE, with a reshape to as many rows and columns of other sizes on either side.
TURNED = """to = Constant <value_ints = [1, 32, 7, 6]> ()
            back = Constant <value_ints = [1, 32, 14, 3]> ()
            a = Transpose <perm = [0, 3, 1, 2]> (t)  b = Reshape (a, to)
            q = Conv <group = 32, pads = [1, 1, 1, 1]> (b, w)
            d = Reshape (q, back)  e = Transpose <perm = [0, 2, 3, 1]> (d)  y = Sigmoid (e)"""


def test_transposes_of_images_of_other_sizes():
    model = tokens([1, 6, 7, 32], 32, TURNED)
    x = np.random.default_rng(1).standard_normal((1, 6, 7, 32)).astype("float32")
    (got,), (want,) = (run(model, {"t": x}) for run in (run_here, run_onnxruntime))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_module_without_convolution_is_left_alone():
    before = module_of(relax.op.nn.relu)
    tvm.ir.assert_structural_equal(blocked_layout(LLVM)(before), before)


def test_scalars_beside_a_blocked_tensor():
    """The scalar is the result of a kernel, so that it stays an operand of rank 0."""
    shape = (1, 16, 5, 6)
    model = conv_network(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
            helper.make_node("Less", ["c", "top"], ["low"]),
            helper.make_node("Where", ["low", "c", "top"], ["y"]),
        ],
        shape,
        {"w": (16, 16, 3, 3)},
    )
    check_model(model, feeds(shape), opt_levels=(2, 3), rtol=1e-4, atol=1e-5)


def test_shapes_computed_at_run_time_have_no_block():
    """A broadcast of unknown sizes computes its shape: a value without a dtype."""
    declared = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ("a", "b")),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ("c", "d")),
    ]
    result = helper.make_empty_tensor_value_info("z")
    graph = helper.make_graph([helper.make_node("Add", ["x", "y"], ["z"])], "g", declared, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    arrays = {"x": np.float32([[1], [2]]), "y": np.float32([[10, 20, 30]])}
    check_model(onnx.shape_inference.infer_shapes(model), arrays, opt_levels=(3,))


def test_dims_that_are_equal_at_run_time_stay_equal():
    """Columns of tables whose numbers of rows have two names, as of pipelines of scikit-learn."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 17]>
        graph (float[a, 1] x, float[b, 1] y) => (float[c, 2] z)
        <float[2] k = {3, 5}> { t = Concat <axis = 1> (x, y)  m = Mod <fmod = 1> (t, k)
                                z = Add (m, k) }""")
    arrays = {"x": np.float32([[7], [9], [-8]]), "y": np.float32([[1], [6], [11]])}
    check_model(model, arrays, opt_levels=(3,))


def test_what_lies_before_a_branch_is_blocked_again_behind_it():
    """A blocked twin is a variable of its block of bindings: behind the branch it is not known."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 17]>
        graph (float[2, 16, 9, 8] x) => (float[2, 16, 9, 8] y, float[2, 16, 9, 8] z)
        <float one = {1}> {
            c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
            a = Add (c, one)
            top = ReduceMax <keepdims = 0> (x)
            less = Less (top, one)
            b = If (less) <then_branch = then () => (t) { t = Softmax <axis = 3> (x) },
                           else_branch = other () => (e) { e = Softmax <axis = 1> (x) }>
            y = Mul (a, b)
            z = Mul (a, a)
        }""")
    weights = np.random.default_rng(2).standard_normal((16, 16, 3, 3)).astype("float32") / 12
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    check_model(model, feeds((2, 16, 9, 8)), opt_levels=(3,))


def test_taps_outside_of_the_image_are_left_out():
    """Windows that reach beyond small images, on either side, by more than they are dilated."""
    cases = {  # weights -> attributes, of x[2, 16, 9, 11]
        (24, 16, 3, 3): {"dilations": [4, 6], "pads": [4, 6, 4, 6]},
        (16, 16, 3, 1): {"dilations": [16, 1], "pads": [16, 0, 16, 0]},
        (8, 16, 5, 3): {"dilations": [3, 8], "pads": [11, 9, 5, 12], "strides": [2, 3]},
        (16, 1, 3, 5): {"dilations": [9, 2], "pads": [9, 1, 12, 5], "group": 16},
        (17, 16, 2, 2): {"dilations": [30, 30], "pads": [0, 30, 30, 0]},
        (16, 16, 2, 2): {"dilations": [40, 40], "pads": [20, 20, 20, 20]},
        (32, 16, 7, 7): {"pads": [3, 3, 3, 3]},
        (16, 16, 4, 9): {"dilations": [3, 2], "pads": [0, 14, 12, 8]},
    }
    names = [f"y{k}" for k in range(len(cases))]
    nodes = [
        helper.make_node("Conv", ["x", f"w{k}"], [name], **attributes)
        for k, (name, attributes) in enumerate(zip(names, cases.values(), strict=True))
    ]
    shape = 2, 16, 9, 11
    model = conv_network(nodes, shape, {f"w{k}": w for k, w in enumerate(cases)})
    del model.graph.output[:]
    outputs = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    model.graph.output.extend(outputs)
    compiled = convert_and_build(model)
    results = compiled.run(None, feeds(shape))
    for name, got, want in zip(names, results, reference(model, feeds(shape)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)
    # Of the fifth window one tap is left: packed, its last dims are blocks of channels.
    select = convert_and_build(model, LLVM).sources()["select"]
    assert re.search(r"(T.int64\(1\), ){2}T.int64\(\d+\), T.int64\(\d+\)\)", select)


def test_depthwise_products_of_integers_of_any_size():
    """Their pads are of another type than the image: it is not read as it is between them."""
    rng = np.random.default_rng(3)
    node = helper.make_node("ConvInteger", ["x", "w", "z"], ["y"], group=16, pads=[1] * 4)
    w = rng.integers(-9, 9, (16, 1, 3, 3), np.int8)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ("n", 16, "h", "w"))],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.uint8(7), "z")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = onnx.shape_inference.infer_shapes(model)
    built = convert_and_build(model, "llvm")
    for shape in (2, 16, 5, 31), (1, 16, 1, 1):
        x = {"x": rng.integers(0, 255, shape, np.uint8)}
        for got, expected in zip(built.run(None, x), reference(model, x), strict=True):
            np.testing.assert_array_equal(got, expected)
