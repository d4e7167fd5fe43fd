"""BERT-base (Devlin et al. 2018) and ViT-B/16 (Dosovitskiy et al. 2020) on one attention."""

import torch
from torch import nn

__all__ = ["BERT", "ViT", "bert_base", "vit_b16"]


class Attention(nn.Module):
    """Multi-head self-attention written out, ``x[N, T, C]`` to the same shape."""

    def __init__(self, channels: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(channels, channels) for _ in range(4)
        )

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """``[N, T, C]`` to ``[N, heads, T, C / heads]``."""
        batch, tokens, channels = x.shape
        return x.view(batch, tokens, self.heads, channels // self.heads).transpose(1, 2)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        query, key, value = (self.split(f(x)) for f in (self.query, self.key, self.value))
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        if bias is not None:
            scores = scores + bias
        mixed = scores.softmax(-1) @ value
        return self.output(mixed.transpose(1, 2).flatten(2))


def feed_forward(channels: int) -> nn.Sequential:
    """The position-wise part of a layer: four times wider, exact GELU."""
    return nn.Sequential(
        nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
    )


class Layer(nn.Module):
    """Attention and feed-forward, each with its residual and layer norm.

    ``pre_norm`` normalises what enters a branch (ViT), otherwise what leaves the sum (BERT).
    """

    def __init__(self, channels: int, heads: int, *, epsilon: float, pre_norm: bool):
        super().__init__()
        self.pre_norm = pre_norm
        self.attention = Attention(channels, heads)
        self.attention_norm = nn.LayerNorm(channels, eps=epsilon)
        self.feed_forward = feed_forward(channels)
        self.feed_forward_norm = nn.LayerNorm(channels, eps=epsilon)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if self.pre_norm:
            x = x + self.attention(self.attention_norm(x), bias)
            return x + self.feed_forward(self.feed_forward_norm(x))
        x = self.attention_norm(x + self.attention(x, bias))
        return self.feed_forward_norm(x + self.feed_forward(x))


class BERT(nn.Module):
    """``input_ids[N, T]`` and ``attention_mask[N, T]`` to ``[N, T, C]`` and ``pooled[N, C]``."""

    def __init__(self, vocabulary=30522, channels=768, layers=12, heads=12, positions=512):
        super().__init__()
        self.words = nn.Embedding(vocabulary, channels)
        self.positions = nn.Embedding(positions, channels)
        self.segments = nn.Embedding(2, channels)
        self.norm = nn.LayerNorm(channels, eps=1e-12)
        self.layers = nn.ModuleList(
            Layer(channels, heads, epsilon=1e-12, pre_norm=False) for _ in range(layers)
        )
        self.pooler = nn.Linear(channels, channels)

    def forward(self, input_ids, attention_mask) -> tuple[torch.Tensor, torch.Tensor]:
        position = torch.arange(input_ids.shape[1], device=input_ids.device)
        segment = torch.zeros_like(input_ids)
        x = self.words(input_ids) + self.positions(position) + self.segments(segment)
        x = self.norm(x)
        # The lowest finite value: a row that is masked as a whole stays free of NaN.
        ignored = 1 - attention_mask[:, None, None, :].to(x.dtype)
        bias = ignored * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, bias)
        return x, torch.tanh(self.pooler(x[:, 0]))


class ViT(nn.Module):
    """``image[N, 3, S, S]`` to ``logits[N, classes]``; the patches are 16 x 16 pixels."""

    def __init__(self, side=224, channels=768, layers=12, heads=12, classes=1000, patch=16):
        super().__init__()
        self.patches = nn.Conv2d(3, channels, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, channels))
        tokens = (side // patch) ** 2 + 1
        self.positions = nn.Embedding(tokens, channels)
        self.layers = nn.ModuleList(
            Layer(channels, heads, epsilon=1e-6, pre_norm=True) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        patches = self.patches(image).flatten(2).transpose(1, 2)
        token = self.class_token.expand(image.shape[0], -1, -1)
        x = torch.cat([token, patches], dim=1) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        return self.classifier(self.norm(x)[:, 0])


def bert_base(size: str) -> BERT:
    """BERT-base, uncased vocabulary."""
    if size == "small":
        return BERT(vocabulary=100, channels=32, layers=2, heads=4, positions=32)
    return BERT()


def vit_b16(size: str) -> ViT:
    """ViT-B/16 at 224 x 224."""
    if size == "small":
        return ViT(side=48, channels=32, layers=2, heads=4, classes=10)
    return ViT()
