"""Example inputs that several families share: functions that give what makes them from sizes."""

from collections.abc import Callable

import torch

__all__ = ["audio", "features", "image", "text"]

Inputs = Callable[..., dict[str, torch.Tensor]]


def text(vocabulary: int, mask: str | None = "attention_mask", **more: int) -> Inputs:
    """``input_ids`` [batch, sequence], their mask, and further ids below the given limits."""

    def inputs(batch: int, sequence: int) -> dict[str, torch.Tensor]:
        made = {"input_ids": torch.randint(3, vocabulary, (batch, sequence))}
        if mask:
            made[mask] = padding_mask(batch, sequence)
        for name, limit in more.items():
            made[name] = torch.randint(limit, (batch, sequence))
        return made

    return inputs


def padding_mask(batch: int, sequence: int) -> torch.Tensor:
    """1 where there is a token: the last row ends in two pads."""
    mask = torch.ones(batch, sequence, dtype=torch.int64)
    mask[-1, -2:] = 0
    return mask


def image(height: int, width: int | None = None, name: str = "pixel_values",
          channels: int = 3) -> Inputs:  # fmt: skip
    """[batch, channels, height, width]; with a dim ``side``, that side instead."""

    def inputs(batch: int = 1, side: int | None = None) -> dict[str, torch.Tensor]:
        size = (side, side) if side else (height, width or height)
        return {name: torch.randn(batch, channels, *size)}

    return inputs


def audio(name: str = "input_values") -> Inputs:
    """Samples [batch, samples]."""

    def inputs(batch: int, samples: int) -> dict[str, torch.Tensor]:
        return {name: torch.randn(batch, samples)}

    return inputs


def features(count: int, name: str = "input_features") -> Inputs:
    """Frames [batch, frames, count]."""

    def inputs(batch: int, frames: int) -> dict[str, torch.Tensor]:
        return {name: torch.randn(batch, frames, count)}

    return inputs
