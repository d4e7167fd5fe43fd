"""Export, compile and compare the architectures; count what passes.

Examples:
    python -m tests.architectures                      all, by all exporters, in both forms
    python -m tests.architectures bert 'swin.*' --exporter dynamo --dynamic
    python -m tests.architectures --family speech --jobs 2
    python -m tests.architectures t5 --exporter dynamo --static --save t5.onnx

Exit status 1: something fails that is exported.
"""

import argparse
import re
import sys
from collections import Counter, defaultdict
from itertools import product
from pathlib import Path

from .registry import EXPORTERS, FAMILIES, FORMS, Task, architectures
from .worker import Result, run

NOT_EXPORTED = "not exported"


def main() -> int:
    args = _arguments()
    forms = [form for form in FORMS if args.form in (None, form)]
    tasks = [
        Task(each.name, exporter, form)
        for each in architectures().values()
        if any(re.fullmatch(name, each.name) for name in args.names)
        and (not args.family or each.family in args.family)
        for exporter, form in product(each.exporters, forms)
        if exporter in args.exporter and (form == "static" or each.dims)
    ]
    if args.save:
        from .check import check

        check(tasks[0], args.save)
        return 0
    results = []
    for result in run(tasks, args.jobs, args.limit):
        results.append(result)
        print(
            f"{' '.join(result.task):44} {result.seconds:5.0f} s  {result.reason or 'ok'}",
            flush=True,
        )
    table = "\n".join(summary(results))
    print(table)
    if args.write:
        args.write.write_text(table + "\n", encoding="utf-8")
    return any(r.reason and not r.reason.startswith(NOT_EXPORTED) for r in results)


def summary(results: list[Result]) -> list[str]:
    """A table of passed of exported, by exporter and form, and what fails with its reason."""
    lines = ["", "| exporter | form | equal | exported | not exported |", "|---|---|---|---|---|"]
    for exporter, form in product(EXPORTERS, FORMS):
        reasons = [r.reason for r in results if r.task[1:] == (exporter, form)]
        refused = sum(reason.startswith(NOT_EXPORTED) for reason in reasons)
        if reasons:
            equal, exported = reasons.count(""), len(reasons) - refused
            lines.append(f"| {exporter} | {form} | {equal} | {exported} | {refused} |")
    equal = {r.task.name for r in results if not r.reason}
    failing = {r.task.name for r in results if r.reason and not r.reason.startswith(NOT_EXPORTED)}
    names = {r.task.name for r in results}
    lines += [
        "",
        f"{len(equal - failing)} of {len(names)} architectures are equal to onnxruntime in "
        "every form that is exported.",
    ]
    families = Counter(architectures()[name].family for name in equal - failing)
    lines.append(", ".join(f"{family} {count}" for family, count in families.items()))
    groups = defaultdict(list)
    for result in results:
        if result.reason:
            groups[result.reason].append(" ".join(result.task))
    for reason, members in sorted(groups.items(), key=lambda group: -len(group[1])):
        lines.append(f"{len(members):3} {reason}\n      {', '.join(members)}")
    return lines


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.architectures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", default=[".*"], help="regular expressions")
    parser.add_argument("--family", nargs="+", choices=FAMILIES)
    parser.add_argument("--exporter", nargs="+", choices=EXPORTERS, default=list(EXPORTERS))
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--static", dest="form", action="store_const", const="static")
    form.add_argument("--dynamic", dest="form", action="store_const", const="dynamic")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--limit", type=float, default=300, help="seconds per task (default 300)")
    parser.add_argument("--save", help="write the ONNX model of the first, check it in-process")
    parser.add_argument("--write", type=Path, help="a file for the table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
