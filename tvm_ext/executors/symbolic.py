"""Runs a model of symbolic dims on the CPU: one C function calls every kernel, as in a static one.

It takes the sizes of the inputs. From these it computes the dims of results and where each tensor
lies in the arena, all of which were planned as formulas of these sizes. Where more sizes are known
only as the model runs, it does so in stages, each with functions and an arena of its own.

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
from .emit import ENTRY
from .library import Library, opened
from .plan import aligned_bytes
from .results import MOST, NO_MEMORY, SPARE, Results
from .static import LibraryExecutor, Linked, add_seconds, timed

__all__ = ["SIZES", "SymbolicExecutor", "SymbolicLibrary", "SymbolicPlan", "of_stage"]

SIZES = "tvmx_sizes"


def of_stage(name: str, stage: int) -> str:
    """What a C function is called in a stage."""
    return f"{name}_{stage}" if stage else name


@dataclass(frozen=True)
class SymbolicPlan:
    """What the caller of the C functions of a model has to know.

    Attributes:
        sizes: the input and its axis that give each number which the functions take.
        held: the same of the further ones, elements of inputs: the input and the place in it.
        read: how many integers each stage but the first begins with reading.
        outputs: the element type and the rank of each result, and the stage that it is known in.
        checks: what is told of sizes that are refused with code 1, 2 and so on, and of values.
        kernels: the symbol of each call, and the variable that it defines.
        weight_bytes: what the constants take, one after the other, each aligned.
        scratch_bytes: what each thread takes at most within parallel loops, where that is known.
    """

    sizes: tuple[tuple[int, int], ...]
    held: tuple[tuple[int, int], ...]
    read: tuple[int, ...]
    outputs: tuple[tuple[str, int, int], ...]
    checks: tuple[str, ...]
    kernels: tuple[tuple[str, str], ...]
    weight_bytes: int
    scratch_bytes: int

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> SymbolicPlan:
        """The plan whose fields, as JSON has them, are ``saved``."""
        lists = "sizes", "held", "outputs", "kernels"
        rows = {name: tuple(map(tuple, saved[name])) for name in lists}
        simple = {name: tuple(saved[name]) for name in ("read", "checks")}
        return cls(**{**saved, **rows, **simple})

    @cached_property
    def stages(self) -> list[list[tuple[int, np.dtype, int, int]]]:
        """Of each stage the results that become known: their numbers, their types, and between
        which numbers that follow from sizes their dims are."""
        found: list[list[tuple[int, np.dtype, int, int]]] = [[] for _ in range(1 + len(self.read))]
        for number, (dtype, rank, stage) in enumerate(self.outputs):
            start = found[stage][-1][-1] if found[stage] else 1
            found[stage].append((number, np.dtype(dtype), start, start + rank))
        return found


class SymbolicLibrary(Library):
    """Calls the functions of a model of symbolic dims.

    Raises:
        BuildError: the file at ``path`` is no such library.
    """

    def __init__(self, path: str | Path):
        super().__init__(path)
        self._stages: list[tuple[Any, Any]] = []

    def stage(self, number: int) -> tuple[Any, Any]:
        """The two functions of a stage: ``sizes(sizes, numbers)``, which fills ``numbers`` with
        what follows from ``sizes`` and gives 0, or which check fails, whose two numbers they are
        then; and the one that :meth:`execute` calls."""
        while len(self._stages) <= number:
            names = (of_stage(name, len(self._stages)) for name in (SIZES, ENTRY))
            sizes, execute = map(self.function, names)
            sizes.argtypes, execute.argtypes = [ctypes.c_void_p] * 2, [ctypes.c_void_p] * 7
            self._stages.append((sizes, execute))
        return self._stages[number]


class _Stage:
    """What a calling thread has for a stage: an arena, and integers.

    ``results``: of the stage, as in :attr:`SymbolicPlan.stages`.
    """

    def __init__(self, results: list[tuple[int, np.dtype, int, int]]) -> None:
        self._results = results
        self._count = results[-1][-1] if results else 1
        self.numbers = (ctypes.c_int64 * max(self._count, 2))()
        self.made: list[tuple[int, tuple[int, ...], np.dtype]] = []  # number, shape, type
        self.memory, self._address = aligned_bytes(0), 0

    def follow(self, code: int, checks: Sequence[str]) -> None:
        """Take in what ``numbers`` are filled with; ``code`` says which check failed.

        Raises:
            RunError: one does, or no machine has the memory.
        """
        if code != 0:
            raise failure(checks[code - 1], *self.numbers[:2])
        numbers = self.numbers[: self._count]
        if max(numbers) > MOST:
            raise RunError(NO_MEMORY)
        self.made = [(k, tuple(numbers[first:end]), of) for k, of, first, end in self._results]

    def arena(self) -> int:
        """The address of as many bytes as it takes."""
        size = self.numbers[0]
        if not size <= self.memory.nbytes <= max(SPARE * size, _SMALL):
            self.memory = aligned_bytes(max(size + size // 4, _SMALL))
            self._address = self.memory.ctypes.data
        return self._address


class _Workspace:
    """Memory of one calling thread: for each stage, scratch memory for parallel loops, and
    integers."""

    def __init__(self, plan: SymbolicPlan) -> None:
        self.results = Results(growing=True)
        self.given = len(plan.sizes) + len(plan.held)
        self.sizes = (ctypes.c_int64 * (self.given + sum(plan.read)))()
        self.followed: list | None = None  # the given sizes that the first stage follows from
        self.stages = list(map(_Stage, plan.stages))
        self.arenas = (ctypes.c_void_p * len(self.stages))()
        self._scratch, self._scratch_address, self._shares = aligned_bytes(0), 0, 0

    def begin(self, sizes: list, plan: SymbolicPlan, library: SymbolicLibrary) -> None:
        """Find what follows from ``sizes``.

        Raises:
            RunError: a check of sizes fails, or no machine has the memory.
        """
        if sizes != self.followed:
            self.followed = None
            self.sizes[: self.given] = sizes
            self.follow(0, plan, library)
            self.followed = sizes

    def follow(self, stage: int, plan: SymbolicPlan, library: SymbolicLibrary) -> None:
        """Find what follows from the sizes that are known at the beginning of a stage."""
        mine = self.stages[stage]
        follow, _ = library.stage(stage)
        mine.follow(follow(self.sizes, mine.numbers), plan.checks)

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
_UNKNOWN = np.empty(0, np.uint8)  # in the place of a result whose size is not yet known


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
        workspace.begin(sizes, plan, library)
        outputs = [_UNKNOWN] * len(plan.outputs)
        scratch = workspace.scratch(plan.scratch_bytes)
        for number, stage in enumerate(workspace.stages):
            if number:
                workspace.follow(number, plan, library)
            for k, shape, dtype in stage.made:
                outputs[k] = workspace.results.array(k, shape, dtype)
            workspace.arenas[number] = stage.arena()
            _, function = library.stage(number)
            library.execute(
                self._weights_address,
                ctypes.addressof(workspace.arenas),
                inputs,
                outputs,
                scratch,
                observe,
                plan.checks,
                workspace.sizes,
                function=function,
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
