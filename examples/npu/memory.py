"""The device's memory: which bytes of its DRAM a tensor has while it is alive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Life", "allocate"]


@dataclass(frozen=True)
class Life:
    """A tensor of ``size`` floats, from the operator that writes it to the last that reads it."""

    size: int
    first: int
    last: int

    def meets(self, other: Life) -> bool:
        return self.first <= other.last and other.first <= self.last


def allocate(lives: Sequence[Life]) -> list[int]:
    """An address for each: no two that are alive at one time share a float.

    Largest first, each at the lowest address that is free for all of its life.
    """
    addresses: dict[int, int] = {}
    for number in sorted(range(len(lives)), key=lambda k: (-lives[k].size, lives[k].first)):
        life = lives[number]
        beside = sorted((at, lives[k].size) for k, at in addresses.items() if lives[k].meets(life))
        address = 0
        for start, size in beside:
            if start - address >= life.size:
                break
            address = max(address, start + size)
        addresses[number] = address
    return [addresses[number] for number in range(len(lives))]
