"""The memory plan of a static model: which kernel runs when, on which bytes of one arena.

Part of what loading a model needs: nothing here imports TVM.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import ml_dtypes  # noqa: F401  registers bfloat16 and float8 with numpy
import numpy as np

__all__ = ["ALIGNMENT", "Kernel", "MemoryPlan", "Plan", "Slot", "aligned", "aligned_bytes"]

# A cache line and an AVX-512 register.
ALIGNMENT = 64


@dataclass(eq=False)
class Slot:
    """A tensor: where its bytes are. ``base`` is the tensor that a view shares bytes with.

    ``kind`` is "input", "output", "weight" or "arena"; ``index`` the number among its kind;
    ``offset`` the place in the arena or among the weights; ``live`` the first and last kernel
    that touch it. An "output" is written where the caller wants it.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: str = "arena"
    index: int = -1
    offset: int = -1
    live: list[int] = field(default_factory=lambda: [-1, -1])
    base: Slot | None = None

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def root(self) -> Slot:
        return self if self.base is None else self.base.root


@dataclass(frozen=True)
class Kernel:
    """One call: the PrimFunc's symbol, what it reads and writes, and the variable it defines."""

    symbol: str
    reads: tuple[Slot, ...]
    writes: tuple[Slot, ...]
    variable: str


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that a compiled model is known to need.

    Attributes:
        arena_bytes: for activations, per running thread.
        live_bytes: the lower bound of that: the most bytes alive at one time.
        weight_bytes: for constants, once.
    """

    arena_bytes: int
    live_bytes: int
    weight_bytes: int

    def __str__(self) -> str:
        return (
            f"arena {self.arena_bytes / 1e6:.1f} MB (at least {self.live_bytes / 1e6:.1f}), "
            f"weights {self.weight_bytes / 1e6:.1f} MB"
        )


@dataclass(frozen=True)
class Plan:
    """Kernels in order, and the bytes that they share.

    Attributes:
        weight_bytes: what the constants take, one after the other, each aligned.
        arena_bytes: what activations take, by liveness.
        live_bytes: the lower bound: the most bytes alive at one time.
    """

    kernels: tuple[Kernel, ...]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    weight_bytes: int
    arena_bytes: int
    live_bytes: int


def aligned(size: int) -> int:
    """``size`` rounded up, so that what follows is aligned too; at least one line."""
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT


def aligned_bytes(size: int) -> np.ndarray:
    """Memory for ``size`` bytes that begins at a multiple of ``ALIGNMENT``."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]
