"""The examples by name: how to build each, and what goes in."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from .detector import detector
from .efficientnet import efficientnet_b0
from .mobilenet import mobilenetv2
from .recurrent import lstm
from .resnet import resnet50, se_resnet101_ibn_a
from .style import fast_neural_style
from .transformer import bert_base, vit_b16
from .unet import unet
from .weights import randomise

__all__ = ["EXAMPLES", "SIZES", "Example"]

SIZES = ("full", "small")
CALIBRATION_BATCH = 4

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Example:
    """One model: its definition, its inputs, the names of its outputs and dynamic dims.

    ``inputs_of(size, batch, generator)`` gives the inputs by name, in the order of the module's
    parameters; ``dynamic`` names, per input and output, the dims that may be left symbolic;
    ``specialised`` are those among them that ``torch.export`` fixes all the same.
    """

    name: str
    definition: Callable[[str], nn.Module]
    inputs_of: Callable[[str, int, torch.Generator], Inputs]
    outputs: tuple[str, ...]
    dynamic: dict[str, dict[int, str]] = field(default_factory=dict)
    specialised: tuple[str, ...] = ()

    def inputs(self, size: str = "full", batch: int = 1, seed: int = 1) -> Inputs:
        """Seeded random inputs by name."""
        _check_size(size)
        return self.inputs_of(size, batch, torch.Generator().manual_seed(seed))

    def build(self, size: str = "full", seed: int = 0) -> nn.Module:
        """The module in evaluation mode, with seeded random weights."""
        _check_size(size)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.definition(size)
        return randomise(module, self.inputs(size, CALIBRATION_BATCH), seed)


def _check_size(size: str) -> None:
    if size not in SIZES:
        raise ValueError(f"size is one of {SIZES}, not {size!r}")


def _image(small_side: int, full_side: int = 224) -> Callable[..., Inputs]:
    def inputs(size: str, batch: int, generator: torch.Generator) -> Inputs:
        side = small_side if size == "small" else full_side
        return {"image": torch.randn(batch, 3, side, side, generator=generator)}

    return inputs


def _text(size: str, batch: int, generator: torch.Generator) -> Inputs:
    length, vocabulary = (12, 100) if size == "small" else (128, 30522)
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[:, length - length // 4 :] = 0  # padding at the end, as a tokenizer leaves it
    tokens = torch.randint(vocabulary, (batch, length), generator=generator)
    return {"input_ids": tokens, "attention_mask": mask}


def _tokens(size: str, batch: int, generator: torch.Generator) -> Inputs:
    length, vocabulary = (9, 50) if size == "small" else (64, 10000)
    return {"tokens": torch.randint(vocabulary, (batch, length), generator=generator)}


BATCH = {0: "batch"}
SEQUENCE = {0: "batch", 1: "sequence"}
CLASSIFIER = {"image": BATCH, "logits": BATCH}

EXAMPLES = {
    example.name: example
    for example in (
        Example("se_resnet101_ibn_a", se_resnet101_ibn_a, _image(64), ("logits",), CLASSIFIER),
        Example("resnet50", resnet50, _image(64), ("logits",), CLASSIFIER),
        Example("mobilenetv2", mobilenetv2, _image(32), ("logits",), CLASSIFIER),
        Example("efficientnet_b0", efficientnet_b0, _image(32), ("logits",), CLASSIFIER),
        Example(
            "bert_base",
            bert_base,
            _text,
            ("hidden", "pooled"),
            {
                "input_ids": SEQUENCE,
                "attention_mask": SEQUENCE,
                "hidden": SEQUENCE,
                "pooled": BATCH,
            },
        ),
        Example("vit_b16", vit_b16, _image(48), ("logits",), CLASSIFIER),
        Example(
            "fast_neural_style",
            fast_neural_style,
            _image(32),
            ("stylised",),
            {"image": BATCH, "stylised": BATCH},
        ),
        Example("unet", unet, _image(32), ("mask",), {"image": BATCH, "mask": BATCH}),
        Example(
            "detector", detector, _image(64, 640), ("found",), {"image": BATCH, "found": BATCH}
        ),
        Example(
            "lstm",
            lstm,
            _tokens,
            ("logits",),
            {"tokens": SEQUENCE, "logits": SEQUENCE},
            specialised=("sequence",),  # torch.export unrolls nn.LSTM over time
        ),
    )
}
