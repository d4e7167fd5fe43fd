"""Forecasting and sequences: recurrent, convolutional, with patches."""

import torch
from torch import nn

from .registry import Network, architecture

series = architecture(batch=(2, 3), length=(24, 40))
fixed = architecture(batch=(2, 3))


def values(count: int = 3, length: int = 32, name: str = "x"):
    def inputs(batch, length=length):
        return {name: torch.randn(batch, length, count)}

    return inputs


@fixed
def patch_tst():
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    config = PatchTSTConfig(
        num_input_channels=3, context_length=32, patch_length=8, patch_stride=4, d_model=32,
        num_attention_heads=4, num_hidden_layers=2, ffn_dim=64, prediction_length=6,
        use_cls_token=False,
    )  # fmt: skip
    return Network(PatchTSTForPrediction(config), values(name="past_values"))


@fixed
def patch_ts_mixer():
    from transformers import PatchTSMixerConfig, PatchTSMixerForPrediction

    config = PatchTSMixerConfig(
        num_input_channels=3, context_length=32, patch_length=8, patch_stride=8, d_model=16,
        num_layers=2, prediction_length=6,
    )  # fmt: skip
    return Network(PatchTSMixerForPrediction(config), values(name="past_values"))


class Recurrent(nn.Module):
    """The last hidden states of a recurrent network, and all of its outputs."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


@fixed
def bidirectional_lstm():
    return Network(Recurrent(nn.LSTM(3, 16, 2, batch_first=True, bidirectional=True)), values())


@fixed
def elman():
    return Network(Recurrent(nn.RNN(3, 16, 2, batch_first=True)), values())


class Causal(nn.Module):
    """A block of a temporal convolutional network (Bai et al. 2018)."""

    def __init__(self, inputs: int, outputs: int, dilation: int):
        super().__init__()
        self.pad = 2 * dilation
        self.convolve = nn.utils.parametrizations.weight_norm(
            nn.Conv1d(inputs, outputs, 3, padding=self.pad, dilation=dilation)
        )
        self.shortcut = nn.Conv1d(inputs, outputs, 1)

    def forward(self, x):
        return torch.relu(torch.relu(self.convolve(x)[..., : -self.pad]) + self.shortcut(x))


class TemporalConvolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Causal(3 if k == 0 else 16, 16, 2**k) for k in range(3)))
        self.last = nn.Linear(16, 2)

    def forward(self, x):
        return self.last(self.blocks(x.transpose(1, 2))[..., -1])


@series
def temporal_convolutions():
    return Network(TemporalConvolutions(), values())


class DecomposedLinear(nn.Module):
    """DLinear (Zeng et al. 2023): a moving average and the rest, each through one layer."""

    def __init__(self, length: int = 32, horizon: int = 6):
        super().__init__()
        self.average = nn.AvgPool1d(5, 1)
        self.trend, self.season = nn.Linear(length, horizon), nn.Linear(length, horizon)

    def forward(self, x):
        ends = x[:, :1].expand(-1, 2, -1), x[:, -1:].expand(-1, 2, -1)
        trend = self.average(torch.cat([ends[0], x, ends[1]], 1).transpose(1, 2))
        return self.trend(trend) + self.season(x.transpose(1, 2) - trend)


@fixed
def d_linear():
    return Network(DecomposedLinear(), values())


class FourierMixer(nn.Module):
    """Frequencies of a series, weighed (after FreTS)."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(3, 16), nn.Linear(32, 4)

    def forward(self, x):
        found = torch.stft(
            self.layer(x).transpose(1, 2).flatten(0, 1), 16, 8, window=torch.hann_window(16),
            return_complex=False, onesided=True, center=False,
        )  # fmt: skip
        return found.square().sum(-1)


@fixed
def spectrogram():
    return Network(FourierMixer(), values())


class GraphConvolution(nn.Module):
    """Two layers of a graph convolutional network, messages added by scatter."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 16), nn.Linear(16, 4)

    def forward(self, nodes, edges):
        x = nodes
        for layer in (self.first, self.second):
            messages = layer(x)
            source, target = edges
            summed = torch.zeros_like(messages).index_add(0, target, messages[source])
            degree = torch.zeros_like(messages[:, 0]).index_add(
                0, target, torch.ones_like(messages[:, 0])[source]
            )
            x = torch.relu(messages + summed / (degree[:, None] + 1))
        return x


@architecture(nodes=(9, 13), edges=(20, 31))
def graph_convolution():
    return Network(
        GraphConvolution(),
        lambda nodes, edges: {
            "nodes": torch.randn(nodes, 5),
            "edges": torch.randint(9, (2, edges)),
        },
    )


class PointNet(nn.Module):
    """Qi et al. 2017: a maximum over points."""

    def __init__(self):
        super().__init__()
        self.points = nn.Sequential(
            nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1)
        )
        self.last = nn.Linear(32, 5)

    def forward(self, x):
        return self.last(self.points(x.transpose(1, 2)).amax(-1))


@series
def point_net():
    return Network(PointNet(), values())
