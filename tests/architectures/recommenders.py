"""Recommenders: embeddings of categories, crossed features, histories of what was seen."""

from itertools import pairwise

import torch
from torch import nn

from .registry import Network, architecture

users = architecture(batch=(5, 8))
histories = architecture(batch=(2, 3), sequence=(7, 12))
FIELDS = (11, 7, 29, 5)
WIDTH = 8


def tabular(batch: int) -> dict[str, torch.Tensor]:
    """4 numbers and one category per field."""
    return {
        "numbers": torch.randn(batch, 4),
        "categories": torch.stack([torch.randint(n, (batch,)) for n in FIELDS], 1),
    }


def perceptron(*widths: int) -> nn.Sequential:
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Embeddings(nn.Module):
    """[batch, fields] of categories -> [batch, fields, width]."""

    def __init__(self, width: int = WIDTH):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, width) for n in FIELDS)

    def forward(self, categories):
        found = [table(categories[:, k]) for k, table in enumerate(self.tables)]
        return torch.stack(found, 1)


class DeepLearningRecommender(nn.Module):
    """DLRM (Naumov et al. 2019): dot products of all pairs of features."""

    def __init__(self):
        super().__init__()
        self.bottom, self.embed = perceptron(4, 16, WIDTH), Embeddings()
        pairs = (len(FIELDS) + 1) * len(FIELDS) // 2
        self.top = perceptron(WIDTH + pairs, 16, 1)

    def forward(self, numbers, categories):
        dense = self.bottom(numbers)
        vectors = torch.cat([dense[:, None], self.embed(categories)], 1)
        dots = vectors @ vectors.transpose(1, 2)
        row, column = torch.tril_indices(len(FIELDS) + 1, len(FIELDS) + 1, -1)
        return torch.sigmoid(self.top(torch.cat([dense, dots[:, row, column]], 1)))


class WideAndDeep(nn.Module):
    """Cheng et al. 2016: hashed crosses of two fields beside a deep network."""

    def __init__(self):
        super().__init__()
        self.wide, self.embed = nn.EmbeddingBag(50, 1, mode="sum"), Embeddings()
        self.deep = perceptron(4 + WIDTH * len(FIELDS), 16, 1)

    def forward(self, numbers, categories):
        crosses = (categories[:, :-1] * 31 + categories[:, 1:] * 17) % 50
        deep = self.deep(torch.cat([numbers, self.embed(categories).flatten(1)], 1))
        return torch.sigmoid(self.wide(crosses) + deep)


class FactorisationMachine(nn.Module):
    """DeepFM (Guo et al. 2017)."""

    def __init__(self):
        super().__init__()
        self.first, self.embed = Embeddings(1), Embeddings()
        self.deep = perceptron(WIDTH * len(FIELDS), 16, 1)

    def forward(self, categories):
        vectors = self.embed(categories)
        second = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.first(categories).sum(1) + second + self.deep(vectors.flatten(1)))


class CrossNetwork(nn.Module):
    """DCN-v2 (Wang et al. 2021)."""

    def __init__(self, width: int = 4 + WIDTH * len(FIELDS)):
        super().__init__()
        self.embed = Embeddings()
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.last = nn.Linear(width, 1)

    def forward(self, numbers, categories):
        first = x = torch.cat([numbers, self.embed(categories).flatten(1)], 1)
        for layer in self.cross:
            x = first * layer(x) + x
        return self.last(x)


class NeuralCollaborativeFilter(nn.Module):
    """He et al. 2017: factors of matrices and a perceptron, side by side."""

    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(20, 2 * WIDTH)
        self.items = nn.Embedding(30, 2 * WIDTH)
        self.deep = perceptron(2 * WIDTH, 16, WIDTH)
        self.last = nn.Linear(2 * WIDTH, 1)

    def forward(self, user, item):
        (a, b), (c, d) = self.users(user).chunk(2, -1), self.items(item).chunk(2, -1)
        return torch.sigmoid(self.last(torch.cat([a * c, self.deep(torch.cat([b, d], -1))], -1)))


class TwoTowers(nn.Module):
    """Retrieval: the five nearest of all items, by cosine."""

    def __init__(self):
        super().__init__()
        self.embed, self.tower = Embeddings(), perceptron(WIDTH * len(FIELDS), 16, WIDTH)
        self.items = nn.Embedding(30, WIDTH)

    def forward(self, categories):
        query = nn.functional.normalize(self.tower(self.embed(categories).flatten(1)), dim=-1)
        items = nn.functional.normalize(self.items.weight, dim=-1)
        return torch.topk(query @ items.T, 5)


class SelfAttentiveHistory(nn.Module):
    """SASRec (Kang and McAuley 2018): a causal transformer on the items seen."""

    def __init__(self):
        super().__init__()
        self.items, self.places = nn.Embedding(30, 32), nn.Embedding(64, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2)
        )

    def forward(self, history):
        length = history.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)
        x = self.items(history) + self.places(torch.arange(length))
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return x @ self.items.weight.T


class RecurrentHistory(nn.Module):
    """GRU4Rec (Hidasi et al. 2016)."""

    def __init__(self):
        super().__init__()
        self.items, self.gru = nn.Embedding(30, 16), nn.GRU(16, 24, 2, batch_first=True)
        self.last = nn.Linear(24, 30)

    def forward(self, history):
        return self.last(self.gru(self.items(history))[0][:, -1])


class InterestNetwork(nn.Module):
    """DIN (Zhou et al. 2018): the history weighed by the candidate."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(30, WIDTH)
        self.weigh, self.last = perceptron(4 * WIDTH, 16, 1), perceptron(2 * WIDTH, 16, 1)

    def forward(self, history, candidate):
        seen, wanted = (
            self.items(history),
            self.items(candidate)[:, None].expand(-1, history.shape[1], -1),
        )
        scores = self.weigh(torch.cat([seen, wanted, seen - wanted, seen * wanted], -1))
        scores = scores.masked_fill((history == 0)[..., None], 0)
        interest = (scores * seen).sum(1)
        return torch.sigmoid(self.last(torch.cat([interest, wanted[:, 0]], -1)))


def seen(batch: int, sequence: int) -> dict[str, torch.Tensor]:
    return {"history": torch.randint(30, (batch, sequence))}


@users
def dlrm():
    return Network(DeepLearningRecommender(), tabular)


@users
def wide_and_deep():
    return Network(WideAndDeep(), tabular)


@users
def deep_fm():
    return Network(
        FactorisationMachine(), lambda batch: {"categories": tabular(batch)["categories"]}
    )


@users
def dcn_v2():
    return Network(CrossNetwork(), tabular)


@users
def ncf():
    return Network(
        NeuralCollaborativeFilter(),
        lambda batch: {
            "user": torch.randint(20, (batch,)),
            "item": torch.randint(30, (batch,)),
        },
    )


@users
def two_towers():
    return Network(TwoTowers(), lambda batch: {"categories": tabular(batch)["categories"]})


@histories
def sasrec():
    return Network(SelfAttentiveHistory(), seen)


@histories
def gru4rec():
    return Network(RecurrentHistory(), seen)


@histories
def din():
    return Network(
        InterestNetwork(),
        lambda batch, sequence: {
            **seen(batch, sequence),
            "candidate": torch.randint(30, (batch,)),
        },
    )


class Attentive(nn.Module):
    """Self-attention over fields (AutoInt, Song et al. 2019)."""

    def __init__(self):
        super().__init__()
        self.embed = Embeddings()
        self.attend = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.last = nn.Linear(WIDTH * len(FIELDS), 1)

    def forward(self, categories):
        x = self.embed(categories)
        return torch.sigmoid(self.last((x + self.attend(x, x, x)[0]).relu().flatten(1)))


@users
def auto_int():
    return Network(Attentive(), lambda batch: {"categories": tabular(batch)["categories"]})


class Experts(nn.Module):
    """Experts that two tasks weigh differently (MMoE, Ma et al. 2018)."""

    def __init__(self):
        super().__init__()
        self.embed, wide = Embeddings(), 4 + WIDTH * len(FIELDS)
        self.experts = nn.ModuleList(perceptron(wide, 16, 8) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(wide, 3, bias=False) for _ in range(2))
        self.towers = nn.ModuleList(perceptron(8, 8, 1) for _ in range(2))

    def forward(self, numbers, categories):
        x = torch.cat([numbers, self.embed(categories).flatten(1)], 1)
        found = torch.stack([expert(x) for expert in self.experts], 1)
        return [
            tower(torch.einsum("be,bew->bw", gate(x).softmax(-1), found)).sigmoid()
            for gate, tower in zip(self.gates, self.towers, strict=True)
        ]


@users
def mmoe():
    return Network(Experts(), tabular)


class Sparsemax(nn.Module):
    """Masks of features by sparsemax, step by step (TabNet, Arik and Pfister 2021)."""

    def __init__(self, count: int = 12):
        super().__init__()
        self.norm = nn.BatchNorm1d(count)
        self.features = nn.ModuleList(
            nn.Sequential(nn.Linear(count, 32), nn.BatchNorm1d(32), nn.GLU()) for _ in range(3)
        )
        self.masks = nn.ModuleList(nn.Linear(8, count) for _ in range(2))
        self.last = nn.Linear(8, 3)

    @staticmethod
    def sparsemax(x):
        ordered = x.sort(-1, descending=True)[0]
        sums, rank = ordered.cumsum(-1) - 1, torch.arange(1, x.shape[-1] + 1)
        support = (rank * ordered > sums).sum(-1, keepdim=True)
        return (x - sums.gather(-1, support - 1) / support).clamp(min=0)

    def forward(self, x):
        x = self.norm(x)
        seen, prior, found = self.features[0](x)[:, 8:], 1.0, 0.0
        for mask, features in zip(self.masks, self.features[1:], strict=True):
            chosen = self.sparsemax(mask(seen) * prior)
            prior = prior * (1.3 - chosen)
            part, seen = features(chosen * x).chunk(2, 1)
            found = found + part.relu()
        return self.last(found)


@users
def tab_net():
    return Network(Sparsemax(), lambda batch: {"x": torch.randn(batch, 12)})


class Tokens(nn.Module):
    """Every feature is a token (FT-Transformer, Gorishniy et al. 2021)."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.randn(4, WIDTH)) for _ in range(2))
        self.embed, self.first = Embeddings(), nn.Parameter(torch.randn(1, 1, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, numbers, categories):
        of_numbers = numbers[..., None] * self.scale + self.shift
        first = self.first.expand(len(numbers), -1, -1)
        x = torch.cat([first, of_numbers, self.embed(categories)], 1)
        return self.last(self.layers(x)[:, 0])


@users
def ft_transformer():
    return Network(Tokens(), tabular)


class Actions(nn.Module):
    """A policy with states from step to step, and the value of two critics."""

    def __init__(self):
        super().__init__()
        self.rows = nn.GRUCell(6, 16)
        self.policy, self.critics = nn.Linear(16, 8), nn.Linear(20, 2)

    def forward(self, observation, state):
        state = self.rows(observation, state)
        mean, spread = self.policy(state).chunk(2, -1)
        deviation = spread.clamp(-20, 2).exp()
        action = torch.tanh(mean)
        chance = -0.5 * mean.square() - deviation.log() - torch.log1p(-action.square() + 1e-6)
        value = self.critics(torch.cat([state, action], -1)).amin(-1)
        return action, chance.sum(-1), value, state


@users
def actor_critic():
    return Network(
        Actions(),
        lambda batch: {"observation": torch.randn(batch, 6), "state": torch.randn(batch, 16)},
    )
