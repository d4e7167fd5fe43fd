"""Several sizes of symbolic dims in one package: which there are, and the constants they share."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from ..errors import OptionError
from ..executors.plan import Plan, Slot, aligned, aligned_bytes

__all__ = ["SharedWeights", "Sizes", "choices"]

Sizes = Mapping[str, int | Sequence[int]] | Sequence[Mapping[str, int]]


def choices(sizes: Sizes | None) -> list[dict[str, int]]:
    """The choices of sizes, each by the name of its symbolic dim; one without names for None.

    >>> choices({"batch": [1, 4], "length": 128})
    [{'batch': 1, 'length': 128}, {'batch': 4, 'length': 128}]

    Raises:
        OptionError: these are no sizes, choices name different dims, or one is there twice.
    """
    if sizes is None:
        return [{}]
    try:
        found = list(_listed(sizes))
    except (TypeError, ValueError) as error:
        raise OptionError(f"sizes are lists by the names of dims, not {sizes!r}") from error
    for choice in found:
        if choice.keys() != found[0].keys():
            raise OptionError(f"sizes are of the same dims each time, not {found[0]} and {choice}")
        if not all(type(size) is int and size > 0 for size in choice.values()):  # True is none
            raise OptionError(f"sizes map names of dims to whole numbers above 0, not {choice}")
    if not found or not found[0] or len({tuple(c.values()) for c in found}) != len(found):
        raise OptionError(f"sizes are one or more choices, each once, not {sizes!r}")
    return found


def _listed(sizes: Sizes) -> Iterator[dict[str, int]]:
    if isinstance(sizes, Mapping):
        lists = [[size] if isinstance(size, int) else list(size) for size in sizes.values()]
        yield from (dict(zip(sizes, choice, strict=True)) for choice in product(*lists))
    else:
        names = list(sizes[0]) if sizes else []  # one order for all
        for choice in sizes:
            yield {name: choice[name] for name in names if name in choice} | dict(choice)


class SharedWeights:
    """The constants of several plans as one block, in which equal ones are there once."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        self._contents: list[np.ndarray] = []
        self._bytes = 0

    def add(self, plan: Plan, weights: np.ndarray) -> Plan:
        """The same plan on the bytes of the common block."""
        moved = copy.deepcopy(plan)
        for slot in _weights_of(moved):
            content = weights[slot.offset : slot.offset + aligned(slot.nbytes)]
            key = hashlib.sha256(content.data).digest()
            if key not in self._places:
                self._places[key] = self._bytes
                self._contents.append(content)
                self._bytes += content.size
            slot.offset = self._places[key]
        return moved

    def block(self) -> np.ndarray:
        """All constants, each aligned."""
        whole = aligned_bytes(self._bytes)
        if self._contents:
            np.concatenate(self._contents, out=whole)
        return whole


def _weights_of(plan: Plan) -> Iterator[Slot]:
    """The slots of ``plan`` that hold constants, each once."""
    read = [slot.root for kernel in plan.kernels for slot in kernel.reads]
    read += [slot.root for region in plan.regions for slot in region.reads]
    read += [slot.root for check in plan.checks for _, slot, _ in check.reads]
    found = {id(slot): slot for slot in (*read, *(slot.root for slot in plan.outputs))}
    return (slot for slot in found.values() if slot.kind == "weight")
