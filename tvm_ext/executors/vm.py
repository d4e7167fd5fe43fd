"""The Relax virtual machine: dynamic shapes, control flow, and cuda."""

import threading
from collections.abc import Sequence

import numpy as np
import tvm
from tvm import IRModule, relax
from tvm.target import Target

from . import cuda
from .lowering import TIR_PIPELINE

__all__ = ["VMExecutor"]


def _lowering() -> tvm.ir.transform.Pass:
    """From scheduled kernels and dataflow to VM instructions, memory planned."""
    t = relax.transform
    return tvm.ir.transform.Sequential([
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
    ], name="LowerToVM")


class VMExecutor:
    """Runs ``main`` of a module in the Relax VM; safe to call from several threads."""

    memory = None  # allocated as it runs

    def __init__(self, executable: relax.VMExecutable, device: tvm.runtime.Device):
        self.executable = executable
        self.device = device
        # A VM holds call frames: one per thread, on the shared executable.
        self._local = threading.local()

    @classmethod
    def build(cls, module: IRModule, target: Target) -> "VMExecutor":
        """Compile ``module`` (kernels already scheduled) for ``target``."""
        with target:
            executable = relax.build(module, target, relax_pipeline=_lowering(), tir_pipeline=TIR_PIPELINE)
        return cls(executable, tvm.device("cuda" if target.kind.name == "cuda" else "cpu"))

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        if not hasattr(self._local, "vm"):
            if self.device != tvm.cpu():
                cuda.prepare(self.device)
            # The pooled allocator keeps a bucket per size and would grow with dynamic shapes.
            self._local.vm = relax.VirtualMachine(self.executable, self.device, memory_cfg="naive")
        tensors = [tvm.runtime.tensor(array, self.device) for array in inputs]
        return [result.numpy() for result in self._local.vm["main"](*tensors)]
