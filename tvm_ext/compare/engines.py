"""The engines that can be measured; another one is one function and one row of ``ENGINES``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .optional import require

__all__ = ["ENGINES", "OURS", "REFERENCE", "Engine", "Run"]

OURS = "tvm_ext"
REFERENCE = "reference"

Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], list[np.ndarray]]


@dataclass(frozen=True)
class Engine:
    """How to start an engine in a process of its own.

    It goes to that process by pickle, so ``open`` is a function of a module.

    Attributes:
        name: as ``compare(against=...)`` takes it.
        module: what is imported before memory is measured.
        open: ``(path, threads)`` to a function from feeds to all outputs.
        threading: what its threads do between runs, as measured here.
    """

    name: str
    module: str
    open: Callable[[Path, int], Run]
    threading: str
    extra: str = "compare"  # of tvm-ext, which installs it

    @property
    def package(self) -> str:
        """The package that ``module`` is of; its version is reported."""
        return self.module.partition(".")[0]


def _open_ours(path: Path, threads: int) -> Run:
    from tvm_ext import load

    model = load(path)
    return lambda feeds: model.run(None, feeds)


def _open_onnxruntime(path: Path, threads: int) -> Run:
    onnxruntime = require("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def _open_reference(path: Path, threads: int) -> Run:
    from onnx.reference import ReferenceEvaluator

    from ..extend.models import reference_operators

    evaluator = ReferenceEvaluator(str(path), new_ops=reference_operators())
    return lambda feeds: list(evaluator.run(None, dict(feeds)))


def _open_openvino(path: Path, threads: int, precision: str = "f32") -> Run:
    openvino = require("openvino")
    options = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,  # by itself it takes bfloat16 where the CPU has it
    }
    request = openvino.Core().compile_model(str(path), "CPU", options).create_infer_request()

    def run(feeds: Feeds) -> list[np.ndarray]:
        results = request.infer(dict(feeds), share_inputs=True)
        return [results[k] for k in range(len(results))]

    return run


def _open_openvino_bf16(path: Path, threads: int) -> Run:
    return _open_openvino(path, threads, "bf16")


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(OURS, "tvm_ext.model", _open_ours, "one thread pool, idle workers spin, then sleep"),
        Engine(
            "onnxruntime",
            "onnxruntime",
            _open_onnxruntime,
            "intra-op pool, workers spin by default",
        ),
        Engine("openvino", "openvino", _open_openvino, "latency hint, float32", "benchmarks"),
        Engine(
            "openvino-bf16",
            "openvino",
            _open_openvino_bf16,
            "latency hint, bfloat16 where the CPU has it",
            "benchmarks",
        ),
        Engine(REFERENCE, "onnx.reference", _open_reference, "numpy, as installed"),
    )
}
