"""A few random graphs; ``python -m tests.random_graphs FIRST LAST`` runs many."""

import numpy as np
import pytest

from tests import random_graphs
from tests.random_graphs import check
from tests.random_graphs.graph import Graph

LEVELS = [(True, 3), (False, 3), (True, 3), (False, 2), (True, 1), (False, 0)]


@pytest.mark.parametrize("seed", [1, 3, 4, 6, 7])
def test_random_graph(seed):
    assert check(seed, [LEVELS[seed % len(LEVELS)]]) == []


def test_what_lies_between_two_quantised_values_may_go_to_either(monkeypatch):
    """Sums of half steps, which onnxruntime without optimisations makes a little more or less."""
    g = Graph(np.random.default_rng(0), 13)
    x, zero = g.input([(61, 61), (5, 5)], [None, None]), g.const(0, "int8")
    scales = [g.const(s, "float32") for s in (0.1, 0.05, 0.01)]
    w = g.node("DequantizeLinear", g.const(g.rng.integers(-9, 9, (5, 8)), "int8"), scales[1], zero)
    x = g.node("DequantizeLinear", g.node("QuantizeLinear", x, scales[0], zero), scales[0], zero)
    total = g.node("QuantizeLinear", g.node("MatMul", x, w), scales[2], zero)
    g.outputs = [g.node("DequantizeLinear", total, scales[2], zero)]
    asked = []
    optimised = random_graphs._optimised
    monkeypatch.setattr(random_graphs, "_optimised", lambda *a: asked.append(a) or optimised(*a))
    model = g.model(False)
    wanted = [random_graphs._expected(g, 0, model)]
    assert random_graphs._difference(g, model, 3, wanted) is None
    assert asked


def test_a_wrong_result_is_found(monkeypatch):
    """Models that give half of what they should."""
    build = random_graphs.convert_and_build
    monkeypatch.setattr(random_graphs, "convert_and_build", lambda *a, **k: _Halved(build(*a, **k)))
    (failure,) = check(1, [(False, 0)])
    assert failure.name == "1-static-0" and "off, such as" in failure.reason


class _Halved:
    def __init__(self, built):
        self._built = built

    def run(self, names, feeds):
        return [y / 2 for y in self._built.run(names, feeds)]
