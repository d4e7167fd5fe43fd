"""The contract of a declared compound operator: with it, every model answers as without it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace

import onnx
from tvm import relax

from .. import pipeline, targets
from ..build import convert_and_build, import_model
from ..emulator import NO_COMPILER, run
from ..errors import TvmExtError
from ..passes.compound import COMPOSITE, declined
from .checking import Breach, Guard, checked_distance, reason_of
from .compound import Compound
from .compound_samples import Variant
from .report import Finding

__all__ = ["compound_findings"]


def compound_findings(compound: Compound) -> Iterator[Finding]:
    """Each sample, on each target of the compound.

    The pattern is found; on llvm at all opt levels, and on cuda with the kernels run on the CPU,
    the answers are those that the model gives without the compound; the schedules take their
    kernels; the speed against that without the compound. On llvm in other sizes, in other floats
    and with symbolic dims, too: what the constraints leave alone is told with their reason.
    """
    if not compound.samples:
        yield Finding("pattern", "samples", False, f"{compound.place} declares no sample")
        return
    for number, sample in enumerate(compound.samples):
        first, *sizes = sample.sized()
        case = f"sample {number} {first.case}".rstrip()
        yield from _first(compound, replace(first, case=case))
        if "llvm" not in _kinds(compound):
            for variant in sizes:
                yield _cuda(compound, replace(variant, case=f"sample {number} {variant.case}"))
        else:
            variants = [("sizes", variant) for variant in sizes]
            variants += [("dtypes", variant) for variant in sample.retyped()]
            variants += [("symbolic dims", sample.symbolic())]
            for what, variant in variants:
                named = replace(variant, case=f"sample {number} {variant.case}")
                yield _varied(compound, f"llvm, {what}", named)


def _kinds(compound: Compound) -> tuple[str, ...]:
    return compound.targets or ("llvm", "cuda")


def _first(compound: Compound, sample: Variant) -> Iterator[Finding]:
    """The checks of a sample as it is written."""
    kinds = _kinds(compound)
    for kind in kinds:
        with Guard(f"found, {kind}", sample.case) as guard:
            calls, reason = _taken(compound, sample.model, kind)
            if not calls:
                raise Breach(f"{compound.place}: {reason}")
            guard.note(detail=f"{calls} kernel" + "s" * (calls > 1))
        yield guard.finding
    if "llvm" in kinds:
        with Guard("llvm, all levels", sample.case) as guard:
            guard.note(error=max(_error(compound, sample, level) for level in range(4)))
        yield guard.finding
        yield _speed(compound, sample)
    if "cuda" in kinds:
        yield _cuda(compound, sample)


def _varied(compound: Compound, check: str, variant: Variant) -> Finding:
    """A variant of a sample, where that is a model, and where the constraints admit it."""
    with Guard(check, variant.case) as guard:
        try:
            convert_and_build(variant.model, steps=_without(compound))
        except TvmExtError as error:
            guard.note(detail=f"no model: {reason_of(error)}")
            return guard.finding
        calls, reason = _taken(compound, variant.model, "llvm")
        if calls:
            guard.note(error=_error(compound, variant, 3))
        else:
            guard.note(detail=reason)
    return guard.finding


def _taken(compound: Compound, model: onnx.ModelProto, kind: str) -> tuple[int, str]:
    """How often the compound is in ``model`` after its phase; why not, where it is not."""
    steps = pipeline.default(targets.resolve(kind))
    module = import_model(model, steps).module
    with steps.target:
        for step in steps.phase("select"):
            module = step.run(module)
    kernels = {
        gv
        for gv, f in module.functions_items()
        if (f.attrs or {}).get(COMPOSITE, "") == compound.name
    }
    calls = 0
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            calls += isinstance(value, relax.Call) and value.args and value.args[0] in kernels
    reasons = list(declined(module, compound.name).values())
    return calls, f"not taken: {reasons[-1]}" if reasons else "the pattern is not found"


def _without(compound: Compound, level: int = 3) -> pipeline.Pipeline:
    """The steps of an llvm build that lacks the compound."""
    steps = pipeline.default(targets.resolve("llvm"), level)
    return steps.without(compound.name) if _has(steps, compound.name) else steps


def _error(compound: Compound, sample: Variant, level: int) -> float:
    """How far the compound moves the answer of an llvm build.

    Raises:
        Breach: too far, or it does not build; with the opt level, and what of the plugin is wrong.
    """
    steps = pipeline.default(targets.resolve("llvm"), level)
    if not _has(steps, compound.name):
        return 0.0
    plain = convert_and_build(sample.model, steps=_without(compound, level))
    wanted = plain.run(None, sample.feeds)

    def moved(steps: pipeline.Pipeline) -> float | str:
        try:
            answer = convert_and_build(sample.model, steps=steps).run(None, sample.feeds)
            return checked_distance(answer, wanted)
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


def _cuda(compound: Compound, sample: Variant) -> Finding:
    """The generated CUDA C, run on the CPU, against llvm without the compound."""
    if NO_COMPILER is not None:
        return Finding("cuda on the CPU", sample.case, True, f"not checked: {NO_COMPILER}")
    with Guard("cuda on the CPU", sample.case) as guard, tempfile.TemporaryDirectory() as folder:
        plain = convert_and_build(sample.model, steps=_without(compound))
        wanted = plain.run(None, sample.feeds)
        levels = [run(sample.model, sample.feeds, folder, opt_level=level) for level in (0, 3)]
        guard.note(error=max(checked_distance(answer, wanted) for answer in levels))
    return guard.finding


def _speed(compound: Compound, sample: Variant) -> Finding:
    """The schedule takes its kernel; seconds with the compound and without it."""
    steps, rule = pipeline.default(targets.resolve("llvm")), compound.rules.get("llvm")
    with Guard("llvm, speed", f"{sample.case}, against unfused") as guard:
        if rule is not None:
            rule.declined.clear()
        own = convert_and_build(sample.model, steps=steps)
        if rule is not None and rule.declined:
            raise Breach(f"schedule {rule.place}: declines its own kernel: {rule.declined[0]}")
        both = own, convert_and_build(sample.model, steps=_without(compound))
        seconds, generic = (built.benchmark(sample.feeds).median for built in both)
        guard.note(seconds=seconds, generic=generic)
    return guard.finding
