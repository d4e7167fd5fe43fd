"""The example models: what they are, what their export computes, what we make of it."""

import numpy as np
import onnxruntime
import pytest
import torch

from examples import EXAMPLES
from examples.export import export, main
from tests.small_examples import small_example
from tvm_ext import convert_and_build

# Published parameter counts: torchvision (ResNet-50, MobileNetV2, ViT-B/16; ResNet-101 is
# 44549160, its bias-less SE gates add 4743168; EfficientNet-B0), BERT-base uncased,
# pytorch/examples (style), milesial/Pytorch-UNet.
PARAMETERS = {
    "se_resnet101_ibn_a": 49292328,
    "resnet50": 25557032,
    "mobilenetv2": 3504872,
    "efficientnet_b0": 5288548,
    "bert_base": 109482240,
    "vit_b16": 86567656,
    "fast_neural_style": 1679235,
    "unet": 31037698,
    "detector": 3157184,
}


def torch_outputs(name, batch):
    """Small inputs as arrays, and what torch makes of them."""
    inputs = EXAMPLES[name].inputs("small", batch)
    with torch.inference_mode():
        outputs = EXAMPLES[name].build("small")(*inputs.values())
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return {key: value.numpy() for key, value in inputs.items()}, [y.numpy() for y in outputs]


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_full_size_is_the_published_one(name):
    with torch.device("meta"):
        module = EXAMPLES[name].definition("full")
    assert sum(p.numel() for p in module.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_outputs_are_of_order_one(name):
    _, outputs = torch_outputs(name, 2)
    for output in outputs:
        assert np.isfinite(output).all()
        assert 0.05 < output.std() < 20


def test_weights_depend_on_the_seed_alone():
    first, again = (EXAMPLES["resnet50"].build("small").state_dict() for _ in range(2))
    other = EXAMPLES["resnet50"].build("small", seed=1).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["stem.0.weight"], other["stem.0.weight"])


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_dynamic_export_computes_what_torch_does(name, exporter):
    model = small_example(name, exporter, dynamic=True)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    symbolic = {
        (value.name, axis): dim
        for value in session.get_inputs()
        for axis, dim in enumerate(value.shape)
        if isinstance(dim, str)
    }
    example = EXAMPLES[name]
    specialised = example.specialised if exporter == "dynamo" else ()
    assert symbolic == {
        (key, axis): dim
        for key in example.inputs("small")
        for axis, dim in example.dynamic[key].items()
        if dim not in specialised
    }
    feeds, expected = torch_outputs(name, 3)
    got = session.run(list(example.outputs), feeds)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_the_seed_model_has_what_it_is_named_after():
    model = small_example("se_resnet101_ibn_a")
    operators = [node.op_type for node in model.graph.node]
    blocks = 4  # of the small variant: one in each stage
    assert operators.count("MatMul") == 2 * blocks  # the gates: linear layers without bias
    assert operators.count("Sigmoid") == blocks
    assert operators.count("InstanceNormalization") == blocks - 1  # not in stage 4


def levels_of_examples():
    """Of the two whose builds take longest, those levels that no other test here builds."""
    long = "detector", "se_resnet101_ibn_a"
    for name in EXAMPLES:
        for level in range(4):
            # Level 1 is built with a symbolic batch, and level 3 does all that level 2 does.
            slow = [pytest.mark.slow] if name in long and level in (1, 2) else []
            yield pytest.param(name, level, marks=slow)


@pytest.mark.parametrize("name, opt_level", levels_of_examples())
def test_compiled_at_every_opt_level_it_agrees_with_torch(name, opt_level):
    feeds, expected = torch_outputs(name, 1)
    model = convert_and_build(small_example(name), "llvm", opt_level=opt_level)
    assert model.memory.live_bytes <= model.memory.arena_bytes <= 1.15 * model.memory.live_bytes
    for a, b in zip(model.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_dynamo_form_compiles(name):
    feeds, expected = torch_outputs(name, 1)
    model = convert_and_build(small_example(name, "dynamo"), "llvm")
    for a, b in zip(model.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_symbolic_batch_compiles_once_for_all_sizes(name):
    model = convert_and_build(small_example(name, dynamic=True), "llvm", opt_level=1)
    for batch in 1, 3:
        feeds, expected = torch_outputs(name, batch)
        for a, b in zip(model.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def test_the_command_line_writes_a_file(tmp_path, capsys):
    path = tmp_path / "lstm.onnx"
    main(["lstm", str(path), "--size", "small", "--batch", "2"])
    assert capsys.readouterr().out.strip() == str(path)
    assert onnxruntime.InferenceSession(path).get_inputs()[0].shape == [2, 9]


@pytest.mark.parametrize(
    "options", [{"name": "alexnet"}, {"exporter": "onnx"}, {"size": "tiny"}], ids=str
)
def test_unknown_choices_are_refused(options, tmp_path):
    with pytest.raises(ValueError, match=r"there are|is one of"):
        export(**{"name": "lstm", "path": tmp_path / "m.onnx"} | options)
