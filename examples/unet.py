"""UNet (Ronneberger et al. 2015) with batch norm and padding: an image to a mask of its size."""

import torch
from torch import nn

__all__ = ["UNet", "unet"]


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with batch norm and ReLU."""
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        conv = nn.Conv2d(channels, outputs, 3, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class Up(nn.Module):
    """Twice the extent, half of the channels, beside those of the way down."""

    def __init__(self, channels: int):
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, channels // 2, 2, 2)
        self.conv = double_conv(channels, channels // 2)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return self.conv(torch.cat([skip, self.up(x)], 1))


class UNet(nn.Module):
    """``image[N, 3, H, W]`` to ``mask[N, classes, H, W]``; H and W are multiples of 2**depth."""

    def __init__(self, width: int = 64, depth: int = 4, classes: int = 2):
        super().__init__()
        widths = [width << k for k in range(depth + 1)]
        self.stem = double_conv(3, width)
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), double_conv(channels, 2 * channels))
            for channels in widths[:-1]
        )
        self.up = nn.ModuleList(Up(channels) for channels in widths[:0:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = [self.stem(image)]
        for down in self.down:
            features.append(down(features[-1]))
        x = features.pop()
        for up in self.up:
            x = up(x, features.pop())
        return self.head(x)


def unet(size: str) -> UNet:
    """UNet of four levels, two classes."""
    return UNet(width=4, depth=2) if size == "small" else UNet()
