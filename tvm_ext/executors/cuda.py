"""What only cuda executables have: their generated text, and the GPU that they need."""

import os

import tvm
from tvm import relax

from ..errors import TargetError

__all__ = ["cuda_sources", "prepare"]

# TVM hands its text to nvcc or nvrtc with --use_fast_math: denormals become zero, division,
# square root, exp and pow lose bits. These are its switches against that; a user's own win.
_PRECISE = {
    "TVM_CUDA_NVCC_NO_FAST_MATH": "1",
    "TVM_CUDA_NVRTC_EXTRA_OPTS": (
        "--use_fast_math=false --ftz=false --prec-div=true --prec-sqrt=true"
    ),
}


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
