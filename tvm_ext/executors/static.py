"""Runs a static plan on the CPU: every kernel on fixed bytes of one arena, no interpreter."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import IRModule, relax, tirx
from tvm.runtime import Tensor
from tvm.target import Target

from .cpu import CpuNeeds
from .lowering import TIR_PIPELINE
from .plan import ALIGNMENT, MemoryPlan, Plan, Slot, plan

__all__ = ["StaticExecutor"]


@dataclass(frozen=True)
class _Context:
    """What one thread runs on: its arena, and kernels bound to it."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    calls: list[tuple[Callable, tuple[Tensor, ...]]]


class StaticExecutor:
    """Calls the kernels of a plan in order; each thread has an arena, weights are shared."""

    device = tvm.cpu()
    linked: np.ndarray | None = None  # the library's bytes, where it came from a file

    def __init__(self, library: tvm.runtime.Module, plan: Plan, needs: CpuNeeds):
        self.library = library
        self.plan = plan
        self.needs = needs
        self._weights = [_shared(array) for array in plan.weights]
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
        """
        planned = plan(lower_views(module))
        used = {kernel.symbol for kernel in planned.kernels}
        kernels = IRModule(
            {
                gv: f.with_attr("global_symbol", gv.name_hint)
                for gv, f in module.functions_items()
                if isinstance(f, tirx.PrimFunc) and gv.name_hint in used
            }
        )
        library = tvm.tirx.build(kernels, target, pipeline=TIR_PIPELINE)
        return cls(library, planned, CpuNeeds.of(target))

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        context = self._context()
        for buffer, array in zip(context.inputs, inputs, strict=True):
            buffer.copyfrom(array)
        for function, arguments in context.calls:
            function(*arguments)
        return [buffer.numpy() for buffer in context.outputs]

    def sources(self) -> dict[str, str]:
        """The kernels as LLVM IR and as assembly."""
        return {
            "llvm": self.library.inspect_source("ll"),
            "asm": self.library.inspect_source("asm"),
        }

    def time_kernels(
        self, inputs: Sequence[np.ndarray], repeat: int
    ) -> tuple[list[tuple[str, str]], np.ndarray]:
        """Each call's symbol and variable; its seconds in whole runs, ``[repeat, calls]``."""
        context = self._context()
        for buffer, array in zip(context.inputs, inputs, strict=True):
            buffer.copyfrom(array)
        seconds = np.empty((repeat, len(context.calls)))
        clock = time.perf_counter
        for row in seconds:
            for k, (function, arguments) in enumerate(context.calls):
                start = clock()
                function(*arguments)
                row[k] = clock() - start
        return [(kernel.symbol, kernel.variable) for kernel in self.plan.kernels], seconds

    def values(self, inputs: Sequence[np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        """Run once; copies of what each kernel writes, by the variable that it defines."""
        context = self._context()
        for buffer, array in zip(context.inputs, inputs, strict=True):
            buffer.copyfrom(array)
        for kernel, (function, arguments) in zip(self.plan.kernels, context.calls, strict=True):
            function(*arguments)
            if len(kernel.writes) == 1:  # several: which of them is a tuple's field, nobody says
                yield kernel.variable, arguments[-1].numpy()

    def _context(self) -> _Context:
        if not hasattr(self._local, "context"):
            self._local.context = self._new_context()
        return self._local.context

    def _new_context(self) -> _Context:
        self.needs.check()
        inputs = [tvm.runtime.empty(slot.shape, slot.dtype) for slot in self.plan.inputs]
        arena = np.from_dlpack(tvm.runtime.empty((self.plan.arena_bytes + ALIGNMENT,), "uint8"))

        def tensor(slot: Slot) -> Tensor:
            root = slot.root
            if root.kind == "arena":
                # Sliced by numpy: kernels refuse a DLTensor with a byte offset.
                size = max(root.nbytes, 1)
                place = tvm.runtime.from_dlpack(arena[root.offset : root.offset + size])
                return place._create_view(slot.shape, slot.dtype)
            whole = (inputs if root.kind == "input" else self._weights)[root.index]
            return whole if slot is root else whole._create_view(slot.shape, slot.dtype)

        calls = [
            (self.library[kernel.symbol], tuple(map(tensor, (*kernel.reads, *kernel.writes))))
            for kernel in self.plan.kernels
        ]
        return _Context(inputs, [tensor(slot) for slot in self.plan.outputs], calls)


def _shared(array: np.ndarray) -> Tensor:
    """The bytes of ``array`` themselves where kernels can read them there, else a copy."""
    if array.size == 0 or array.ctypes.data % ALIGNMENT or not array.flags.writeable:
        return tvm.runtime.tensor(array)
    # By way of bytes: numpy has no DLPack for bfloat16 and float8.
    flat = tvm.runtime.from_dlpack(array.reshape(-1).view(np.uint8))
    return flat._create_view(array.shape, array.dtype.name)


def lower_views(module: IRModule) -> IRModule:
    """Kernels that only reshape become views."""
    return tvm.ir.transform.Sequential(
        [
            relax.transform.RewriteDataflowReshape(),
            relax.transform.CanonicalizeBindings(),
        ]
    )(module)
