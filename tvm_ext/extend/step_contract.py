"""The contract of a plugin's step: it moves no answer by more than its bound.

A plugin does not say what a step is for, so it is tried on models of several kinds; the findings
tell which of them it changes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
import onnx

from .. import pipeline, targets
from ..build import convert_and_build
from ..emulator import NO_COMPILER, run
from ..frontend import load
from ..verify import EachPass
from .checking import Guard, checked_distance
from .models import text_model
from .report import Finding
from .samples import array_of

__all__ = ["step_findings"]

_CONVOLUTIONS = """(float[1, 3, 17, 17] x, float[16, 3, 3, 3] k, float[16] a, float[16, 16, 3, 3] l,
    float[16] b, float[16] scale, float[16] mean, float[16] variance, float[7, 16] m, float[7] c)
    => (float[1, 7] y) {
  first = Conv <pads = [1, 1, 1, 1]> (x, k, a)
  relu = Relu (first)
  pooled = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (relu)
  inner = Conv <pads = [1, 1, 1, 1]> (pooled, l, b)
  spread = Abs (variance)
  normal = BatchNormalization (inner, scale, b, mean, spread)
  sum = Add (normal, pooled)
  clipped = Relu (sum)
  mean_ = GlobalAveragePool (clipped)
  flat = Flatten (mean_)
  y = Gemm <transB = 1> (flat, m, c)
}"""
_ATTENTION = """(float[n, 5, 16] x, float[16, 48] w, float[16] scale, float[16] shift,
    float[16, 32] u, float[32] v) => (float[n, 5, 16] y, float[n, 5, 32] z) {
  projected = MatMul (x, w)
  q, k, values = Split <axis = -1, num_outputs = 3> (projected)
  turned = Transpose <perm = [0, 2, 1]> (k)
  scores = MatMul (q, turned)
  shares = Softmax <axis = -1> (scores)
  mixed = MatMul (shares, values)
  sum = Add (mixed, x)
  y = LayerNormalization (sum, scale, shift)
  wide = MatMul (y, u)
  biased = Add (wide, v)
  z = Gelu (biased)
}"""
_INTEGERS = """(float[n, 6] x, int64[n] rows) => (float[n, 3, 2] y, int64[n] z, bool[n, 6] b) {
  zero = Constant <value = float {0}> ()
  dims = Constant <value_ints = [0, 3, 2]> ()
  minus = Constant <value = int64 {-2}> ()
  one = Constant <value = int64 {1}> ()
  b = Greater (x, zero)
  other = Neg (x)
  chosen = Where (b, x, other)
  y = Reshape (chosen, dims)
  moved = Add (rows, one)
  scaled = Mul (moved, minus)
  z = Div (scaled, one)
}"""

#: Name -> a graph in ONNX's text, and those of its inputs that are weights.
_PROBES = {
    "convolutions": (_CONVOLUTIONS, ("k", "a", "l", "b", "scale", "mean", "variance", "m", "c")),
    "attention": (_ATTENTION, ("w", "scale", "shift", "u", "v")),
    "integers": (_INTEGERS, ()),
}


def step_findings(name: str, others: Sequence[str]) -> Iterator[Finding]:
    """The step on each of several models, on one of them at the least opt level that has it, too.

    On llvm the program is run before and after it; a step of cuda alone is in a whole build, whose
    kernels are run on the CPU beside those of llvm. ``others``: the plugin's other steps, left out.
    """
    levels = [level for level in range(4) if _has(_steps("llvm", level, ()), name)]
    for number, (probe, (graph, weights)) in enumerate(_PROBES.items()):
        model = text_model(graph, weights)
        for level in dict.fromkeys(levels[-1:] if number else levels[:1] + levels[-1:]):
            steps = _steps("llvm", level, others)
            yield _each_pass(name, model, steps, f"{probe}, opt level {level}")
        if not levels:
            yield _cuda(model, _steps("cuda", 3, others), probe)


def _steps(kind: str, level: int, others: Sequence[str]) -> pipeline.Pipeline:
    steps = pipeline.default(targets.resolve(kind), level)
    return reduce(pipeline.Pipeline.without, (o for o in others if _has(steps, o)), steps)


def _has(steps: pipeline.Pipeline, name: str) -> bool:
    return any(step.name == name for step in steps.steps)


def _each_pass(name: str, model: onnx.ModelProto, steps: pipeline.Pipeline, case: str) -> Finding:
    with Guard("llvm, before and after", case) as guard:
        watch = EachPass(steps, load(model), None, _feeds(model))
        convert_and_build(model, steps=steps.watched(watch))
        if name in watch.moved:
            guard.note(error=watch.moved[name])
        else:
            guard.note(detail="changes nothing here")
    return guard.finding


def _cuda(model: onnx.ModelProto, steps: pipeline.Pipeline, case: str) -> Finding:
    if NO_COMPILER is not None:
        return Finding("cuda on the CPU", case, True, f"not checked: {NO_COMPILER}")
    with Guard("cuda on the CPU", case) as guard, tempfile.TemporaryDirectory() as folder:
        feeds = _feeds(model)
        wanted = convert_and_build(model, opt_level=0).run(None, feeds)
        guard.note(error=checked_distance(run(model, feeds, folder, steps=steps), wanted))
    return guard.finding


def _feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Random arrays; symbolic dims are 3."""
    random = np.random.default_rng(0)
    tensors = {info.name: info.type.tensor_type for info in model.graph.input}
    return {
        name: array_of(
            random,
            [dim.dim_value or 3 for dim in tensor.shape.dim],
            onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name,
        )
        for name, tensor in tensors.items()
    }
