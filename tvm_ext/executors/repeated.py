"""Loops over strips of a batch: how long tensors live in them, and which are of one strip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from .plan import Kernel, Slot

__all__ = ["repeated"]


def repeated(
    kernels: Sequence[Kernel], outputs: Sequence[Slot], parts: Mapping[Slot, Sequence[Any]]
) -> tuple[Kernel, ...]:
    """``kernels`` with the steps between strips; their tensors learn how long they live.

    ``parts``: the shape of a strip of what loops write.

    What a loop alone writes and reads takes the memory of a strip, and stays where it is. What
    else it writes is kept from the begin of the loop on: other kernels run before the next strip
    is written. What it reads is kept to its end.
    """
    found: list[Kernel] = []
    for strips, group in groupby(enumerate(kernels), lambda numbered: numbered[1].strips):
        numbers, run = zip(*group, strict=True)
        if strips is None:
            found += run
            continue
        first, last = numbers[0], numbers[-1]
        own = {slot for slot in _written(run) if slot.base is None and slot.live[1] <= last}
        own -= {slot.root for slot in outputs}
        for slot in own:
            slot.shape = tuple(parts[slot])
        for slot in {slot.root for kernel in run for slot in kernel.operands} - own:
            if slot.live[0] >= first:
                slot.live[0] = first
            if slot.live[1] <= last:
                slot.live[1] = last
        for kernel in run:
            steps = zip(kernel.operands, kernel.steps, strict=True)
            found.append(replace(kernel, steps=tuple(0 if s.root in own else n for s, n in steps)))
    return tuple(found)


def _written(run: Sequence[Kernel]) -> Iterator[Slot]:
    return (slot for kernel in run for slot in kernel.writes)
