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


class Basis(nn.Module):
    """What one block explains, the next does not see (N-BEATS, Oreshkin et al. 2020)."""

    def __init__(self, length: int = 32, horizon: int = 6):
        super().__init__()
        self.length = length
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(length, 24), nn.ReLU(), nn.Linear(24, length + horizon))
            for _ in range(3)
        )

    def forward(self, x):
        left, forecast = x[..., 0], 0
        for block in self.blocks:
            seen, ahead = block(left).split([self.length, block[-1].out_features - self.length], -1)
            left, forecast = left - seen, forecast + ahead
        return forecast


@fixed
def n_beats():
    return Network(Basis(), values())


class Decomposed(nn.Module):
    """Periods by the Fourier transform, trends by means (Autoformer, Wu et al. 2021)."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.first, self.last = nn.Linear(3, width), nn.Linear(width, 3)
        self.project = nn.Linear(width, 3 * width)

    def forward(self, x):
        padded = torch.cat([x[:, :1].expand(-1, 2, -1), x, x[:, -1:].expand(-1, 2, -1)], 1)
        trend = nn.functional.avg_pool1d(padded.transpose(1, 2), 5, 1).transpose(1, 2)
        q, k, v = self.project(self.first(x - trend)).chunk(3, -1)
        q, k = (torch.fft.rfft(part, dim=1) for part in (q, k))
        related = torch.fft.irfft(q * k.conj(), n=32, dim=1).mean(-1)
        weight, delay = related.topk(3, dim=1)
        weight, where = weight.softmax(-1), torch.arange(32)[None, :]
        seen = 0
        for each in range(3):
            rolled = (where + delay[:, each : each + 1]) % 32
            found = v.gather(1, rolled[..., None].expand(-1, -1, v.shape[-1]))
            seen = seen + weight[:, each, None, None] * found
        return self.last(seen) + trend


@fixed
def autoformer():
    return Network(Decomposed(), values())


class Selection(nn.Module):
    """Gated residuals choose among variables (Temporal Fusion Transformer, Lim et al. 2021)."""

    def __init__(self, count: int = 3, width: int = 16):
        super().__init__()
        self.embed = nn.ModuleList(nn.Linear(1, width) for _ in range(count))
        self.weigh = nn.Sequential(nn.Linear(count * width, 16), nn.ELU(), nn.Linear(16, count))
        self.rows = nn.LSTM(width, width, batch_first=True)
        self.gate = nn.Sequential(nn.Linear(width, 2 * width), nn.GLU(-1))
        self.norm = nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, 4, batch_first=True)
        self.quantiles = nn.Linear(width, 3)

    def forward(self, x):
        each = torch.stack([e(x[..., k : k + 1]) for k, e in enumerate(self.embed)], -2)
        weight = self.weigh(each.flatten(-2)).softmax(-1)
        chosen = (each * weight[..., None]).sum(-2)
        hidden = self.norm(chosen + self.gate(self.rows(chosen)[0]))
        size = x.shape[1]
        mask = torch.ones(size, size, dtype=torch.bool).triu(1)
        seen, found = self.attend(hidden, hidden, hidden, attn_mask=mask)
        return self.quantiles(hidden + seen), found


@series
def temporal_fusion():
    return Network(Selection(), values())


class Attending(nn.Module):
    """Attention along edges: a softmax over those that end in a node (GAT, 2018)."""

    def __init__(self, width: int = 12):
        super().__init__()
        self.project, self.score = nn.Linear(8, width), nn.Linear(2 * width, 1)
        self.last = nn.Linear(width, 4)

    def forward(self, features, sources, targets):
        x = self.project(features)
        pairs = torch.cat([x[sources], x[targets]], -1)
        score = nn.functional.leaky_relu(self.score(pairs), 0.2)[:, 0]
        blank = torch.full_like(x[:, 0], -1e9)
        most = blank.scatter_reduce(0, targets, score, "amax")
        weight = torch.exp(score - most[targets])
        total = torch.zeros_like(blank).scatter_reduce(0, targets, weight, "sum")
        message = x[sources] * (weight / total[targets])[:, None]
        where = targets[:, None].expand(-1, x.shape[1])
        return self.last(torch.zeros_like(x).scatter_reduce(0, where, message, "sum"))


class Pooled(nn.Module):
    """Sums over neighbours, then the mean of each graph (GIN, Xu et al. 2019)."""

    def __init__(self, width: int = 12):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 8))
        self.last = nn.Linear(8, 3)

    def forward(self, features, sources, targets):
        x = features
        for _ in range(2):
            where = targets[:, None].expand(-1, x.shape[1])
            x = self.layers(1.1 * x + torch.zeros_like(x).scatter_add(0, where, x[sources]))
        return self.last(x.mean(0))


def graph(nodes: int, edges: int) -> dict[str, torch.Tensor]:
    """Features [nodes, 8], and the two ends of each edge."""
    sources, targets = torch.randint(nodes, (2, edges))
    return {"features": torch.randn(nodes, 8), "sources": sources, "targets": targets}


@architecture(nodes=(9, 13), edges=(20, 31))
def graph_attention():
    return Network(Attending(), graph)


@architecture(nodes=(9, 13), edges=(20, 31))
def graph_isomorphism():
    return Network(Pooled(), graph)
