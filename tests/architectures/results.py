"""Results kept from run to run, and the tables that are made of them."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path

from tvm_ext.compare.result import this_machine

from .registry import EXPORTERS, FORMS, NOT_EXPORTED, Task, architectures, tasks
from .worker import Result

__all__ = ["document", "keep", "kept", "summary"]

PACKAGES = (
    "onnx onnxruntime torch torchvision timm transformers diffusers scikit-learn skl2onnx "
    "lightgbm xgboost onnxmltools tensorflow-cpu keras tf2onnx paddlepaddle paddle2onnx"
).split()


def kept(file: Path) -> dict[Task, Result]:
    """The last result of each task in ``file``, which need not exist."""
    if not file.exists():
        return {}
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    results = (Result(Task(*task), *values) for task, *values in rows)
    return {each.task: each for each in results}


def keep(file: Path, result: Result) -> None:
    """Append ``result`` to ``file``, a line of JSON each."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(result) + "\n")


def refused(result: Result) -> bool:
    """Whether there is no model to compare with."""
    return result.reason.startswith(NOT_EXPORTED)


def summary(results: Iterable[Result]) -> list[str]:
    """A table of what is equal of what is exported, by exporter and form; then by family."""
    results = list(results)
    lines = ["| exporter | form | equal | exported | not exported |", "|---|---|---|---|---|"]
    for exporter, form in product(EXPORTERS, FORMS):
        some = [each for each in results if each.task[1:] == (exporter, form)]
        if some:
            equal, not_exported = sum(not each.reason for each in some), sum(map(refused, some))
            exported = len(some) - not_exported
            lines.append(f"| {exporter} | {form} | {equal} | {exported} | {not_exported} |")
    equal, failing = _equal_and_failing(results)
    names = {each.task.name for each in results}
    static, dynamic = (
        {each.task.name for each in results if each.task.form == form and not each.reason}
        for form in FORMS
    )
    both = static & dynamic
    return [
        *lines,
        "",
        f"{len(equal - failing)} of {len(names)} architectures are equal in whatever was run and "
        f"exported of them, {len(both - failing)} of these static and dynamic; {len(failing)} are "
        f"not, of {len(names - equal - failing)} nothing is exported.",
    ]


def reasons(results: Iterable[Result]) -> Iterator[str]:
    """What is not equal, by its reason, the most frequent first."""
    return _grouped((each.reason, each) for each in results)


def _grouped(results: Iterable[tuple[str, Result]]) -> Iterator[str]:
    groups = defaultdict(list)
    for reason, result in results:
        if reason:
            groups[reason].append(" ".join(result.task))
    for reason, members in sorted(groups.items(), key=lambda group: -len(group[1])):
        yield f"- {len(members)}: `{reason}`: {', '.join(members)}"


def document(results: Iterable[Result]) -> str:
    """The page that says for each architecture what came of it, and on what machine."""
    results, machine = sorted(results, key=_place), this_machine()
    lines = [
        "# Architectures",
        "",
        "Small networks with random weights, exported, built for this CPU at the default level and "
        "compared with onnxruntime, where dims are symbolic at two sizes. Written by",
        "",
        "    python -m tests.architectures --keep FILE --write docs/architectures.md",
        "",
        f"on {datetime.now(UTC):%Y-%m-%d}, {machine.cpu}, Python {machine.python}, "
        f"{', '.join(_versions())}.",
        "",
        *_totals(results),
        "",
        "- equal: all floats differ by at most 1e-3 of the largest value of the output (of models "
        "in 8 bits and in float16 by 3e-2 and 1e-2), all others not at all; the largest error is "
        "relative to that value",
        "- not exported: the exporter gives up, or onnxruntime does not run the model, or only at "
        "the sizes of the example; the reason is below; where it only lacks a kernel for a valid "
        "one of torch, torch itself is compared with",
        "- build: seconds of CPU time, static / dynamic",
        "",
        *summary(results),
    ]
    for family, some in _by_family(results).items():
        lines += [
            "",
            f"## {family.replace('_', ' ').capitalize()}",
            "",
            "| architecture | exporter | static | dynamic | largest error | build s |",
            "|---|---|---|---|---|---|",
            *_rows(some),
        ]
    failing = list(reasons(results))
    by_torch = list(_grouped((each.refusal, each) for each in results if not each.reason))
    missing = [name for name in architectures() if name not in {each.task.name for each in results}]
    if failing:
        lines += ["", "## What is not equal", "", *failing]
    if by_torch:
        lines += ["", "## What onnxruntime refuses", "", "Equal to torch instead.", "", *by_torch]
    if missing:
        lines += ["", "## What was not run", "", ", ".join(missing)]
    return "\n".join(lines) + "\n"


def _totals(results: list[Result]) -> list[str]:
    """How much of what is registered was run, and what came of it."""
    names, not_exported = {each.task.name for each in results}, sum(map(refused, results))
    equal = sum(not each.reason for each in results)
    cpu = [each.cpu for each in results if each.cpu is not None]
    lines = [
        f"{len(names)} of {len(architectures())} architectures and {len(results)} of "
        f"{len(tasks())} tasks (an architecture by one exporter, static or dynamic) were run: "
        f"{equal} are equal, {not_exported} are not exported, "
        f"{len(results) - equal - not_exported} fail here."
    ]
    if cpu:
        lines.append(f"A task took {sum(cpu) / len(cpu):.1f} s of CPU time (mean of {len(cpu)}).")
    return lines


def _rows(results: list[Result]) -> Iterator[str]:
    forms = defaultdict(dict)
    for each in results:
        forms[each.task[:2]][each.task.form] = each
    for (name, exporter), by_form in forms.items():
        cells = [_verdict(by_form.get(form)) for form in FORMS]
        errors = [each.error for each in by_form.values() if each.error is not None]
        builds = [by_form[form].build if form in by_form else None for form in FORMS]
        seconds = " / ".join("-" if build is None else f"{build:.1f}" for build in builds)
        worst = f"{max(errors):.0e}" if errors else "-"
        yield f"| {name} | {exporter} | {' | '.join(cells)} | {worst} | {seconds} |"


def _verdict(result: Result | None) -> str:
    if result is None:
        return "-"
    if refused(result):
        return NOT_EXPORTED
    return "**fails**" if result.reason else "equal"


def _by_family(results: list[Result]) -> dict[str, list[Result]]:
    families = defaultdict(list)
    for each in results:
        families[architectures()[each.task.name].family].append(each)
    return families


def _place(result: Result) -> tuple[int, int]:
    """Where it stands: architectures as they are listed, then exporters."""
    return (
        list(architectures()).index(result.task.name),
        EXPORTERS.index(result.task.exporter),
    )


def _equal_and_failing(results: list[Result]) -> tuple[set[str], set[str]]:
    equal = {each.task.name for each in results if not each.reason}
    return equal, {each.task.name for each in results if each.reason and not refused(each)}


def _versions() -> Iterator[str]:
    for package in PACKAGES:
        try:
            yield f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
