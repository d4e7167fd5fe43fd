"""A few random graphs; ``python -m tests.random_graphs FIRST LAST`` runs many."""

import pytest

from tests import random_graphs
from tests.random_graphs import check

LEVELS = [(True, 3), (False, 3), (True, 3), (False, 2), (True, 1), (False, 0)]


@pytest.mark.parametrize("seed", [1, 3, 4, 6, 7])
def test_random_graph(seed):
    assert check(seed, [LEVELS[seed % len(LEVELS)]]) == []


def test_what_lies_between_two_quantised_values_may_go_to_either():
    """A sum of this graph is 26.5 steps; onnxruntime gives 26 without optimisations, or 27."""
    assert check(25030, [(True, 3)]) == []


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
