"""Runs a static plan on the CPU: one C function calls every kernel on fixed bytes."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tvm
from tvm import IRModule, relax, tirx
from tvm.target import Target

from ..errors import BuildError
from .c_abi import build_c_abi, calls_tvm
from .c_code import c_sources, is_c_code
from .cpu import CpuNeeds
from .emit import entry_source, kernel_symbol
from .library import Library
from .plan import ALIGNMENT, MemoryPlan, NotStatic, Plan, Slot, plan
from .toolchain import link_shared

__all__ = ["StaticExecutor"]


class StaticExecutor:
    """A plan and the library made for it; each thread has an arena, weights are shared."""

    device = tvm.cpu()

    def __init__(
        self,
        plan: Plan,
        needs: CpuNeeds,
        kernels: tvm.runtime.Module | None = None,
        linked: np.ndarray | None = None,
        code: Sequence[str] = (),
    ):
        self.plan, self._weights = _with_adjacent_weights(plan)
        self.needs = needs
        self._kernels = kernels
        self._linked = linked
        self._code = code
        self._library: Library | None = None
        self._loading = threading.Lock()
        self._local = threading.local()

    @property
    def memory(self) -> MemoryPlan:
        """What was planned for every thread, and what all threads share."""
        return MemoryPlan(self.plan.arena_bytes, self.plan.live_bytes, self.plan.weight_bytes)

    @classmethod
    def build(cls, module: IRModule, target: Target) -> StaticExecutor:
        """Plan and compile ``module`` (kernels already scheduled).

        Raises:
            NotStatic: the module needs the VM.
            BuildError: there is no C compiler, or it fails.
        """
        planned = plan(lower_views(module))
        used = {kernel.symbol for kernel in planned.kernels}
        kernels = {
            kernel_symbol(gv.name_hint): f
            for gv, f in module.functions_items()
            if isinstance(f, tirx.PrimFunc) and gv.name_hint in used
        }
        compiled = {name: f for name, f in kernels.items() if not is_c_code(f)}
        if any(map(calls_tvm, compiled.values())):
            raise NotStatic("a kernel that calls TVM")
        named = {name: f.with_attr("global_symbol", name) for name, f in compiled.items()}
        executor = cls(
            planned,
            CpuNeeds.of(target),
            build_c_abi(IRModule(named), target),
            code=c_sources(kernels),
        )
        if not executor.needs.foreign:
            executor.linked()
        return executor

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return self._run(inputs, None)

    def _run(
        self, inputs: Sequence[np.ndarray], observe: Callable[[int, float], None] | None
    ) -> list[np.ndarray]:
        outputs = [np.empty(slot.shape, slot.dtype) for slot in self.plan.outputs]
        self.load().execute(self._weights, self._arena, inputs, outputs, observe)
        return outputs

    def sources(self) -> dict[str, str]:
        """The C function that calls the kernels, and those in C; the others as LLVM IR and as
        assembly."""
        text = {"c": "\n".join([entry_source(self.plan), *self._code])}
        if self._kernels is None:
            return text
        return text | {name: self._kernels.inspect_source(kind) for name, kind in _TEXTS.items()}

    def time_kernels(
        self, inputs: Sequence[np.ndarray], repeat: int
    ) -> tuple[list[tuple[str, str]], np.ndarray]:
        """Each call's symbol and variable; its seconds in whole runs, ``[repeat, calls]``."""
        seconds = np.empty((repeat, len(self.plan.kernels)))
        for row in seconds:
            self._run(inputs, row.__setitem__)
        return [(kernel.symbol, kernel.variable) for kernel in self.plan.kernels], seconds

    def values(self, inputs: Sequence[np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        """Run once; copies of what each kernel writes, by the variable that it defines."""
        found: dict[str, np.ndarray] = {}
        results: dict[str, int] = {}  # what was written to an output, seen after the run

        def observe(number: int, _seconds: float) -> None:
            kernel = self.plan.kernels[number]
            if len(kernel.writes) > 1:  # which of them is a tuple's field, nobody says
                return
            (slot,) = kernel.writes
            if slot.kind == "output":
                results[kernel.variable] = slot.index
            else:
                found[kernel.variable] = self._bytes_of(slot).copy()

        outputs = self._run(inputs, observe)
        for kernel in self.plan.kernels:
            if kernel.variable in results:
                shape = kernel.writes[0].shape
                yield kernel.variable, outputs[results[kernel.variable]].reshape(shape)
            elif kernel.variable in found:
                yield kernel.variable, found[kernel.variable]

    def _bytes_of(self, slot: Slot) -> np.ndarray:
        place = self._arena[slot.offset : slot.offset + slot.nbytes]
        return place.view(slot.dtype).reshape(slot.shape)

    @property
    def _arena(self) -> np.ndarray:
        if not hasattr(self._local, "arena"):
            self._local.arena = _aligned_bytes(self.plan.arena_bytes)
        return self._local.arena

    def linked(self) -> np.ndarray:
        """The bytes of the shared library.

        Raises:
            BuildError: there is no C compiler for this target, or it fails.
        """
        if self._linked is None:
            self._linked = _linked(self._kernels, self.plan, self._code, self.needs)
        return self._linked

    def load(self) -> Library:
        """The library, ready to run.

        Raises:
            TargetError: it is for another machine, or needs instructions that this one lacks.
            BuildError: it cannot be linked, or is no library.
        """
        with self._loading:
            if self._library is None:
                self.needs.check()
                self._library = Library(self.linked())
        return self._library


_TEXTS = {"llvm": "ll", "asm": "asm"}


def _linked(
    kernels: tvm.runtime.Module, plan: Plan, code: Sequence[str], needs: CpuNeeds
) -> np.ndarray:
    with tempfile.TemporaryDirectory(prefix="tvm_ext_") as folder:
        compiled, library = Path(folder, "kernels.o"), Path(folder, "library.so")
        try:
            kernels.write_to_file(str(compiled))
        except RuntimeError as error:
            raise BuildError(f"cannot write the kernels: {error}") from error
        sources = []
        for number, text in enumerate([entry_source(plan), *code]):
            sources.append(Path(folder, f"source{number}.c"))
            sources[-1].write_text(text)
        link_shared(library, [compiled], sources, needs.triple if needs.foreign else None)
        return np.frombuffer(library.read_bytes(), np.uint8)


def _aligned_bytes(size: int) -> np.ndarray:
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def _with_adjacent_weights(plan: Plan) -> tuple[Plan, np.ndarray]:
    """The plan with weights that lie one after the other, and their bytes.

    No copy where they lie so already, as in a mapped file.
    """
    if _are_adjacent(plan):
        return plan, plan.weights[0]
    whole = _aligned_bytes(plan.weight_bytes)
    weights = []
    for array, offset in zip(plan.weights, plan.weight_offsets, strict=True):
        place = whole[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
        place[...] = array
        weights.append(place)
    return replace(plan, weights=tuple(weights)), whole


def _are_adjacent(plan: Plan) -> bool:
    starts = [array.ctypes.data for array in plan.weights]
    return (
        bool(starts)
        and starts[0] % ALIGNMENT == 0
        and starts == [starts[0] + offset for offset in plan.weight_offsets]
    )


def lower_views(module: IRModule) -> IRModule:
    """Kernels that only reshape become views."""
    return tvm.ir.transform.Sequential(
        [
            relax.transform.RewriteDataflowReshape(),
            relax.transform.CanonicalizeBindings(),
        ]
    )(module)
