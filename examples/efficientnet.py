"""EfficientNet-B0 (Tan and Le 2019): inverted residuals with squeeze-and-excitation and SiLU."""

import torch
from torch import nn

from .mobilenet import conv_norm

__all__ = ["EfficientNet", "efficientnet_b0"]

# Expansion, kernel, output channels, repeats and first stride of each stage.
STAGES = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)
SMALL_STAGES = ((1, 3, 8, 1, 1), (6, 5, 12, 2, 2))


class SqueezeExcitation(nn.Module):
    """Channels weighted by what their means say."""

    def __init__(self, channels: int, squeezed: int):
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.SiLU(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(x)


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter depthwise, weight the channels, project by 1x1."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        hidden = inputs * expansion
        expand = [*conv_norm(inputs, hidden, 1), nn.SiLU()] if expansion > 1 else []
        depthwise = [*conv_norm(hidden, hidden, kernel, stride, groups=hidden), nn.SiLU()]
        gate = SqueezeExcitation(hidden, max(1, inputs // 4))
        self.branch = nn.Sequential(*expand, *depthwise, gate, *conv_norm(hidden, outputs, 1))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.branch(x) if self.residual else self.branch(x)


class EfficientNet(nn.Module):
    """``image[N, 3, H, W]`` to ``logits[N, classes]``."""

    def __init__(self, stages=STAGES, stem: int = 32, head: int = 1280, classes: int = 1000):
        super().__init__()
        layers: list[nn.Module] = [*conv_norm(3, stem, 3, 2), nn.SiLU()]
        channels = stem
        for expansion, kernel, outputs, repeats, first_stride in stages:
            for repeat in range(repeats):
                stride = first_stride if repeat == 0 else 1
                layers.append(InvertedResidual(channels, outputs, kernel, stride, expansion))
                channels = outputs
        layers += [*conv_norm(channels, head, 1), nn.SiLU()]
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(head, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.pool(self.features(image)).flatten(1))


def efficientnet_b0(size: str) -> EfficientNet:
    """EfficientNet-B0."""
    if size == "small":
        return EfficientNet(SMALL_STAGES, stem=8, head=32, classes=10)
    return EfficientNet()
