"""The Relax virtual machine: dynamic shapes, control flow, and cuda."""

import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import tvm
from tvm import IRModule, relax
from tvm.target import Target

from . import (
    cuda,
    loops,  # noqa: F401  registers the driver that compiled loops call
)
from .cpu import CpuNeeds
from .lowering import TIR_PIPELINE

__all__ = ["VMExecutor"]


def _lowering() -> tvm.ir.transform.Pass:
    """From scheduled kernels and dataflow to VM instructions, memory planned."""
    t = relax.transform
    return tvm.ir.transform.Sequential(
        [
            t.RewriteDataflowReshape(),
            t.ToNonDataflow(),
            t.RemovePurityChecking(),
            t.CallTIRRewrite(),
            t.StaticPlanBlockMemory(),
            t.LowerAllocTensor(),
            t.KillAfterLastUse(),
            t.LowerRuntimeBuiltin(),
            t.ComputePrimValue(),
            t.VMShapeLower(),
            t.AttachGlobalSymbol(),
        ],
        name="LowerToVM",
    )


class VMExecutor:
    """Runs ``main`` of a module in the Relax VM; safe to call from several threads."""

    memory = None  # allocated as it runs
    linked: np.ndarray | None = None  # the library's bytes, where it came from a file

    def __init__(self, executable: relax.VMExecutable, device: tvm.runtime.Device, needs: CpuNeeds):
        self.executable = executable
        self.device = device
        self.needs = needs
        # A VM holds call frames: one per thread, on the shared executable.
        self._local = threading.local()

    @classmethod
    def build(cls, module: IRModule, target: Target) -> "VMExecutor":
        """Compile ``module`` (kernels already scheduled) for ``target``."""
        if target.kind.name == "cuda":
            module = cuda.named_in_c(module)
        with target:
            executable = relax.build(
                module, target, relax_pipeline=_lowering(), tir_pipeline=TIR_PIPELINE
            )
        device = tvm.device("cuda" if target.kind.name == "cuda" else "cpu")
        return cls(executable, device, CpuNeeds.of(target))

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        vm = self._vm()  # before the tensors: it says what a machine without the device lacks
        tensors = [tvm.runtime.tensor(array, self.device) for array in inputs]
        return [result.numpy() for result in vm["main"](*tensors)]

    def sources(self) -> dict[str, str]:
        """The VM's instructions and the kernels, as CUDA C or as LLVM IR."""
        text = {"vm": self.executable.as_text()}
        if self.device != tvm.cpu():
            return text | {"cuda": cuda.cuda_sources(self.executable)}
        kernels = [m for m in _modules(self.executable.mod) if m.kind == "llvm"]
        return text | {"llvm": "\n".join(m.inspect_source("ll") for m in kernels)}

    def time_kernels(
        self, inputs: Sequence[np.ndarray], repeat: int
    ) -> tuple[list[tuple[str, str]], np.ndarray]:
        """Each call's symbol (and no variable); its seconds in whole runs, ``[repeat, calls]``.

        Only calls made in every run are listed: control flow may differ from run to run.
        """
        stopwatch = _Stopwatch(self.device)
        vm = self._vm()
        vm.set_instrument(stopwatch)
        try:
            tensors = [tvm.runtime.tensor(array, self.device) for array in inputs]
            for _ in range(repeat):
                stopwatch.runs.append([])
                vm["main"](*tensors)
        finally:
            vm.set_instrument(lambda *_: 0)
        count = min(map(len, stopwatch.runs))
        symbols = [(symbol, "") for symbol, _ in stopwatch.runs[0][:count]]
        return symbols, np.array([[s for _, s in run[:count]] for run in stopwatch.runs])

    def _vm(self) -> relax.VirtualMachine:
        if not hasattr(self._local, "vm"):
            self.needs.check()
            if self.device != tvm.cpu():
                cuda.prepare(self.device)
            # The pooled allocator keeps a bucket per size and would grow with dynamic shapes.
            self._local.vm = relax.VirtualMachine(self.executable, self.device, memory_cfg="naive")
        return self._local.vm


class _Stopwatch:
    """A VM instrument: seconds of each kernel call, per run; the VM's own builtins are left out."""

    def __init__(self, device: tvm.runtime.Device):
        self.device = device
        self.runs: list[list[tuple[str, float]]] = []
        self._start = 0.0

    def __call__(self, _function, name: str, before_run: bool, _result, *_arguments) -> int:
        if not name.startswith("vm."):
            self.device.sync()
            if before_run:
                self._start = time.perf_counter()
            else:
                self.runs[-1].append((name, time.perf_counter() - self._start))
        return 0


def _modules(root: tvm.runtime.Module) -> Iterator[tvm.runtime.Module]:
    yield root
    for module in root.imports:
        yield from _modules(module)
