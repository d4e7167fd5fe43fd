"""A detector after YOLOv8n (Jocher et al. 2023): cross-stage-partial blocks, a feature pyramid.

Boxes are distributions over distances, without anchors; the result is what suppression is given.
"""

import torch
from torch import nn

from .mobilenet import conv_norm

__all__ = ["Detector", "detector"]

#: Distances that a side of a box may have, in cells.
DISTANCES = 16


def conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    """Convolution, batch norm, SiLU."""
    return nn.Sequential(*conv_norm(inputs, outputs, kernel, stride), nn.SiLU())


class Bottleneck(nn.Module):
    """Two 3x3 convolutions, with a residual where ``residual``."""

    def __init__(self, channels: int, residual: bool):
        super().__init__()
        self.convs = nn.Sequential(conv(channels, channels, 3), conv(channels, channels, 3))
        self.residual = residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convs(x)
        return x + y if self.residual else y


class PartialStage(nn.Module):
    """Half of the channels through ``repeats`` bottlenecks, all that they make concatenated."""

    def __init__(self, inputs: int, outputs: int, repeats: int, residual: bool):
        super().__init__()
        half = outputs // 2
        self.split = conv(inputs, outputs)
        self.blocks = nn.ModuleList(Bottleneck(half, residual) for _ in range(repeats))
        self.join = conv((2 + repeats) * half, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.split(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        return self.join(torch.cat(parts, 1))


class PyramidPooling(nn.Module):
    """Maxima of windows of 5, 9 and 13 beside the features themselves."""

    def __init__(self, channels: int):
        super().__init__()
        self.squeeze = conv(channels, channels // 2)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.join = conv(channels // 2 * 4, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.squeeze(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.join(torch.cat(parts, 1))


class Head(nn.Module):
    """Boxes and scores of every cell of one level."""

    def __init__(self, channels: int, box: int, score: int, classes: int):
        super().__init__()
        self.boxes = nn.Sequential(
            conv(channels, box, 3), conv(box, box, 3), nn.Conv2d(box, 4 * DISTANCES, 1)
        )
        self.scores = nn.Sequential(
            conv(channels, score, 3), conv(score, score, 3), nn.Conv2d(score, classes, 1)
        )
        self.register_buffer("distance", torch.arange(float(DISTANCES)).view(DISTANCES, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[N, 4 + classes, H * W]``: centre and size as parts of the image, probabilities."""
        height, width = x.shape[2:]
        shares = self.boxes(x).unflatten(1, (4, DISTANCES)).softmax(2)
        left, top, right, bottom = (shares * self.distance).sum(2).unbind(1)
        rows = torch.arange(height, dtype=x.dtype, device=x.device).view(-1, 1) + 0.5
        columns = torch.arange(width, dtype=x.dtype, device=x.device) + 0.5
        centre = columns + (right - left) / 2, rows + (bottom - top) / 2
        sides = left + right, top + bottom
        box = [
            z / extent
            for pair in (centre, sides)
            for z, extent in zip(pair, (width, height), strict=True)
        ]
        return torch.cat([torch.stack(box, 1), self.scores(x).sigmoid()], 1).flatten(2)


class Detector(nn.Module):
    """``image[N, 3, H, W]`` to ``found[N, 4 + classes, cells]``; H and W are multiples of 32."""

    def __init__(self, widths: tuple[int, ...], repeats: tuple[int, ...], classes: int):
        super().__init__()
        first, *rest = widths
        self.stem = conv(3, first, 3, 2)
        stages = zip(widths, rest, repeats, strict=False)
        self.stages = nn.ModuleList(
            nn.Sequential(conv(a, b, 3, 2), PartialStage(b, b, n, True)) for a, b, n in stages
        )
        three, four, five = widths[-3:]
        self.pool = PyramidPooling(five)
        self.up = nn.Upsample(scale_factor=2)
        self.down4 = PartialStage(five + four, four, 1, False)
        self.down3 = PartialStage(four + three, three, 1, False)
        self.to4, self.to5 = conv(three, three, 3, 2), conv(four, four, 3, 2)
        self.up4 = PartialStage(three + four, four, 1, False)
        self.up5 = PartialStage(four + five, five, 1, False)
        box, score = max(16, three // 4, 4 * DISTANCES), max(three, min(classes, 100))
        self.heads = nn.ModuleList(
            Head(channels, box, score, classes) for channels in (three, four, five)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = [self.stem(image)]
        for stage in self.stages:
            features.append(stage(features[-1]))
        three, four, five = *features[-3:-1], self.pool(features[-1])
        inner4 = self.down4(torch.cat([self.up(five), four], 1))
        out3 = self.down3(torch.cat([self.up(inner4), three], 1))
        out4 = self.up4(torch.cat([self.to4(out3), inner4], 1))
        out5 = self.up5(torch.cat([self.to5(out4), five], 1))
        pairs = zip(self.heads, (out3, out4, out5), strict=True)
        return torch.cat([head(x) for head, x in pairs], 2)


def detector(size: str) -> Detector:
    """The nano size, 80 classes."""
    if size == "small":
        return Detector((4, 8, 8, 8, 16), (1, 1, 1, 1), classes=3)
    return Detector((16, 32, 64, 128, 256), (1, 2, 2, 1), classes=80)
