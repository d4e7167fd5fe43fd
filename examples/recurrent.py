"""A language-model-like LSTM: embedding, two recurrent layers, a linear decoder."""

import torch
from torch import nn

__all__ = ["LSTMNet", "lstm"]


class LSTMNet(nn.Module):
    """``tokens[N, T]`` to ``logits[N, T, vocabulary]``, starting from a zero state."""

    def __init__(self, vocabulary: int = 10000, channels: int = 512, layers: int = 2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, channels)
        self.recurrent = nn.LSTM(channels, channels, layers, batch_first=True)
        self.decoder = nn.Linear(channels, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.embedding(tokens))
        return self.decoder(hidden)


def lstm(size: str) -> LSTMNet:
    """A 2-layer LSTM."""
    return LSTMNet(vocabulary=50, channels=16) if size == "small" else LSTMNet()
