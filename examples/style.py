"""Fast neural style (Johnson et al. 2016) with instance norm: an image-to-image network."""

import torch
from torch import nn

__all__ = ["StyleNet", "fast_neural_style"]


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution whose border is reflected."""
    return nn.Sequential(
        nn.ReflectionPad2d(kernel // 2), nn.Conv2d(inputs, outputs, kernel, stride)
    )


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A reflected convolution and instance norm."""
    return nn.Sequential(
        conv(inputs, outputs, kernel, stride), nn.InstanceNorm2d(outputs, affine=True)
    )


class Residual(nn.Module):
    """Two 3x3 convolutions around a residual connection, no activation after the sum."""

    def __init__(self, channels: int):
        super().__init__()
        self.branch = nn.Sequential(
            conv_norm(channels, channels, 3), nn.ReLU(), conv_norm(channels, channels, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.branch(x)


class StyleNet(nn.Module):
    """``image[N, 3, H, W]`` to an image of the same shape; H and W are multiples of four."""

    def __init__(self, width: int = 32, residuals: int = 5):
        super().__init__()
        self.layers = nn.Sequential(
            conv_norm(3, width, 9),
            nn.ReLU(),
            conv_norm(width, 2 * width, 3, 2),
            nn.ReLU(),
            conv_norm(2 * width, 4 * width, 3, 2),
            nn.ReLU(),
            *(Residual(4 * width) for _ in range(residuals)),
            nn.Upsample(scale_factor=2, mode="nearest"),
            conv_norm(4 * width, 2 * width, 3),
            nn.ReLU(),
            nn.Upsample(scale_factor=2, mode="nearest"),
            conv_norm(2 * width, width, 3),
            nn.ReLU(),
            conv(width, 3, 9),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.layers(image)


def fast_neural_style(size: str) -> StyleNet:
    """The style network, five residual blocks."""
    return StyleNet(width=4, residuals=1) if size == "small" else StyleNet()
