"""``verify="each-pass"``: the program is run after every step, and the one that breaks it named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
import tvm_ffi
from tvm import IRModule, relax

from . import pipeline, targets
from .errors import BuildError, ConversionError, InputError, OptionError
from .executors.choice import build_executor
from .frontend import Conversion, convert, specialise
from .inputs import random_inputs
from .interface import Shapes, numbers_only
from .ops.narrow import stored

__all__ = ["EachPass", "coarseness", "distance", "finish"]

_SINGLE = float(np.finfo("float32").eps)


class EachPass:
    """Watches a pipeline: runs what each step made and compares with what was there before.

    The runs are on this CPU, so the kernels' schedules for a GPU are left out.

    Args:
        steps: the pipeline.
        source: the loaded model, before any step.
        shapes: as for ``convert_and_build``.
        feeds: arrays by input name; None: seeded random ones.

    Attributes:
        moved: how far each step that changed the program moved the answer, by its name.
    """

    def __init__(
        self,
        steps: pipeline.Pipeline,
        source: ir.Model,
        shapes: Shapes | None,
        feeds: Mapping[str, object] | None,
    ):
        self._on_gpu = steps.target.kind.name == "cuda"
        self._feeds = feeds
        self.moved: dict[str, float] = {}
        self._names = [str(value.name) for value in source.graph.outputs]
        self._inputs: list[np.ndarray] = []
        self._finished: tuple[IRModule, list[np.ndarray]] | None = None
        model = source.clone()
        specialise(model, shapes)
        self._program = _snapshot(model)
        self._answer = self._of_model(model)

    def __call__(self, step: pipeline.Step, result: ir.Model | IRModule, _seconds: float) -> None:
        """Compare with the answer before ``step``.

        Raises:
            BuildError: the answer moved by more than the step's bound, or is none any more.
        """
        if (self._on_gpu and step.phase == "schedule") or not self._changed(result):
            return
        before = self._answer
        try:
            answer = self._of_model(result) if step.phase == "import" else self._run(result)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise BuildError(f"after {step} the program does not run: {reason}") from error
        if before is not None and answer is None:
            raise BuildError(f"after {step} the model cannot be converted")
        self._answer, self.moved[step.name] = answer, 0.0
        if before is None or answer is None:
            return
        if [(a.dtype, a.shape) for a in answer] != [(a.dtype, a.shape) for a in before]:
            raise BuildError(f"{step} makes {_types(answer)} of the outputs {_types(before)}")
        for name, got, want in zip(self._names, answer, before, strict=True):
            moved, bound = distance(got, want), step.bound * coarseness(got.dtype)
            self.moved[step.name] = max(self.moved[step.name], moved)
            if not moved <= bound:
                raise BuildError(
                    f"{step} moves output {name!r} by {moved:.3g} of 1 + |y|, "
                    f"its bound is {bound:.3g}"
                )

    def _changed(self, result: ir.Model | IRModule) -> bool:
        """Whether the step did anything: most do not on most models."""
        before, self._program = self._program, _snapshot(result)
        if isinstance(before, IRModule):
            return not _same(before, result)
        return before != self._program

    def _of_model(self, model: ir.Model) -> list[np.ndarray] | None:
        """The answer of an ONNX model; None while it needs rewrites before it can be converted."""
        try:
            conversion = convert(model.clone())
        except ConversionError:
            return None
        self._inputs = self._inputs or self._arrays(conversion)
        return self._run(conversion.module)

    def _arrays(self, conversion: Conversion) -> list[np.ndarray]:
        numbers_only([*conversion.input_infos, *conversion.output_infos])
        if conversion.strings is not None:
            raise OptionError("verify='each-pass' compares numbers; this model holds strings")
        infos = conversion.input_infos
        feeds = random_inputs(infos) if self._feeds is None else self._feeds
        if feeds.keys() != conversion.inputs.keys():
            raise InputError(f"feeds are {sorted(feeds)}, the model has {list(conversion.inputs)}")
        return [stored(np.asarray(feeds[info.name])) for info in infos]

    def _run(self, module: IRModule) -> list[np.ndarray]:
        """The answer of ``module``: the last one where only what is made of it later differs."""
        target = targets.host_target()
        with target:
            finished = finish(module)
            if self._finished is None or not _same(self._finished[0], finished):
                program = finished.clone()
                self._finished = program, build_executor(finished, target)(self._inputs)
        return self._finished[1]


def _same(before: IRModule, after: object) -> bool:
    return tvm_ffi.structural_equal(before, after, map_free_vars=True)


def _snapshot(program: ir.Model | IRModule) -> bytes | IRModule:
    """``program`` as it is now: passes change models, and modules, in place."""
    if isinstance(program, IRModule):
        return program.clone()
    return ir.to_proto(program).SerializeToString(deterministic=True)


def _types(arrays: Sequence[np.ndarray]) -> str:
    return ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays) or "nothing"


def finish(module: IRModule) -> IRModule:
    """``module``, from wherever it is in the pipeline, with every kernel scheduled safely."""
    rest = pipeline.default(targets.host_target(), 0)
    fuse = relax.transform.FuseTIR()
    rest = rest.insert("FuseTIR", fuse, after="LegalizeOps", seconds=None, where="")
    for phase in pipeline.PHASES[1:]:
        for step in rest.phase(phase):
            module = step.run(module)
    return module


def distance(got: np.ndarray, want: np.ndarray) -> float:
    """The largest ``|got - want| / (1 + |want|)``; infinite for other shapes and new NaNs."""
    if got.shape != want.shape:
        return np.inf
    a, b = got.astype("float64"), want.astype("float64")
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        errors = np.where(same, 0.0, np.abs(a - b) / (1 + np.abs(b)))
    return float(np.nan_to_num(errors, nan=np.inf, posinf=np.inf).max()) if errors.size else 0.0


def coarseness(dtype: np.dtype) -> float:
    """How much coarser than float32 a type is; integers are exact."""
    if dtype.kind in "biu":
        return 0.0
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps) / _SINGLE
