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
