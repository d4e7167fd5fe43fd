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
    """Statistics of what arrives at each norm when those before it are in place already."""

    def measure(norm: nn.BatchNorm2d, arguments: tuple[torch.Tensor]) -> None:
        variance, mean = torch.var_mean(arguments[0], (0, 2, 3), correction=0)
        shift = torch.empty_like(mean).normal_(0, 0.1, generator=generator)
        scale = torch.empty_like(mean).uniform_(0.5, 1.5, generator=generator)
        norm.running_mean = mean + shift * variance.sqrt()
        norm.running_var = variance * scale

    hooks = [norm.register_forward_pre_hook(measure) for norm in norms]
    module.eval()(*inputs.values())
    for hook in hooks:
        hook.remove()
