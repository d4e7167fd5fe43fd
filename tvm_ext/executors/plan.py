"""The memory plan of a static model: which kernel runs when, on which bytes of one arena.

Part of what loading a model needs: nothing here imports TVM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import ml_dtypes  # noqa: F401  registers bfloat16 and float8 with numpy
import numpy as np

__all__ = [
    "ALIGNMENT", "CHECK", "COPY", "Branch", "Check", "Kernel", "MemoryPlan", "Plan", "Region",
    "Slot", "Strips", "Trips", "aligned", "aligned_bytes", "around", "regions_of",
]  # fmt: skip

# A cache line and an AVX-512 register.
ALIGNMENT = 64


@dataclass(eq=False)
class Slot:
    """A tensor: where its bytes are. ``base`` is the tensor that a view shares bytes with.

    ``kind`` is "input", "output", "weight" or "arena"; ``index`` the number among its kind;
    ``offset`` the place in the arena or among the weights; ``live`` the first and last kernel
    that touch it. An "output" is written where the caller wants it. ``shift``: the bytes of the
    base in front of a part of it, a formula of sizes; None: this is no part.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: str = "arena"
    index: int = -1
    offset: int = -1
    live: list[int] = field(default_factory=lambda: [-1, -1])
    base: Slot | None = None
    shift: Any = None

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def root(self) -> Slot:
        return self if self.base is None else self.base.root

    @property
    def shifts(self) -> list[Any]:
        """Those on the way to ``root``, which add up."""
        inner = [] if self.base is None else self.base.shifts
        return inner if self.shift is None else [self.shift, *inner]


@dataclass(frozen=True, eq=False)
class Strips:
    """A loop: its kernels run one after the other on each of ``count`` parts of a batch; that is a
    number, or a formula of sizes."""

    count: Any


@dataclass(frozen=True, eq=False)
class Branch:
    """A branch of an If: its kernels run where ``condition``, a bool, is as ``taken`` says.

    ``outer``: the region around it, if any.
    """

    outer: Region | None
    condition: Slot
    taken: bool

    @property
    def reads(self) -> tuple[Slot, ...]:
        """What decides whether its kernels run."""
        return (self.condition,)


@dataclass(frozen=True, eq=False)
class Trips:
    """A loop: its kernels run ``count`` times, an int64, as long as ``going``, a bool, holds.

    ``position``, an int64, is the number of the trip. ``outer``: the region around it, if any.
    """

    outer: Region | None
    count: Slot
    going: Slot
    position: Slot

    @property
    def reads(self) -> tuple[Slot, ...]:
        """What decides whether its kernels run."""
        return self.count, self.going


Region = Branch | Trips


def around(region: Region | None) -> list[Region]:
    """``region`` and those that it is in, the outermost first."""
    return [] if region is None else [*around(region.outer), region]


#: The symbols of what only copies its operand, and of what only stands where a check is made.
COPY, CHECK = "(copy)", "(check)"


@dataclass(frozen=True)
class Kernel:
    """One call: the PrimFunc's symbol, what it reads and writes, the variable that it defines,
    and arrays of its own that live in the arena while it runs.

    ``strips``: the loop that it is in, if any; its kernels follow each other. ``steps``: the bytes
    by which the places of ``reads`` and ``writes`` move with each strip, as numbers or formulas;
    outside of such a loop, with each trip. ``region``: the control flow that it is in, if any.
    """

    symbol: str
    reads: tuple[Slot, ...]
    writes: tuple[Slot, ...]
    variable: str
    scratch: tuple[Slot, ...] = ()
    strips: Strips | None = None
    steps: tuple[Any, ...] = ()
    region: Region | None = None

    @property
    def is_call(self) -> bool:
        """Whether it calls a PrimFunc."""
        return self.symbol not in (COPY, CHECK)

    @property
    def regions(self) -> list[Region | Strips]:
        """All that it is in, the outermost first."""
        return [*around(self.region), *([] if self.strips is None else [self.strips])]

    @property
    def operands(self) -> tuple[Slot, ...]:
        """What it is called with, in this order."""
        return *self.reads, *self.writes, *self.scratch

    @property
    def moves(self) -> tuple[Any, ...]:
        """Of each of ``operands``, the bytes between its strips; 0: it stays."""
        return (*self.steps, *(0 for _ in range(len(self.operands) - len(self.steps))))


@dataclass(frozen=True)
class Check:
    """Two numbers that must be equal, and what is told where they are not.

    ``given`` and ``wanted`` are formulas in C: of ``reads``, which are integers of tensors by
    their names, each with its place. ``after``: the kernel behind which they are there; -1: they
    are there from the beginning; None: sizes are enough.
    """

    text: str
    given: str
    wanted: str
    reads: tuple[tuple[str, Slot, int], ...] = ()
    after: int | None = None


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that a compiled model is known to need.

    Attributes:
        arena_bytes: for activations and the arrays of kernels, per calling thread.
        live_bytes: the lower bound of that: the most bytes alive at one time.
        weight_bytes: for constants, once.
        scratch_bytes: for each thread of a parallel loop, per calling thread.
    """

    arena_bytes: int
    live_bytes: int
    weight_bytes: int
    scratch_bytes: int

    def __str__(self) -> str:
        return (
            f"arena {self.arena_bytes:,} bytes (at least {self.live_bytes:,}), "
            f"scratch {self.scratch_bytes:,} a thread, weights {self.weight_bytes:,}"
        )


@dataclass(frozen=True)
class Plan:
    """Kernels in order, and the bytes that they share.

    Attributes:
        weight_bytes: what the constants take, one after the other, each aligned.
        arena_bytes: what activations and the arrays of kernels take, by liveness.
        live_bytes: the lower bound: the most bytes alive at one time.
        scratch_bytes: what each thread takes at most within parallel loops, beside the arena.
        checks: of values, which end a run.
    """

    kernels: tuple[Kernel, ...]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    weight_bytes: int
    arena_bytes: int
    live_bytes: int
    scratch_bytes: int = 0
    checks: tuple[Check, ...] = ()

    @property
    def memory(self) -> MemoryPlan:
        """The bytes alone."""
        return MemoryPlan(self.arena_bytes, self.live_bytes, self.weight_bytes, self.scratch_bytes)

    @property
    def regions(self) -> list[Region]:
        """Those that its kernels are in."""
        return regions_of(self.kernels)

    def workspace_bytes(self, threads: int) -> int:
        """What a run on so many threads needs beside weights, inputs and outputs."""
        return self.arena_bytes + self.scratch_bytes * threads


def regions_of(kernels: Iterable[Kernel]) -> list[Region]:
    """The branches and loops that ``kernels`` are in, each once."""
    found = (r for kernel in kernels for r in kernel.regions if not isinstance(r, Strips))
    return list(dict.fromkeys(found))


def aligned(size: int) -> int:
    """``size`` rounded up, so that what follows is aligned too; at least one line."""
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT


def aligned_bytes(size: int) -> np.ndarray:
    """Memory for ``size`` bytes that begins at a multiple of ``ALIGNMENT``."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]
