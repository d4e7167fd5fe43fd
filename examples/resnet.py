"""ResNet-50, and ResNet-101 with squeeze-and-excitation and IBN-a blocks.

IBN-a (Pan et al. 2018): in the first three stages the first normalisation of a block treats half
of the channels by instance norm, the other half by batch norm. Squeeze-and-excitation (Hu et al.
2018): channels are weighted by a gate of two linear layers, here without bias.
"""

import torch
from torch import nn

__all__ = ["ResNet", "resnet50", "se_resnet101_ibn_a"]

EXPANSION = 4


class IBN(nn.Module):
    """Instance norm on the first half of the channels, batch norm on the second."""

    def __init__(self, channels: int):
        super().__init__()
        self.half = channels // 2
        self.instance = nn.InstanceNorm2d(self.half, affine=True)
        self.batch = nn.BatchNorm2d(channels - self.half)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = torch.split(x, [self.half, x.shape[1] - self.half], dim=1)
        return torch.cat([self.instance(first), self.batch(second)], dim=1)


class SqueezeExcitation(nn.Module):
    """Weight each channel by a gate computed from all channel means."""

    def __init__(self, channels: int, reduction: int = 16):
        super().__init__()
        self.squeeze = nn.AdaptiveAvgPool2d(1)
        self.gate = nn.Sequential(
            nn.Linear(channels, channels // reduction, bias=False),
            nn.ReLU(),
            nn.Linear(channels // reduction, channels, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.gate(self.squeeze(x).flatten(1))
        return x * gate[:, :, None, None]


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions around a residual connection."""

    def __init__(self, inputs: int, width: int, stride: int, *, ibn: bool, se: bool):
        super().__init__()
        outputs = width * EXPANSION
        self.branch = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            IBN(width) if ibn else nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
            SqueezeExcitation(outputs) if se else nn.Identity(),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.branch(x) + self.shortcut(x))


class ResNet(nn.Module):
    """``image[N, 3, H, W]`` to ``logits[N, classes]``; ``blocks`` holds the depth of each stage."""

    def __init__(
        self,
        blocks: tuple[int, ...],
        *,
        width: int = 64,
        classes: int = 1000,
        ibn: bool = False,
        se: bool = False,
    ):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        channels, stages = width, []
        for stage, depth in enumerate(blocks):
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                planes = width * 2**stage
                stages.append(Bottleneck(channels, planes, stride, ibn=ibn and stage < 3, se=se))
                channels = planes * EXPANSION
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.pool(self.stages(self.stem(image))).flatten(1))


def resnet50(size: str) -> ResNet:
    """ResNet-50 with the stride in the 3x3 convolution (He et al. 2015, the "v1.5" form)."""
    if size == "small":
        return ResNet((1, 1, 1, 1), width=8, classes=10)
    return ResNet((3, 4, 6, 3))


def se_resnet101_ibn_a(size: str) -> ResNet:
    """ResNet-101 with squeeze-and-excitation and IBN-a."""
    if size == "small":
        return ResNet((1, 1, 1, 1), width=8, classes=10, ibn=True, se=True)
    return ResNet((3, 4, 23, 3), ibn=True, se=True)
