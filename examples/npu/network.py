"""A small network with something for the accelerator, and something that it cannot compute."""

import io

import onnx
import torch
from torch import nn

__all__ = ["INPUT", "SmallCnn", "to_onnx"]

INPUT = (1, 3, 64, 64)


class SmallCnn(nn.Module):
    """Convolutions, pooling, a residual block; a gate and a classifier that stay on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.block = nn.Sequential(
            nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1)
        )
        self.wide = nn.Conv2d(24, 96, 3, stride=2, padding=1)
        self.narrow = nn.Conv2d(96, 40, 1)
        self.classifier = nn.Linear(40, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(image)
        x = torch.relu(self.block(x) + x)
        x = nn.functional.hardswish(self.wide(x))
        x = torch.relu(self.narrow(x))
        return self.classifier(x.mean((2, 3)))


def to_onnx(seed: int = 0) -> onnx.ModelProto:
    """The network with seeded random weights: ``image[1, 3, 64, 64]`` -> ``logits[1, 10]``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = SmallCnn().eval()
    buffer = io.BytesIO()
    torch.onnx.export(
        module,
        (torch.zeros(INPUT),),
        buffer,
        dynamo=False,
        opset_version=17,
        input_names=["image"],
        output_names=["logits"],
    )
    return onnx.load_from_string(buffer.getvalue())
