"""What only cuda executables have: their generated text, and the GPU that they need."""

import os

import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx

from ..errors import TargetError

__all__ = ["cuda_sources", "named_in_c", "prepare"]

# TVM hands its text to nvcc or nvrtc with --use_fast_math: denormals become zero, division,
# square root, exp and pow lose bits. These are its switches against that; a user's own win.
_PRECISE = {
    "TVM_CUDA_NVCC_NO_FAST_MATH": "1",
    "TVM_CUDA_NVRTC_EXTRA_OPTS": (
        "--use_fast_math=false --ftz=false --prec-div=true --prec-sqrt=true"
    ),
}


def named_in_c(module: IRModule) -> IRModule:
    """``module`` with a letter before each name in its kernels that starts with a digit.

    Exporters number their values, kernels name their buffers after them, and TVM writes those
    names into CUDA C as they are.
    """
    kernels = {
        symbol: _named_in_c(function) if isinstance(function, tirx.PrimFunc) else function
        for symbol, function in module.functions_items()
    }
    return IRModule(kernels, attrs=module.attrs)


def _named_in_c(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    renamed: dict[tirx.Var, tirx.Var] = {}

    def rename(var: tirx.Var) -> tirx.Var:
        if not var.name[:1].isdigit():
            return var
        return renamed.setdefault(var, tirx.Var(f"v{var.name}", var.ty))

    return tvm_ffi.structural_map(kernel, (tirx.Var, rename))


def cuda_sources(executable: relax.VMExecutable) -> str:
    """The CUDA C of all kernels of ``executable``; empty where it has none."""
    texts, pending = [], [executable.mod]
    while pending:
        module = pending.pop()
        pending.extend(module.imports)
        if module.kind == "cuda":
            texts.append(module.inspect_source())
    return "\n".join(texts)


def prepare(device: tvm.runtime.Device) -> None:
    """Make ready to run on ``device``: called before the first kernel is loaded.

    Raises:
        TargetError: this machine has no such device.
    """
    if not device.exist:
        raise TargetError(
            f"this machine has no CUDA device {device.index}; the model is built, but it runs "
            "only where TVM finds a GPU: use target='llvm' here, or save() it and load it there"
        )
    for name, value in _PRECISE.items():
        os.environ.setdefault(name, value)
