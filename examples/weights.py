"""Random weights that keep every activation near unit variance, so that comparisons mean something.

Trained weights are not needed to compare two engines, but plain random ones make deep networks
vanish or explode; then every answer agrees, or none does.
"""

from collections.abc import Mapping

import torch
from torch import nn

__all__ = ["randomise"]


def randomise(module: nn.Module, inputs: Mapping[str, torch.Tensor], seed: int = 0) -> nn.Module:
    """Fill ``module`` with seeded random weights and return it in evaluation mode.

    Convolutions and linear layers preserve variance. Batch-norm statistics are those of
    ``inputs`` moved at random by up to half a variance, so that they are neither trivial nor
    absurd; scales and shifts of all normalisations are random.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in module.modules():
            _randomise_layer(layer, generator)
        norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
        if norms:
            _calibrate(module, norms, inputs, generator)
    return module.eval()


def _randomise_layer(layer: nn.Module, generator: torch.Generator) -> None:
    match layer:
        case nn.Conv2d() | nn.Linear():
            layer.weight.normal_(0, layer.weight[0].numel() ** -0.5, generator=generator)
            if layer.bias is not None:
                layer.bias.normal_(0, 0.1, generator=generator)
        case nn.BatchNorm2d() | nn.InstanceNorm2d() | nn.LayerNorm():
            layer.weight.uniform_(0.5, 1.5, generator=generator)
            layer.bias.normal_(0, 0.1, generator=generator)
        case nn.Embedding():
            layer.weight.normal_(0, 1, generator=generator)
        case nn.LSTM():
            for parameter in layer.parameters():
                parameter.uniform_(-1, 1, generator=generator).mul_(layer.hidden_size**-0.5)


def _calibrate(
    module: nn.Module,
    norms: list[nn.BatchNorm2d],
    inputs: Mapping[str, torch.Tensor],
    generator: torch.Generator,
) -> None:
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0  # the statistics of this one batch
    module.train()(*inputs.values())
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        shift = torch.empty_like(norm.running_mean).normal_(0, 0.1, generator=generator)
        norm.running_mean += shift * norm.running_var.sqrt()
        scale = torch.empty_like(norm.running_var).uniform_(0.5, 1.5, generator=generator)
        norm.running_var *= scale
