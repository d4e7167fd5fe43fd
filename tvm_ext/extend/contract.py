"""The contract of a declared operator, and what of it holds.

Each check is a generator of findings, so that one failure hides no other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper

from .. import pipeline, targets
from ..build import convert_and_build
from ..emulator import NO_COMPILER, emulated, run
from ..errors import OptionError, TvmExtError
from ..export import export
from ..export.check import run_example
from .checking import Breach, Guard, checked_distance, reason_of
from .compound_contract import compound_findings
from .models import element_types, expected, feeds_of, fused_model, node_model
from .operator import Operator
from .plugin import Plugin
from .report import Finding, Report
from .samples import Sample
from .step_contract import step_findings

__all__ = ["check"]

_SEED = 0


def check(plugin: Plugin) -> Report:
    """Check every operator, compound and step that ``plugin`` declares.

    Of an operator: the signature against the schema; the numpy reference against llvm at all opt
    levels, on all samples, static and symbolic, and against cuda with its kernels run on the CPU;
    the operator as a C program, and fused with a producer and a consumer; the plugin's schedules
    against the built-in ones. Of a compound: see :mod:`.compound_contract`; of a
    step: :mod:`.step_contract`.
    """
    findings = [
        replace(finding, operator=str(operator))
        for operator in plugin.operators
        for finding in _findings(operator)
    ]
    findings += [
        replace(finding, operator=str(compound))
        for compound in plugin.compounds
        for finding in compound_findings(compound)
    ]
    findings += [
        replace(finding, operator=f"step {name}")
        for name in plugin.steps
        for finding in step_findings(name, [o for o in plugin.steps if o != name])
    ]
    return Report(plugin.name, tuple(findings))


def _findings(operator: Operator) -> Iterator[Finding]:
    declaration = list(_declaration(operator))
    yield from declaration
    if not all(finding.passed for finding in declaration):
        return
    samples: list[Sample] = []
    with Guard("samples", operator.place) as guard:
        samples = _samples(operator)
    if not samples:
        guard.note(passed=False, detail=guard.finding.detail or "the generators yield no sample")
        yield guard.finding
        return
    checks: Sequence[Callable[[Operator, list[Sample]], Iterator[Finding]]] = (
        _values,
        _dynamic,
        _fusion,
        _cuda,
        _export,
        _schedules,
    )
    for each in checks:
        yield from each(operator, samples)


def _samples(operator: Operator) -> list[Sample]:
    random = np.random.default_rng(_SEED)
    samples = [s for family in operator.families for s in family.samples(random)]
    samples += [s for generator in operator.generators for s in generator(random)]
    for sample in samples:
        if not isinstance(sample, Sample):
            raise Breach(f"@samples yields {type(sample).__name__}, no extend.Sample")
    return samples


# --- the checks ----------------------------------------------------------------------------


def _declaration(operator: Operator) -> Iterator[Finding]:
    """The converter's signature is the schema; the reference's is the converter's."""
    with Guard("signature", f"{operator.place} against schema") as guard:
        _agree_with_schema(operator)
    yield guard.finding
    if operator.numpy is None or not (operator.families or operator.generators):
        missing = "@reference" if operator.numpy is None else "samples: shapes(...) or @samples"
        yield Finding("signature", "parts", False, f"{operator.place} declares no {missing}")
        return
    with Guard("signature", "reference against converter") as guard:
        ours = list(signature(operator.function).parameters.values())[1:]
        theirs = list(signature(operator.numpy).parameters.values())
        if [(p.name, p.default) for p in ours] != [(p.name, p.default) for p in theirs]:
            raise Breach(f"the reference takes {theirs}, the converter {ours}")
    yield guard.finding


def _agree_with_schema(operator: Operator) -> None:
    parameters = list(signature(operator.function).parameters.values())[1:]
    keywords = {p.name: p.default for p in parameters if p.kind is Parameter.KEYWORD_ONLY}
    schema = operator.schema
    differing = sorted(keywords.keys() ^ schema.attributes.keys())
    if differing:
        raise Breach(f"only one of converter and schema has the attributes {differing}")
    for name, attribute in schema.attributes.items():
        declared = _default(attribute)
        if not _same(keywords[name], declared):
            raise Breach(f"{name} defaults to {keywords[name]}, in the schema to {declared}")
    inputs = [p for p in parameters if p.kind is not Parameter.KEYWORD_ONLY]
    if len(inputs) < len(schema.inputs):
        raise Breach(f"{len(inputs)} inputs, the schema has {len(schema.inputs)}")
    required = [p for p in inputs if p.kind is not Parameter.VAR_POSITIONAL and _required(p)]
    if len(required) > schema.min_input:
        raise Breach(f"{len(required)} inputs are required, by the schema {schema.min_input}")


def _required(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty


def _default(attribute: defs.OpSchema.Attribute) -> object:
    if attribute.required:
        return Parameter.empty
    if attribute.default_value.type == onnx.AttributeProto.UNDEFINED:
        return None
    value = helper.get_attribute_value(attribute.default_value)
    return value.decode() if isinstance(value, bytes) else value


def _same(declared: Any, default: object) -> bool:
    if isinstance(default, float):  # float32 in the file
        return isinstance(declared, float | int) and abs(declared - default) <= 1e-6 * abs(default)
    return list(declared or ()) == default if isinstance(default, list) else declared == default


def _values(operator: Operator, samples: list[Sample]) -> Iterator[Finding]:
    """Every sample at every opt level."""
    for sample in samples:
        with Guard("llvm, all levels", sample) as guard:
            errors = [
                _build_and_run(operator, node_model(operator, sample), sample, level)
                for level in range(4)
            ]
            guard.note(error=max(errors))
        yield guard.finding


def _build_and_run(
    operator: Operator, model: onnx.ModelProto, sample: Sample, level: int, *, fused: bool = False
) -> float:
    """The error of an llvm build; see :func:`_blaming`."""
    feeds, wanted = feeds_of(sample), expected(operator, sample, fused=fused)

    def distance(steps: pipeline.Pipeline) -> float:
        answer = convert_and_build(model, steps=steps).run(None, feeds)
        if not fused:
            _check_types(operator, sample, answer)
        return checked_distance(answer, wanted)

    return _blaming(operator, "llvm", level, distance)


def _check_types(operator: Operator, sample: Sample, answer: Sequence[np.ndarray]) -> None:
    """The element types of ``answer`` are those that the reference and the schema tell.

    Raises:
        Breach: one is not.
    """
    for k, types in enumerate(element_types(operator, sample)):
        if types and answer[k].dtype.name not in types:
            told = " or ".join(sorted(types))
            raise Breach(f"output {k} is {answer[k].dtype}, by the reference {told}")
    bound: dict[str, str] = {}
    for what, formal, array in _formals(operator, sample, answer):
        name = onnx.TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(array.dtype))
        given = f"tensor({name.lower()})"
        if formal.types and given not in formal.types:
            raise Breach(f"{what} is {given}, by the schema one of {sorted(formal.types)}")
        if bound.setdefault(formal.type_str, given) != given and formal.is_homogeneous:
            raise Breach(f"{what} is {given}, by the schema as another {bound[formal.type_str]}")


def _formals(
    operator: Operator, sample: Sample, answer: Sequence[np.ndarray]
) -> Iterator[tuple[str, defs.OpSchema.FormalParameter, np.ndarray]]:
    """What the schema says of each array."""
    for what, formals, arrays in (
        ("input", operator.schema.inputs, sample.inputs),
        ("output", operator.schema.outputs, answer),
    ):
        for k, array in enumerate(arrays):
            if array is not None:
                yield f"{what} {k}", formals[min(k, len(formals) - 1)], array


def _blaming(
    operator: Operator, kind: str, level: int, distance: Callable[[pipeline.Pipeline], float]
) -> float:
    """``distance`` of a build by the default pipeline, or whose fault it is that there is none.

    Raises:
        Breach: with the opt level, and with the plugin's schedule if without it all is well.
    """
    steps = pipeline.default(targets.resolve(kind), level)
    try:
        return distance(steps)
    except (TvmExtError, Breach) as error:
        rule, blamed = operator.rules.get(kind), ""
        if rule is not None and any(step.name == rule.name for step in steps.steps):
            with suppress(TvmExtError, Breach):
                distance(steps.without(rule.name))
                blamed = f"schedule {rule.place}: " if rule.place not in str(error) else ""
        raise Breach(f"{blamed}opt level {level}: {reason_of(error)}") from error


def _dynamic(operator: Operator, samples: list[Sample]) -> Iterator[Finding]:
    """The same with symbolic dims."""
    for sample in samples:
        with Guard("symbolic dims", sample) as guard:
            model = node_model(operator, sample, symbolic=True)
            guard.note(error=_build_and_run(operator, model, sample, 3))
        yield guard.finding


def _fusion(operator: Operator, samples: list[Sample]) -> Iterator[Finding]:
    """Between a producer and a consumer."""
    for sample in samples[:2]:
        if sample.inputs[0] is None:
            continue
        for rule in operator.rules.values():
            rule.declined.clear()
        with Guard("fused", f"between two others {sample}") as guard:
            model = fused_model(operator, sample)
            guard.note(error=_build_and_run(operator, model, sample, 3, fused=True))
            declined = [reason for rule in operator.rules.values() for reason in rule.declined]
            if declined:
                guard.note(detail=f"the schedule declines: {declined[0]}")
        yield guard.finding


def _cuda(operator: Operator, samples: list[Sample]) -> Iterator[Finding]:
    """The generated CUDA C, run on the CPU."""
    if NO_COMPILER is not None:
        yield Finding("cuda on the CPU", "all samples", True, f"not checked: {NO_COMPILER}")
        return
    with tempfile.TemporaryDirectory(prefix="tvm_ext_check_") as folder:
        for sample in samples:
            with Guard("cuda on the CPU", sample) as guard:
                distance = partial(_cuda_distance, operator, sample, folder)
                errors = [_blaming(operator, "cuda", level, distance) for level in (0, 3)]
                guard.note(error=max(errors))
            yield guard.finding


def _cuda_distance(
    operator: Operator, sample: Sample, folder: str, steps: pipeline.Pipeline
) -> float:
    reverse = steps.opt_level > 0  # in which threads take turns
    model, feeds = node_model(operator, sample), feeds_of(sample)
    answer = run(model, feeds, folder, steps=steps, reverse=reverse)
    return checked_distance(answer, expected(operator, sample))


def _export(operator: Operator, samples: list[Sample]) -> Iterator[Finding]:
    """A C program of the first sample's model, on input of its own."""
    with Guard("export to C", samples[0]) as guard, tempfile.TemporaryDirectory() as folder:
        try:
            run_example(export(node_model(operator, samples[0]), Path(folder, "package")))
        except OptionError as reason:  # such as sorting, which is TVM's
            guard.note(detail=f"not exported: {reason}")
    yield guard.finding


def _schedules(operator: Operator, samples: list[Sample]) -> Iterator[Finding]:
    """Each schedule takes its kernel, and its speed is that of the built-in rules or better."""
    largest = max(samples, key=lambda s: sum(a.size for a in s.inputs if a is not None))
    for kind, rule in operator.rules.items():
        with Guard(f"{kind} schedule", f"{rule.place} {largest}") as guard:
            model, feeds = node_model(operator, largest), feeds_of(largest)
            rule.declined.clear()
            with_rule = pipeline.default(targets.resolve(kind))
            if kind == "cuda":
                with tempfile.TemporaryDirectory() as folder, emulated(folder):
                    convert_and_build(model, steps=with_rule)
            else:
                own = convert_and_build(model, steps=with_rule).benchmark(feeds).median
                generic = with_rule.without(rule.name)
                other = convert_and_build(model, steps=generic).benchmark(feeds).median
                guard.note(seconds=own, generic=other)
            if rule.declined:
                raise Breach(f"declines its own kernel: {rule.declined[0]}")
        yield guard.finding
