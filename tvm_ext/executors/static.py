"""Runs a static plan on the CPU: one C function calls every kernel on fixed bytes.

Part of what loading a model needs: nothing here imports TVM before it is asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

from . import threads
from .cpu import CpuNeeds
from .library import Library, open_bytes
from .parts import Parts
from .plan import CHECK, Kernel, MemoryPlan, Plan, Slot, aligned_bytes
from .results import Results

__all__ = ["LibraryExecutor", "Linked", "StaticExecutor", "add_seconds", "timed"]


class Linked(Protocol):
    """A library, and its texts."""

    def linked(self) -> Any:
        """The bytes of the shared library."""

    def sources(self) -> dict[str, str]:
        """The program as text."""


class Program(Linked, Protocol):
    """One that knows what it was made from."""

    def parts(self) -> Parts:
        """What the library is linked from."""


@dataclass(frozen=True, eq=False)
class _Workspace:
    """Memory of one calling thread: the arena, and behind it scratch memory for as many
    ``threads`` as its parallel loops have. A page costs nothing before it is touched.

    ``scratch`` is the address of that, the bytes of each thread, and for how many it is.
    """

    memory: np.ndarray
    address: int
    scratch: tuple[int, int, int] | None
    threads: int

    @classmethod
    def of(cls, plan: Plan, count: int) -> _Workspace:
        memory = aligned_bytes(plan.workspace_bytes(count))
        address, each = memory.ctypes.data, plan.scratch_bytes
        scratch = (address + plan.arena_bytes, each, count) if each else None
        return cls(memory, address, scratch, count)


class LibraryExecutor:
    """A library, the weights that all threads share, and what else every run of it needs.

    Args:
        needs: what the kernels need of a CPU.
        weights: the constants, at the offsets that the plan gives them.
        program: what gives the bytes of the library.
        opening: makes a library of its bytes.
        library: the same, open; by default it is opened when the first run needs it.
    """

    on_cpu = True

    def __init__(
        self,
        needs: CpuNeeds,
        weights: np.ndarray,
        program: Linked,
        opening: Callable[[Any], Library],
        library: Library | None = None,
    ):
        self.needs = needs
        self.weights = weights
        self.program = program
        self._opening = opening
        self._library: Any = library
        self._loading = threading.Lock()
        self._local = threading.local()

    @cached_property
    def device(self) -> Any:
        """TVM's name of where it runs."""
        import tvm

        return tvm.cpu()

    def linked(self) -> Any:
        """The bytes of the shared library.

        Raises:
            BuildError: there is no C compiler for this target, or it fails.
        """
        return self.program.linked()

    def sources(self) -> dict[str, str]:
        """The C function that calls the kernels, and these as C, LLVM IR and assembly."""
        return self.program.sources()

    def load(self) -> Any:
        """The library, ready to run.

        Raises:
            TargetError: it is for another machine, or needs instructions that this one lacks.
            BuildError: it cannot be linked, or is no library.
        """
        with self._loading:
            if self._library is None:
                self.needs.check()
                self._library = self._opening(self.linked())
        return self._library

    @cached_property
    def _weights_address(self) -> int:
        return self.weights.ctypes.data


class StaticExecutor(LibraryExecutor):
    """A plan and the library made for it; each thread has an arena, weights are shared.

    ``plan`` says which kernel runs when, on which bytes.
    """

    program: Program

    def __init__(
        self,
        plan: Plan,
        needs: CpuNeeds,
        weights: np.ndarray,
        program: Program,
        library: Library | None = None,
    ):
        super().__init__(needs, weights, program, open_bytes, library)
        self.plan = plan

    @cached_property
    def _checks(self) -> list[str]:
        return [check.text for check in self.plan.checks]

    @cached_property
    def _output_types(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        return [(slot.shape, np.dtype(slot.dtype)) for slot in self.plan.outputs]

    @property
    def memory(self) -> MemoryPlan:
        """What was planned for every thread, and what all threads share."""
        return self.plan.memory

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return self._run(inputs, None)

    def _run(
        self, inputs: Sequence[np.ndarray], observe: Callable[[int, float], None] | None
    ) -> list[np.ndarray]:
        results = self._results
        outputs = [
            results.array(k, shape, dtype) for k, (shape, dtype) in enumerate(self._output_types)
        ]
        library, workspace = self._library or self.load(), self._workspace
        library.execute(
            self._weights_address,
            workspace.address,
            inputs,
            outputs,
            workspace.scratch,
            observe,
            self._checks,
        )
        return outputs

    def parts(self) -> Parts:
        """What the library is linked from."""
        return self.program.parts()

    def time_kernels(
        self, inputs: Sequence[np.ndarray], repeat: int
    ) -> tuple[list[tuple[str, str]], np.ndarray]:
        """Each call's symbol and variable; its seconds in whole runs, ``[repeat, calls]``."""
        seconds = np.zeros((repeat, len(self.plan.kernels)))
        for row in seconds:
            self._run(inputs, partial(add_seconds, row))
        return timed([(k.symbol, k.variable) for k in self.plan.kernels], seconds)

    def values(self, inputs: Sequence[np.ndarray]) -> Iterator[tuple[str, list[np.ndarray]]]:
        """Run once; copies of what each kernel writes, by the variable that it defines. Each kernel
        runs once: there are no branches, and no loops but over strips."""
        found: list[list[list[np.ndarray]]] = [[] for _ in self.plan.kernels]

        def observe(number: int, _seconds: float) -> None:
            writes = self.plan.kernels[number].writes
            kept = [slot for slot in writes if slot.root.kind != "output"]
            found[number].append([self._bytes_of(slot).copy() for slot in kept])

        outputs = self._run(inputs, observe)
        for kernel, strips in zip(self.plan.kernels, found, strict=True):
            arrays = iter(_joined(kernel, strips))
            yield (
                kernel.variable,
                [
                    outputs[slot.root.index].reshape(slot.shape)
                    if slot.root.kind == "output"
                    else next(arrays)
                    for slot in kernel.writes
                ],
            )

    def _bytes_of(self, slot: Slot) -> np.ndarray:
        offset = slot.root.offset
        place = self._workspace.memory[offset : offset + slot.nbytes]
        return place.view(slot.dtype).reshape(slot.shape)

    @property
    def _workspace(self) -> _Workspace:
        """That of this thread; another when parallel loops have more threads than before."""
        made = getattr(self._local, "workspace", None)
        if made is None or made.threads < threads.threads():
            made = self._local.workspace = _Workspace.of(self.plan, threads.threads())
        return made

    @property
    def _results(self) -> Results:
        """That of this thread."""
        made = getattr(self._local, "results", None)
        if made is None:
            made = self._local.results = Results()
        return made


def timed(
    kernels: Sequence[tuple[str, str]], seconds: np.ndarray
) -> tuple[list[tuple[str, str]], np.ndarray]:
    """``kernels`` and their ``seconds``, ``[repeat, kernels]``, without what only stands where a
    check is made."""
    calls = [number for number, (symbol, _) in enumerate(kernels) if symbol != CHECK]
    return [kernels[number] for number in calls], seconds[:, calls]


def add_seconds(row: np.ndarray, number: int, seconds: float) -> None:
    """Note those of a kernel, which is observed once for each strip, and for each trip."""
    row[number] += seconds


def _joined(kernel: Kernel, strips: Sequence[Sequence[np.ndarray]]) -> Iterator[np.ndarray]:
    """What ``kernel`` has written into the arena, seen after each of its strips."""
    slots = [slot for slot in kernel.writes if slot.root.kind != "output"]
    for slot, *seen in zip(slots, *strips, strict=True):
        moves = kernel.steps and kernel.steps[kernel.operands.index(slot)]
        yield seen[-1] if moves or len(seen) == 1 else np.concatenate(seen)
