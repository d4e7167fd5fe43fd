"""MobileNetV2 (Sandler et al. 2018): inverted residuals with linear bottlenecks."""

import torch
from torch import nn

__all__ = ["MobileNetV2", "conv_norm", "mobilenetv2"]

# Expansion, output channels, repeats and first stride of each stage.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
SMALL_STAGES = ((1, 8, 1, 1), (6, 12, 2, 2), (6, 16, 2, 2))


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1):
    """A bias-less convolution that keeps the extent (over the stride), and batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter by 3x3 depthwise, project by 1x1 without activation."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int):
        super().__init__()
        hidden = inputs * expansion
        expand = [*conv_norm(inputs, hidden, 1), nn.ReLU6()] if expansion > 1 else []
        depthwise = [*conv_norm(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6()]
        self.branch = nn.Sequential(*expand, *depthwise, *conv_norm(hidden, outputs, 1))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.branch(x) if self.residual else self.branch(x)


class MobileNetV2(nn.Module):
    """``image[N, 3, H, W]`` to ``logits[N, classes]``."""

    def __init__(self, stages=STAGES, stem: int = 32, head: int = 1280, classes: int = 1000):
        super().__init__()
        layers: list[nn.Module] = [*conv_norm(3, stem, 3, 2), nn.ReLU6()]
        channels = stem
        for expansion, outputs, repeats, first_stride in stages:
            for repeat in range(repeats):
                stride = first_stride if repeat == 0 else 1
                layers.append(InvertedResidual(channels, outputs, stride, expansion))
                channels = outputs
        layers += [*conv_norm(channels, head, 1), nn.ReLU6()]
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(head, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.pool(self.features(image)).flatten(1))


def mobilenetv2(size: str) -> MobileNetV2:
    """MobileNetV2 at width 1.0."""
    if size == "small":
        return MobileNetV2(SMALL_STAGES, stem=8, head=32, classes=10)
    return MobileNetV2()
