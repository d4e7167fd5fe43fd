"""From a scheduled module to the memory plan of a static model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .plan import Check, Kernel, Plan, Slot, aligned, aligned_bytes
from .repeated import repeated
from .walk import Walk

__all__ = ["Draft", "adjacent", "alive_during", "draft", "peak", "place"]


@dataclass(frozen=True)
class Draft:
    """Which kernel runs when on which tensors, before these have places in the arena.

    Attributes:
        weights: the constants as bytes: one after the other, each aligned.
        arena: the tensors that want places.
        checks: of values, which end a run.
    """

    kernels: tuple[Kernel, ...]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    weights: np.ndarray
    arena: tuple[Slot, ...]
    checks: tuple[Check, ...] = ()

    def plan(self, scratch: Mapping[str, Sequence[int]], thread_bytes: int = 0) -> Plan:
        """The plan where kernels have arrays of their own: of so many bytes each, by symbol.

        Each thread takes ``thread_bytes`` more within parallel loops.
        """
        kernels = tuple(
            replace(kernel, scratch=alive_during(number, scratch.get(kernel.symbol, ())))
            for number, kernel in enumerate(self.kernels)
        )
        arena = [*self.arena, *(slot for kernel in kernels for slot in kernel.scratch)]
        live = peak(arena, len(kernels))
        total = place(arena, live)
        sizes = self.weights.size, total, live, thread_bytes
        return Plan(kernels, self.inputs, self.outputs, *sizes, self.checks)


def alive_during(kernel: int, sizes: Sequence[int]) -> tuple[Slot, ...]:
    """Slots of so many bytes for one kernel alone."""
    return tuple(Slot((size,), "uint8", live=[kernel, kernel]) for size in sizes)


def draft(walk: Walk) -> Draft:
    """What ``main`` of the module of ``walk`` runs, whose kernels are all of static shape.

    Raises:
        NotStatic: ``main`` holds symbolic shapes, or what ``walk`` does not follow.
    """
    inputs, outputs = walk.run(walk.module["main"])
    arena = tuple(slot for slot in walk.arena if slot.kind == "arena")
    kernels, checks = repeated(walk.kernels, outputs, walk.parts), tuple(walk.checks)
    return Draft(kernels, inputs, outputs, adjacent(walk.weights), arena, checks)


def adjacent(weights: Mapping[Slot, np.ndarray]) -> np.ndarray:
    """All ``weights`` in one block, equal ones once; each slot learns its offset.

    A layer that is used several times has been packed for each use.
    """
    kept, same = _distinct(weights)
    whole = aligned_bytes(sum(aligned(weights[slot].nbytes) for slot in kept))
    offset = 0
    for slot in kept:
        array = weights[slot]
        place = whole[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
        place[...] = array
        slot.offset = offset
        end = offset + aligned(array.nbytes)
        whole[offset + array.nbytes : end] = 0  # the same bytes in every build
        offset = end
    for slot, first in same.items():
        slot.offset = first.offset
    return whole


def _distinct(weights: Mapping[Slot, np.ndarray]) -> tuple[list[Slot], dict[Slot, Slot]]:
    """The first of each group of equal bytes; and of the others, which they are equal to."""
    kept: list[Slot] = []
    same: dict[Slot, Slot] = {}
    alike: defaultdict[tuple[int, bytes], list[Slot]] = defaultdict(list)
    for slot, array in weights.items():
        content = _bytes(array)
        # Arrays that differ, but in none of these, are compared as a whole.
        sample = content[:: content.size // 64 + 1].tobytes()
        firsts = alike[content.size, sample]
        first = next((s for s in firsts if np.array_equal(_bytes(weights[s]), content)), None)
        if first is None:
            kept.append(slot)
            firsts.append(slot)
        else:
            same[slot] = first
    return kept, same


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view("uint8")


_TRIES = 32


def place(slots: Sequence[Slot], bound: int) -> int:
    """Give each slot an offset; the bytes of all, which are ``bound`` at least.

    The largest slots are placed first. Where that wastes memory, it is tried again with those
    first that ended above the bound: usually they want a place that smaller ones do not need.
    """
    order = sorted(slots, key=lambda s: (-s.nbytes, s.live[0]))
    best, offsets = -1, [0] * len(slots)
    for _ in range(_TRIES):
        total = _lay(order)
        if best < 0 or total < best:
            best, offsets = total, [slot.offset for slot in slots]
        if total <= bound:
            break
        order.sort(key=lambda s: s.offset + aligned(s.nbytes) <= bound)
    for slot, offset in zip(slots, offsets, strict=True):
        slot.offset = offset
    return best


def _lay(order: Sequence[Slot]) -> int:
    """Place slots one after the other, each where it fits best between what is alive beside it."""
    placed: list[Slot] = []
    total = 0
    for slot in order:
        size, cursor, best = aligned(slot.nbytes), 0, None
        neighbours = sorted((s for s in placed if _overlap(s, slot)), key=lambda s: s.offset)
        for other in neighbours:
            gap = other.offset - cursor
            if gap >= size and (best is None or gap < best[1]):
                best = cursor, gap
            cursor = max(cursor, other.offset + aligned(other.nbytes))
        slot.offset = cursor if best is None else best[0]
        total = max(total, slot.offset + size)
        placed.append(slot)
    return total


def _overlap(a: Slot, b: Slot) -> bool:
    return a.live[0] <= b.live[1] and b.live[0] <= a.live[1]


def peak(slots: Sequence[Slot], end: int) -> int:
    """The most bytes alive at one time, of ``end`` kernels."""
    return max(
        (
            sum(aligned(s.nbytes) for s in slots if s.live[0] <= k <= s.live[1])
            for k in range(end + 1)
        ),
        default=0,
    )
