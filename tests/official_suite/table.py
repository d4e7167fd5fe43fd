"""Write the support table: what of each operator has run and passed, and why the rest did not.

    python -m tests.official_suite --forms plain symbolic --results out/suite.jsonl
    TVM_EXT_RECORD=out/uses.jsonl python -m pytest tests/converters
    TVM_EXT_RECORD=out/uses.jsonl python -m tests.operator_sweep
    python -m tests.official_suite.table docs/operators.md out/suite.jsonl --uses out/uses.jsonl

Cases that no file of results has are not counted; the last result of a case counts. Results of
``python -m tests.official_suite --device CUDA`` on a machine with a GPU may be among them.
"""

import argparse
import datetime
import json
import platform
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx.backend.test.loader import load_model_tests
from tvm_ext.frontend import TABLE
from tvm_ext.frontend.table import REFUSED

from tests.uses import Use, recorded, uses

from . import CASES, FORMS, LEVELS, Task

__all__ = ["main"]

_DATA = Path(onnx.__file__).parent.parent
_INTRODUCTION = """\
# Operators

Generated from what ran, not typed, by `python -m tests.official_suite.table`, {date}, onnx {onnx},
{machine}: models of the official suite of ONNX backends in three forms at opt levels {levels}, of
the tests of the converters, and of the suite's nodes restated for other versions and converted to
other element types (`python -m tests.operator_sweep`), built and compared. `make operators` runs
all of them; how many ran for this page is in the first table.

- **versions**: the since_versions that ran and passed; in brackets those that have a converter and
  no model here.
- **static**: the element types that passed with static shapes, by the type variables of the ONNX
  schema; **dynamic**: with symbolic dims, "same" where they are equal.
- **cases**: how many of the suite's cases of this operator pass at all levels that ran, of how
  many: static (as they are, and with constants for inputs), then dynamic. "tests": it has none.
- Target llvm. cuda: {cuda}.

| form | opt level | passed | run | cases |
|---|---|---|---|---|
{forms}
"""
_FORM_NAMES = {"plain": "as it is", "symbolic": "symbolic dims", "constant": "constants"}


@dataclass
class _Row:
    """What is known of an operator."""

    versions: set[int] = field(default_factory=set)
    types: Mapping[bool, Mapping[str, set[str]]] = field(
        default_factory=lambda: {dynamic: defaultdict(set) for dynamic in (False, True)}
    )
    passed: Counter[bool] = field(default_factory=Counter)
    total: Counter[bool] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, use: Use, dynamic: bool) -> None:
        """A model with ``use`` passed."""
        self.versions.add(use.since)
        for variable, element in use.types:
            self.types[dynamic][variable].add(element)


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m tests.official_suite.table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("output", type=Path, help="the Markdown file to write")
    parser.add_argument("results", nargs="+", type=Path, help="that runs of the suite wrote")
    parser.add_argument("--uses", nargs="*", type=Path, default=[], help="that tests recorded")
    args = parser.parse_args()
    results = _read(args.results)
    public = [(domain, op_type) for domain, op_type, _ in TABLE if domain != "tvm_ext"]
    rows = defaultdict(_Row, {key: _Row() for key in public})
    _add_suite(rows, results)
    for path in args.uses:
        for dynamic, use in recorded(path):
            rows[use.domain, use.op_type].add(use, dynamic)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    text = _introduction(results) + "".join((*_tables(rows), *_refusals()))
    args.output.write_text(text, encoding="utf-8")


def _read(paths: Iterable[Path]) -> dict[Task, str]:
    """Task -> the reason why it failed, or ""."""
    lines = (json.loads(line) for path in paths for line in path.read_text().splitlines())
    return {Task(*task): reason for *task, _seconds, reason in lines}


def _add_suite(rows: Mapping[tuple[str, str], _Row], results: Mapping[Task, str]) -> None:
    models = dict(_models())
    for name, model in models.items():
        owner = _owner(name, models)
        used = set(uses(model))
        for form in FORMS:
            dynamic = form == "symbolic"
            tasks = [Task(f"{name}_cpu", form, level) for level in LEVELS]
            reasons = {results[task] for task in tasks if task in results}
            failed = reasons - {""}
            for use in used if reasons and not failed else ():
                rows[use.domain, use.op_type].add(use, dynamic)
            if owner and reasons:
                rows[owner].total[dynamic] += 1
                rows[owner].passed[dynamic] += not failed
                rows[owner].reasons.update(failed)


def _models() -> Iterator[tuple[str, onnx.ModelProto]]:
    for kind in ("node", "simple", "real", "pytorch-converted", "pytorch-operator"):
        for case in load_model_tests(kind=kind):
            if case.url:
                yield case.name, onnx.load(_DATA / case.url)
            else:
                yield case.name, case.model or onnx.load(f"{case.model_dir}/model.onnx")


def _owner(name: str, models: Mapping[str, onnx.ModelProto]) -> tuple[str, str] | None:
    """The operator that a case is about: the only node, also where its body stands for it."""
    base = re.sub(r"_expanded(_.*)?$", "", name)
    nodes = models.get(base, models[name]).graph.node
    return (nodes[0].domain, nodes[0].op_type) if len(nodes) == 1 else None


def _introduction(results: Mapping[Task, str]) -> str:
    run = Counter(task[1:] for task in results)
    passed = Counter(task[1:] for task, reason in results.items() if not reason)
    forms = [
        f"| {_FORM_NAMES[form]} | {level} | {passed[form, level, 'CPU']} "
        f"| {run[form, level, 'CPU']} | {len(CASES)} |"
        for form in FORMS
        for level in LEVELS
    ]
    return _INTRODUCTION.format(
        date=datetime.date.today(),
        onnx=onnx.__version__,
        machine=platform.machine(),
        levels=" and ".join(map(str, LEVELS)),
        cuda=", ".join(
            f"{passed[group]} of {run[group]} pass ({_FORM_NAMES[group[0]]}, opt level {group[1]})"
            for group in sorted(run)
            if group[2] == "CUDA"
        )
        or "not run",
        forms="\n".join(forms),
    )


def _tables(rows: Mapping[tuple[str, str], _Row]) -> Iterator[str]:
    for domain in sorted({domain for domain, _ in rows}):
        yield (
            f"\n## {domain or 'ai.onnx'}\n\n"
            "| operator | versions | static | dynamic | cases: static, dynamic | what fails |\n"
            "|---|---|---|---|---|---|\n"
        )
        for key in sorted(key for key in rows if key[0] == domain):
            yield f"| {' | '.join(_cells(*key, rows[key]))} |\n"


def _refusals() -> Iterator[str]:
    """The operators that are known and have no converter, by the reason."""
    reasons = defaultdict(list)
    for (domain, op_type), reason in REFUSED.items():
        reasons[domain or "ai.onnx", reason].append(op_type)
    yield "\n## Without a converter\n\n| domain | operators | why, and what to do |\n"
    yield "|---|---|---|\n"
    for (domain, reason), op_types in sorted(reasons.items(), key=lambda row: (row[0][0], row[1])):
        yield f"| {domain} | {_joined(sorted(op_types))} | {reason} |\n"


def _cells(domain: str, op_type: str, row: _Row) -> Iterator[str]:
    known = {since for d, o, since in TABLE if (d, o) == (domain, op_type)}
    rest = sorted(known - row.versions)
    yield op_type
    yield " ".join([*map(str, sorted(row.versions)), *([f"({_joined(rest)})"] if rest else [])])
    static, dynamic = (_types(row.types[kind]) for kind in (False, True))
    yield static
    yield "same" if static and dynamic == static else dynamic
    yield (
        ", ".join(f"{row.passed[k]}/{row.total[k]}" for k in (False, True))
        if row.total
        else ("tests" if row.versions else "")
    )
    yield "; ".join(f"{why} ({n})" for why, n in row.reasons.most_common()).replace("|", r"\|")


def _joined(values: Iterable[object]) -> str:
    return " ".join(map(str, values))


def _types(types: Mapping[str, set[str]]) -> str:
    """Names of variables are said where there are several."""
    parts = [
        (f"{variable}: " if len(types) > 1 and "(" not in variable else "")
        + _joined(sorted(elements))
        for variable, elements in sorted(types.items())
    ]
    return "; ".join(dict.fromkeys(parts))


if __name__ == "__main__":
    main()
