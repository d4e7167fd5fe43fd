"""Runs a model of symbolic dims on the CPU: one C function calls every kernel, as in a static one.

It takes the sizes of the inputs. From these it computes the dims of results and where each tensor
lies in the arena, all of which were planned as formulas of these sizes.

Part of what loading a model needs: nothing here imports TVM before it is asked for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import failure
from ..errors import RunError
from . import threads
from .cpu import CpuNeeds
from .library import Library, opened
from .plan import aligned_bytes
from .results import MOST, NO_MEMORY, SPARE, Results
from .static import LibraryExecutor, Linked, add_seconds, timed

__all__ = ["SIZES", "SymbolicExecutor", "SymbolicLibrary", "SymbolicPlan"]

SIZES = "tvmx_sizes"


@dataclass(frozen=True)
class SymbolicPlan:
    """What the caller of the C functions of a model has to know.

    Attributes:
        sizes: the input and its axis that give each number which the functions take.
        held: the same of the further ones, elements of inputs: the input and the place in it.
        outputs: the element type and the rank of each result.
        checks: what is told of sizes that are refused with code 1, 2 and so on, and of values.
        kernels: the symbol of each call, and the variable that it defines.
        weight_bytes: what the constants take, one after the other, each aligned.
        scratch_bytes: what each thread takes at most within parallel loops, where that is known.
    """

    sizes: tuple[tuple[int, int], ...]
    held: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[str, int], ...]
    checks: tuple[str, ...]
    kernels: tuple[tuple[str, str], ...]
    weight_bytes: int
    scratch_bytes: int

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> SymbolicPlan:
        """The plan whose fields, as JSON has them, are ``saved``."""
        lists = "sizes", "held", "outputs", "kernels"
        rows = {name: tuple(map(tuple, saved[name])) for name in lists}
        return cls(**{**saved, **rows, "checks": tuple(saved["checks"])})

    @cached_property
    def results(self) -> list[tuple[np.dtype, int, int]]:
        """Of each result, its type and between which numbers its dims are."""
        found, start = [], 1
        for dtype, rank in self.outputs:
            found.append((np.dtype(dtype), start, start + rank))
            start += rank
        return found

    @cached_property
    def numbers(self) -> int:
        """How many numbers follow from the sizes: the bytes of the arena, and the dims."""
        return 1 + sum(rank for _, rank in self.outputs)


class SymbolicLibrary(Library):
    """Calls the two functions of a model of symbolic dims.

    Raises:
        BuildError: the file at ``path`` is no such library.
    """

    def __init__(self, path: str | Path):
        super().__init__(path)
        self._function.argtypes = [ctypes.c_void_p] * 7
        self._sizes = self.function(SIZES)
        self._sizes.argtypes = [ctypes.c_void_p] * 2

    def follow(self, sizes: ctypes.Array, numbers: ctypes.Array) -> int:
        """Fill ``numbers`` with what follows from ``sizes``; 0, or which check fails, whose two
        numbers they are then."""
        return self._sizes(sizes, numbers)


class _Workspace:
    """Memory of one calling thread: the arena, scratch memory for parallel loops, and integers."""

    def __init__(self, plan: SymbolicPlan) -> None:
        self.results = Results(growing=True)
        self.sizes = (ctypes.c_int64 * (len(plan.sizes) + len(plan.held)))()
        self.numbers = (ctypes.c_int64 * max(plan.numbers, 2))()
        self.followed: list | None = None  # the sizes that ``numbers`` follow from
        self.made: list[tuple[tuple[int, ...], np.dtype]] = []  # shapes and types of the results
        self._arena, self._address = aligned_bytes(0), 0
        self._scratch, self._scratch_address, self._shares = aligned_bytes(0), 0, 0

    def follow(self, sizes: list, plan: SymbolicPlan, library: SymbolicLibrary) -> None:
        """Find what follows from ``sizes``.

        Raises:
            RunError: a check of sizes fails, or no machine has the memory.
        """
        self.followed = None
        self.sizes[:] = sizes
        code = library.follow(self.sizes, self.numbers)
        if code != 0:
            raise failure(plan.checks[code - 1], *self.numbers[:2])
        numbers = self.numbers[: plan.numbers]
        if max(numbers) > MOST:
            raise RunError(NO_MEMORY)
        self.made = [(tuple(numbers[first:end]), dtype) for dtype, first, end in plan.results]
        self.followed = sizes

    def arena(self, size: int) -> int:
        """The address of ``size`` bytes."""
        if not size <= self._arena.nbytes <= max(SPARE * size, _SMALL):
            self._arena = aligned_bytes(max(size + size // 4, _SMALL))
            self._address = self._arena.ctypes.data
        return self._address

    def scratch(self, each: int) -> tuple[int, int, int] | None:
        """The address of ``each`` bytes for as many threads as there are, and both numbers."""
        if not each:
            return None
        if self._shares < threads.threads():
            self._shares = threads.threads()
            self._scratch = aligned_bytes(each * self._shares)
            self._scratch_address = self._scratch.ctypes.data
        return self._scratch_address, each, self._shares


_SMALL = 64 << 10  # bytes that are kept in any case


class SymbolicExecutor(LibraryExecutor):
    """A plan and the library made for it; each thread has memory of its own, weights are shared."""

    memory = None  # its size follows from those of the inputs

    def __init__(
        self,
        plan: SymbolicPlan,
        needs: CpuNeeds,
        weights: np.ndarray,
        program: Linked,
        library: SymbolicLibrary | None = None,
    ):
        super().__init__(needs, weights, program, _open, library)
        self.plan = plan

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return self._run(inputs, None)

    def _run(
        self, inputs: Sequence[np.ndarray], observe: Callable[[int, float], None] | None
    ) -> list[np.ndarray]:
        plan, library, workspace = self.plan, self._library or self.load(), self._workspace
        sizes = [inputs[number].shape[axis] for number, axis in plan.sizes]
        sizes += [_held(inputs[number], place) for number, place in plan.held]
        if sizes != workspace.followed:
            workspace.follow(sizes, plan, library)
        outputs = [workspace.results.array(k, *one) for k, one in enumerate(workspace.made)]
        library.execute(
            self._weights_address,
            workspace.arena(workspace.numbers[0]),
            inputs,
            outputs,
            workspace.scratch(plan.scratch_bytes),
            observe,
            plan.checks,
            workspace.sizes,
        )
        return outputs

    def time_kernels(
        self, inputs: Sequence[np.ndarray], repeat: int
    ) -> tuple[list[tuple[str, str]], np.ndarray]:
        """Each call's symbol and variable; its seconds in whole runs, ``[repeat, calls]``."""
        seconds = np.zeros((repeat, len(self.plan.kernels)))
        for row in seconds:
            self._run(inputs, partial(add_seconds, row))
        return timed(self.plan.kernels, seconds)

    @property
    def _workspace(self) -> _Workspace:
        """That of this thread."""
        made = getattr(self._local, "workspace", None)
        if made is None:
            made = self._local.workspace = _Workspace(self.plan)
        return made


def _held(array: np.ndarray, place: int) -> int:
    """An element; 0 where there is none, which a check of the array's size tells."""
    return int(array.flat[place]) if place < array.size else 0


def _open(image: Any) -> SymbolicLibrary:
    return opened(image, SymbolicLibrary)
