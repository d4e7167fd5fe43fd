"""Depthwise convolutions of what 1x1 convolutions make, in one kernel."""

import numpy as np
import onnx
import pytest
import torch
from onnx import parser
from torch import nn

from tests.oracle import reference
from tvm_ext import convert_and_build, pipeline, targets
from tvm_ext.build import leave_out
from tvm_ext.passes.expanded_depthwise import NAME, expanded_depthwise
from tvm_ext.schedules.llvm.expanded_depthwise import ExpandedDepthwise
from tvm_ext.schedules.numbers import NEVER

KERNEL = "expanded_depthwise"


def residual(image, channels, expanded, activation="Clip", window=3, behind=None, **attributes):
    """A model of an inverted residual, and its input."""
    rng = np.random.default_rng(0)
    batch, height, width = image
    activations = {
        "Clip": "{1} = Clip({0}, low, high)",
        "Silu": "s{1} = Sigmoid({0}) {1} = Mul({0}, s{1})",
        "HardSwish": "{1} = HardSwish({0})",
        "": "{1} = Identity({0})",
    }
    pads = attributes.pop("pads", [window // 2] * 4)
    options = "".join(f", {name}={value}" for name, value in attributes.items())
    body = f"""
        a = Conv (x, wa, ba)
        {activations[activation].format("a", "e")}
        b = Conv <group={expanded}, pads={pads}{options}> (e, wb, bb)
        {activations[activation].format("b", "d")}
        {behind or "y = Conv (d, wc, bc)"}
    """
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 22]>
        graph (float[{batch},{channels},{height},{width}] x) => (float[n,c,h,w] y) {{{body}}}"""
    )

    def weight(name, *shape):
        array = rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))
        array = array.astype("float32")
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))

    weight("wa", expanded, channels, 1, 1)
    weight("wb", expanded, 1, window, window)
    weight("wc", 24, expanded, 1, 1)
    for name, size in ("ba", expanded), ("bb", expanded), ("bc", 24):
        weight(name, size)
    for name, value in ("low", 0.0), ("high", 1.0):
        array = np.array(value, "float32")
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    x = rng.standard_normal((batch, channels, height, width)).astype("float32")
    return model, {"x": x}


def always(target):
    """The pipeline that makes such kernels also where they do not pay."""
    target = targets.resolve(target)
    rule = ExpandedDepthwise(stored=0.0, repeated=NEVER)
    steps = leave_out(pipeline.default(target), [NAME])
    return steps.insert(NAME, expanded_depthwise(target, rule), before="GatherDims")


def kernels(built):
    return [kernel for kernel in built.profile(repeat=1).kernels if KERNEL in kernel.kernel]


# Two kernels on some CPUs: no tile divides the rows, or blocks of channels are half a vector.
SOMEWHERE = [
    ((1, 28, 28), 24, 144, {"strides": [2, 2], "activation": "Silu"}),
    ((3, 13, 17), 8, 32, {"window": 5, "activation": "HardSwish"}),
    ((1, 37, 1), 16, 48, {"activation": ""}),
    ((1, 22, 61), 3, 32, {"pads": [0, 0, 1, 1]}),
]
ANYWHERE = [
    ((2, 31, 29), 24, 64, {"strides": [2, 2], "window": 5, "pads": [1, 2, 3, 2]}),
    ((1, 1, 41), 16, 32, {"strides": [2, 1]}),
    ((1, 19, 23), 40, 240, {"dilations": [2, 2], "pads": [2, 2, 2, 2], "activation": "Silu"}),
    ((1, 64, 64), 16, 96, {"behind": "m = GlobalAveragePool(d) y = Mul(d, m)"}),
    ((1, 24, 30), 24, 48, {"behind": "t = Conv (d, wc, bc) y = Relu(t)"}),
]


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=core-avx2"])
@pytest.mark.parametrize(("image", "channels", "expanded", "options"), [*SOMEWHERE, *ANYWHERE])
def test_results_are_those_of_both_convolutions(image, channels, expanded, options, target):
    model, feeds = residual(image, channels, expanded, **options)
    built = convert_and_build(model, steps=always(target))
    (wanted,) = reference(model, feeds)
    np.testing.assert_allclose(built.run(None, feeds)[0], wanted, rtol=1e-4, atol=1e-5)
    found = kernels(built)
    assert len(found) == 1 or (image, channels, expanded, options) in SOMEWHERE
    for kernel in found:
        assert sum(node.startswith("Conv") for node in kernel.nodes) == 2


@pytest.mark.parametrize("expanded", [32, 96])
def test_a_symbolic_number_of_images(expanded):
    model, _ = residual((1, 34, 30), 16, expanded, "HardSwish", strides=[2, 2])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    built = convert_and_build(model, steps=always("llvm"))
    assert KERNEL in built.sources()["schedule"]
    rng = np.random.default_rng(0)
    for images in 1, 4, 0:
        x = rng.standard_normal((images, 16, 34, 30)).astype("float32")
        (got,) = built.run(None, {"x": x})
        assert got.shape == (images, 24, 17, 15)
        if images:
            (wanted,) = reference(model, {"x": x})
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_bits_depend_neither_on_threads_nor_on_the_run():
    model, feeds = residual((1, 45, 40), 16, 96)
    one, two = (
        convert_and_build(model, steps=always(targets.resolve("llvm", threads)))
        for threads in (1, 2)
    )
    (first,), (second,), (again,) = (each.run(None, feeds) for each in (one, two, two))
    assert kernels(one) and kernels(two)
    assert first.tobytes() == second.tobytes() == again.tobytes()


def test_what_is_no_number_reaches_its_window_alone():
    model, feeds = residual((1, 20, 20), 16, 32, activation="")
    feeds["x"][0, 3, 0, 7], feeds["x"][0, 5, 12, 19] = np.nan, np.inf
    built = convert_and_build(model, steps=always("llvm"))
    (wanted,) = reference(model, feeds)
    (got,) = built.run(None, feeds)
    assert kernels(built)
    assert (np.isfinite(got) == np.isfinite(wanted)).all()


def test_an_expanded_image_that_others_read_is_stored():
    model, feeds = residual((1, 16, 16), 16, 32, behind="y = Add(d, e)")
    built = convert_and_build(model, steps=always("llvm"))
    assert not kernels(built)
    (wanted,) = reference(model, feeds)
    np.testing.assert_allclose(built.run(None, feeds)[0], wanted, rtol=1e-4, atol=1e-5)


def test_large_images_are_not_stored_and_need_less_memory():
    module = nn.Sequential(
        nn.Conv2d(16, 96, 1),
        nn.ReLU6(),
        nn.Conv2d(96, 96, 3, 2, 1, groups=96),
        nn.ReLU6(),
        nn.Conv2d(96, 24, 1),
    ).eval()
    x = torch.randn(1, 16, 128, 128, generator=torch.Generator().manual_seed(0))
    program = torch.onnx.export(module, (x,), dynamo=True, verbose=False)
    small, large = (
        convert_and_build(program.model_proto, targets.resolve("llvm", 2), without=without)
        for without in ((), (NAME,))
    )
    assert kernels(small) and not kernels(large)
    assert small.memory.arena_bytes < 0.5 * large.memory.arena_bytes
    (got,) = small.run(None, {small.inputs[0].name: x.numpy()})
    with torch.inference_mode():
        np.testing.assert_allclose(got, module(x).numpy(), rtol=1e-4, atol=1e-5)
