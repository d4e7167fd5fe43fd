"""What convolutions of bfloat16 factors store for each other, against float64."""

import ml_dtypes
import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.oracle import node_model, reference
from tests.this_cpu import WITHOUT_TILES, needs_bfloat16
from tvm_ext import convert_and_build

pytestmark = needs_bfloat16


def rounded(array):
    return array.astype(ml_dtypes.bfloat16).astype(array.dtype)


def conv(x, weight, **attributes):
    (y,) = reference(node_model("Conv", [x, weight], attributes), {"x0": x, "x1": weight})
    return y


def model_of(nodes, x, weights, *outputs, images=None):
    value = helper.make_tensor_value_info
    shape = [images or len(x), *x.shape[1:]]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", 1, shape)],
        [value(name, 1, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = [helper.make_opsetid("", 22)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


def weights_of(*shapes):
    rng = np.random.default_rng(2)
    scaled = (rng.standard_normal(s) / np.sqrt(np.prod(s[1:])) for s in shapes)
    return {f"w{k}": array.astype("float32") for k, array in enumerate(scaled)}


NODES = [
    helper.make_node("Conv", ["x", "w0"], ["a0"]),
    helper.make_node("Relu", ["a0"], ["a"]),
    helper.make_node("Conv", ["a", "w1"], ["b0"], pads=[1, 0, 1, 2]),
    helper.make_node("Relu", ["b0"], ["b"]),
    helper.make_node("Conv", ["b", "w2"], ["c"]),
    helper.make_node("Add", ["c", "a"], ["d0"]),
    helper.make_node("Relu", ["d0"], ["d"]),
    helper.make_node("Conv", ["d", "w3"], ["y"], strides=[2, 2], pads=[1, 1, 0, 1]),
    helper.make_node("Sigmoid", ["d"], ["z"]),
]


def answer(x, weights, keep):
    """The two results and the last convolution of absolute values; ``keep``: what is stored."""
    w0, w1, w2, w3 = (rounded(w.astype("float64")) for w in weights.values())
    a = keep(np.maximum(conv(rounded(x.astype("float64")), w0), 0))
    b = keep(np.maximum(conv(rounded(a), w1, pads=[1, 0, 1, 2]), 0))
    d = keep(np.maximum(conv(rounded(b), w2) + a, 0))
    last = {"strides": [2, 2], "pads": [1, 1, 0, 1]}
    y, terms = conv(rounded(d), w3, **last), conv(abs(d), abs(w3), **last)
    return y, 1 / (1 + np.exp(-d)), terms


# 96 and 160 channels are six and ten blocks; the weights of 512 are fetched ahead.
@pytest.mark.parametrize(
    ("batch", "channels", "inner", "image"),
    [
        (1, 64, 32, (11, 13)),
        (2, 96, 160, (5, 7)),
        (1, 32, 64, (29, 1)),
        (1, 512, 256, (7, 7)),
        ("n", 64, 32, (6, 9)),
    ],
)
def test_they_are_pairs_of_bfloat16(batch, channels, inner, image):
    weights = weights_of(
        (channels, 24, 1, 1), (inner, channels, 3, 3), (channels, inner, 1, 1), (40, channels, 2, 3)
    )
    count = 3 if batch == "n" else batch
    x = np.random.default_rng(3).standard_normal((count, 24, *image), dtype="float32")
    options = {"precision": "bf16", "without": ("Winograd",)}
    model = model_of(NODES, x, weights, "y", "z", images=batch)
    built = convert_and_build(model, WITHOUT_TILES, **options)
    text = built.sources()["schedule"]
    assert text.count("channel_pairs_intermediate: ") == 3  # a, b and d
    assert "sblock_alloc_buffer" not in "".join(
        line for line in text.splitlines() if "convolution" in line and "local" not in line
    )
    y, z = built.run(None, {"x": x})
    wanted, unary, terms = answer(x, weights, rounded)
    # A sum that float32 puts on the other side of a tie is rounded the other way.
    assert (abs(y - wanted) <= 2.0**-7 * terms).all()
    assert np.quantile(abs(y - wanted) / terms, 0.9) <= 2.0**-14
    assert np.quantile(abs(z - unary), 0.9) <= 2.0**-20
    _, exact, _ = answer(x, weights, lambda array: array)
    assert np.quantile(abs(z - exact), 0.9) > 2.0**-14  # the test sees what is stored


@pytest.mark.parametrize(
    ("weight", "attributes"),
    [
        ((64, 16, 1, 1), {}),
        ((32, 1, 3, 3), {"group": 32, "pads": [0, 1, 2, 1], "strides": [2, 1]}),
        ((96, 1, 5, 1), {"group": 96, "pads": [2, 0, 2, 0]}),
    ],
)
def test_what_convolutions_alone_read_gives_the_same_bits(weight, attributes):
    weights = weights_of(weight, (32, weight[0], 1, 1))
    channels = weight[1] * attributes.get("group", 1)
    x = np.random.default_rng(4).standard_normal((1, channels, 5, 9), dtype="float32")
    x.flat[0], x.flat[77] = np.nan, np.inf
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a0"], **attributes),
        NODES[1],
        helper.make_node("Conv", ["a", "w1"], ["y"]),
    ]
    model = model_of(nodes, x, weights, "y")
    stored, plain = (
        convert_and_build(model, WITHOUT_TILES, precision="bf16", without=without)
        for without in ((), ("BFloat16Words",))
    )
    assert "channel_pairs_intermediate" in stored.sources()["schedule"]
    assert "channel_pairs_intermediate" not in plain.sources()["schedule"]
    (got,), (wanted,) = (built.run(None, {"x": x}) for built in (stored, plain))
    assert np.isnan(got).any() and np.isfinite(got).any()
    np.testing.assert_array_equal(got, wanted)


POOL = helper.make_node("MaxPool", ["a"], ["z"], kernel_shape=[3, 3])


@pytest.mark.parametrize(
    ("channels", "others", "outputs"),
    [(48, [], "y"), (64, [POOL], "yz"), (64, [], "ya"), (24, [], "y")],
    ids=["an odd number of blocks", "a pool", "the caller", "half a block"],
)
def test_it_stays_float_for_others(channels, others, outputs):
    weights = weights_of((channels, 16, 1, 1), (32, channels, 1, 1))
    x = np.random.default_rng(5).standard_normal((1, 16, 5, 9), dtype="float32")
    nodes = [*NODES[:2], helper.make_node("Conv", ["a", "w1"], ["y"]), *others]
    built = convert_and_build(
        model_of(nodes, x, weights, *outputs), WITHOUT_TILES, precision="bf16"
    )
    assert "channel_pairs_intermediate" not in built.sources()["schedule"]
    w0, w1 = (rounded(w.astype("float64")) for w in weights.values())
    a = np.maximum(conv(rounded(x.astype("float64")), w0), 0)
    y, *_ = built.run(None, {"x": x})
    assert (abs(y - conv(a, w1)) <= 2.0**-7 * conv(a, abs(w1))).all()
