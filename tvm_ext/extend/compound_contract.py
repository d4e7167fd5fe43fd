"""The contract of a declared compound operator: with it, every model answers as without it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from tvm import relax

from .. import pipeline, targets
from ..build import convert_and_build, import_model
from ..emulator import NO_COMPILER, run
from ..errors import TvmExtError
from ..passes.compound import COMPOSITE, declined
from .checking import Breach, Guard, checked_distance, reason_of
from .compound import Compound
from .models import random_array
from .report import Finding

__all__ = ["compound_findings"]

Feeds = Mapping[str, np.ndarray]


def compound_findings(compound: Compound) -> Iterator[Finding]:
    """Each sample, on each target of the compound.

    The pattern is found; on llvm at all opt levels, and on cuda with the kernels run on the CPU,
    the answers are those that the model gives without the compound; the schedules take their
    kernels; the speed against that without the compound.
    """
    if not compound.models:
        yield Finding("pattern", "samples", False, f"{compound.place} declares no sample")
        return
    kinds = compound.targets or ("llvm", "cuda")
    for number, model in enumerate(compound.models):
        feeds = {
            info.name: random_array(np.random.default_rng(number), info)
            for info in model.graph.input
        }
        case = f"sample {number}"
        for kind in kinds:
            with Guard(f"found, {kind}", case) as guard:
                guard.note(detail=_found(compound, model, kind))
            yield guard.finding
        if "llvm" in kinds:
            with Guard("llvm, all levels", case) as guard:
                guard.note(error=max(_error(compound, model, feeds, k) for k in range(4)))
            yield guard.finding
            yield _speed(compound, model, feeds, case)
        if "cuda" in kinds:
            yield _cuda(compound, model, feeds, case)


def _found(compound: Compound, model: onnx.ModelProto, kind: str) -> str:
    """How often the compound is in ``model`` after its phase.

    Raises:
        Breach: it is not.
    """
    steps = pipeline.default(targets.resolve(kind))
    module = import_model(model, steps).module
    with steps.target:
        for step in steps.phase("select"):
            module = step.run(module)
    kernels = {
        gv for gv, f in module.functions_items() if f.attrs.get(COMPOSITE, "") == compound.name
    }
    calls = 0
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            calls += isinstance(value, relax.Call) and value.args and value.args[0] in kernels
    if not calls:
        reasons = list(declined(module, compound.name).values())
        because = f": {reasons[-1]}" if reasons else ""
        raise Breach(f"{compound.place}: the pattern is not found{because}")
    return f"{calls} kernel" + "s" * (calls > 1)


def _error(compound: Compound, model: onnx.ModelProto, feeds: Feeds, level: int) -> float:
    """How far the compound moves the answer of an llvm build.

    Raises:
        Breach: too far, or it does not build; with the opt level, and what of the plugin is wrong.
    """
    steps = pipeline.default(targets.resolve("llvm"), level)
    if not _has(steps, compound.name):
        return 0.0
    wanted = convert_and_build(model, steps=steps.without(compound.name)).run(None, feeds)

    def moved(built: pipeline.Pipeline) -> float | str:
        try:
            return checked_distance(convert_and_build(model, steps=built).run(None, feeds), wanted)
        except (TvmExtError, Breach) as error:
            return reason_of(error)

    error = moved(steps)
    if isinstance(error, float):
        return error
    place, rule = compound.place, compound.rules.get("llvm")
    if rule is not None and _has(steps, rule.name):
        alone = moved(steps.without(rule.name))
        place = f"schedule {rule.place}" if isinstance(alone, float) else place
    raise Breach(f"{place}: opt level {level}: {error}")


def _has(steps: pipeline.Pipeline, name: str) -> bool:
    return any(step.name == name for step in steps.steps)


def _cuda(compound: Compound, model: onnx.ModelProto, feeds: Feeds, case: str) -> Finding:
    """The generated CUDA C, run on the CPU, against llvm without the compound."""
    if NO_COMPILER is not None:
        return Finding("cuda on the CPU", case, True, f"not checked: {NO_COMPILER}")
    plain = pipeline.default(targets.resolve("llvm"))
    if _has(plain, compound.name):
        plain = plain.without(compound.name)
    with Guard("cuda on the CPU", case) as guard, tempfile.TemporaryDirectory() as folder:
        wanted = convert_and_build(model, steps=plain).run(None, feeds)
        answers = [run(model, feeds, folder, opt_level=level) for level in (0, 3)]
        guard.note(error=max(checked_distance(answer, wanted) for answer in answers))
    return guard.finding


def _speed(compound: Compound, model: onnx.ModelProto, feeds: Feeds, case: str) -> Finding:
    """The schedule takes its kernel; seconds with the compound and without it."""
    steps, rule = pipeline.default(targets.resolve("llvm")), compound.rules.get("llvm")
    with Guard("llvm, speed", f"{case}, against unfused") as guard:
        if rule is not None:
            rule.declined.clear()
        own = convert_and_build(model, steps=steps)
        if rule is not None and rule.declined:
            raise Breach(f"schedule {rule.place}: declines its own kernel: {rule.declined[0]}")
        other = convert_and_build(model, steps=steps.without(compound.name))
        seconds, generic = (built.benchmark(feeds).median for built in (own, other))
        guard.note(seconds=seconds, generic=generic)
    return guard.finding
