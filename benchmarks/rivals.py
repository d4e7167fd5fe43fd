"""Rivals that run the torch module of an example, or TVM as it comes, each in its own process.

Torch opens a program that ``torch.export`` saved beside the ONNX file; TVM imports that file.
"""

from pathlib import Path

import numpy as np

from tvm_ext.compare.engines import ENGINES, OURS, Engine, Feeds, Run

__all__ = ["RIVALS", "file_of", "of_precision"]

PROGRAM = ".pt2"
COMPILED = ".tvmx"


def file_of(engine: Engine, onnx_file: Path) -> Path:
    """The file that ``engine`` opens for a model."""
    suffixes = {OURS: COMPILED, "torch": PROGRAM, "torch.compile": PROGRAM}
    return onnx_file.with_suffix(suffixes.get(engine.name, ".onnx"))


def _open_torch(path: Path, threads: int) -> Run:
    import torch

    torch.set_num_threads(threads)
    return _runner(torch.export.load(path).module())


def _open_torch_compile(path: Path, threads: int) -> Run:
    import torch

    torch.set_num_threads(threads)
    return _runner(torch.compile(torch.export.load(path).module()))


def _runner(module) -> Run:
    import torch

    def run(feeds: Feeds) -> list[np.ndarray]:
        with torch.inference_mode():
            result = module(*(torch.from_numpy(np.ascontiguousarray(a)) for a in feeds.values()))
        outputs = result if isinstance(result, tuple) else (result,)
        return [output.numpy() for output in outputs]

    return run


def _open_tvm(path: Path, threads: int) -> Run:
    """TVM's own importer and default pipeline; it takes the number of threads from its process."""
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    model = onnx.load(path)
    module = from_onnx(model, keep_params_in_input=False)
    machine = relax.VirtualMachine(tvm.compile(module, tvm.target.Target("llvm")), tvm.cpu())

    def run(feeds: Feeds) -> list[np.ndarray]:
        result = machine["main"](*(tvm.runtime.tensor(array) for array in feeds.values()))
        outputs = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        return [output.numpy() for output in outputs]

    return run


RIVALS = {
    engine.name: engine
    for engine in (
        ENGINES["onnxruntime"],
        ENGINES["openvino"],
        ENGINES["openvino-bf16"],
        Engine("torch", "torch", _open_torch, "OpenMP, eager", "examples"),
        Engine("torch.compile", "torch", _open_torch_compile, "OpenMP, inductor", "examples"),
        Engine("tvm", "tvm", _open_tvm, "its own importer and default pipeline"),
    )
}
# What engines compute in that do not run the float32 model, and it alone.
_PRECISIONS = {
    "onnxruntime": ("fp32", "fp16", "int8"),
    "openvino": ("fp32", "fp16", "int8"),
    "openvino-bf16": ("bf16",),
}


def of_precision(precision: str) -> list[str]:
    """The names of the rivals that compute in ``precision``: "fp32", "bf16", "fp16" or "int8"."""
    return [name for name in RIVALS if precision in _PRECISIONS.get(name, ("fp32",))]
