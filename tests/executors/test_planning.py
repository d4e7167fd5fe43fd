"""The memory plan: what is alive together has bytes of its own, and few bytes are wasted."""

import random

import pytest

from tvm_ext.executors.plan import Slot, aligned
from tvm_ext.executors.planning import peak, place


def slots_of(rows):
    return [Slot((size,), "uint8", live=[first, last]) for size, first, last in rows]


def placed(slots):
    """The arena by its lower bound; no two slots that are alive together share a byte."""
    end = max(slot.live[1] for slot in slots)
    bound = peak(slots, end)
    total = place(slots, bound)
    for k in range(end + 1):
        alive = sorted((s.offset, s.nbytes) for s in slots if s.live[0] <= k <= s.live[1])
        ends = [0, *(offset + size for offset, size in alive)]
        assert all(start >= end for (start, _), end in zip(alive, ends, strict=False))
        assert ends[-1] <= total
    return total / bound


def test_a_chain_whose_last_link_would_be_in_the_way():
    """As at the end of an image network: the largest takes the place that the second next needs."""
    chain = [(660, 0, 1), (320, 1, 2), (320, 2, 3), (1300, 3, 4), (640, 4, 5), (640, 5, 6)]
    assert placed(slots_of([*((64 * s, a, b) for s, a, b in chain), (64 * 690, 6, 7)])) == 1


@pytest.mark.parametrize("seed", range(20))
def test_tensors_of_any_size_and_life(seed):
    rng = random.Random(seed)
    count = rng.randint(3, 60)
    starts = [rng.randint(0, count) for _ in range(count)]
    rows = [(rng.randint(1, 4000), a, a + rng.choice([0, 1, 1, 2, 9])) for a in starts]
    assert placed(slots_of(rows)) <= 1.15


def test_offsets_are_aligned():
    slots = slots_of([(1, 0, 2), (65, 0, 2), (7, 1, 2)])
    assert place(slots, 0) == 64 + 128 + 64
    assert all(slot.offset == aligned(slot.offset) or slot.offset == 0 for slot in slots)
