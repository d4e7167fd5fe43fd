"""Run the official suite, report its failures grouped by reason, and count what passes.

Examples:
    python -m tests.official_suite --filter 'lstm|gru'
    python -m tests.official_suite --forms symbolic --levels 0 3 --part 7
    python -m tests.official_suite --jobs 2 --levels 0 3 --write-exclusions
    python -m tests.official_suite --jobs 16 --device CUDA

Exit status 1: a case fails that is not in the list of its form, or one that is there passes.
"""

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

from . import CASES, DEVICES, FORMS, LEVELS, PARTS, Task, exclusion_list, exclusions, part
from .worker import Result, run

_HEADER = """\
# The cases of the official ONNX backend suite that fail{where}, one per line with the reason.
# "name at 0: reason" fails at opt_level 0 only.
# Strict: a case that starts to pass fails the test run until it leaves this list.
# Rewritten by: python -m tests.official_suite{form} --levels 0 3 --jobs 2 --write-exclusions
"""


def main() -> int:
    args = _arguments()
    names = [name for name in sorted(CASES) if re.search(args.filter, name)]
    if args.part is not None:
        names = [name for name in names if part(name) == args.part % PARTS]
    tasks = [
        Task(name, form, level, args.device)
        for form in args.forms
        for level in args.levels
        for name in names
    ]
    results = _results(tasks, args.jobs, args.results)
    failures = {result.task: result.reason for result in results if result.reason}
    if args.write_exclusions:
        for form in args.forms:
            _write(form, [task for task in tasks if task.form == form], failures)
    _print_reasons(failures, args.names)
    surprises = _surprises(tasks, failures)
    for text in surprises:
        print(text)
    for form in args.forms:
        for level in args.levels:
            failed = sum(task.form == form and task.level == level for task in failures)
            print(
                f"{form:8} at opt_level {level}: {len(names) - failed} of {len(names)} cases pass"
            )
    minutes = sum(result.seconds for result in results) / 60
    print(f"{minutes:.1f} minutes in {args.jobs} worker processes")
    return 1 if surprises else 0


def _results(tasks: list[Task], jobs: int, path: Path | None) -> list[Result]:
    """What became of ``tasks``, also written to ``path``, line by line."""
    results: list[Result] = []
    failed = 0
    with path.open("w", encoding="utf-8") if path else nullcontext() as file:
        for result in run(tasks, jobs):
            results.append(result)
            failed += bool(result.reason)
            if file:
                file.write(json.dumps([*result.task, result.seconds, result.reason]) + "\n")
                file.flush()
            if len(results) % 100 == 0:
                progress = f"{len(results)} of {len(tasks)}, {failed} failed"
                print(progress, file=sys.stderr, flush=True)
    return results


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.official_suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--filter", default="", help="regular expression on the name of a case")
    parser.add_argument("--part", type=int, help=f"only one of the {PARTS} parts of the cases")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=["plain"])
    parser.add_argument("--levels", nargs="+", type=int, choices=LEVELS, default=[3])
    parser.add_argument("--device", choices=DEVICES, default="CPU")
    parser.add_argument("--names", type=int, default=4, help="cases to list per reason (default 4)")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes (default 1)")
    parser.add_argument("--results", type=Path, help="write each as a line of JSON, for the table")
    parser.add_argument(
        "--write-exclusions",
        action="store_true",
        help="write what fails, of the cases that are run, into the lists of the forms",
    )
    args = parser.parse_args()
    if args.write_exclusions and args.device != "CPU":
        parser.error("the lists are those of the CPU")
    return args


def _print_reasons(failures: dict[Task, str], count: int) -> None:
    groups = defaultdict(list)
    for task, reason in failures.items():
        groups[task.form, reason].append(f"{task.name} at {task.level}")
    for (form, reason), members in sorted(
        groups.items(), key=lambda group: (-len(group[1]), group[0])
    ):
        more = f" ... {len(members)}" if len(members) > count else ""
        print(f"{len(members):4} {form}: {reason}\n       {', '.join(members[:count])}{more}")


def _surprises(tasks: Iterable[Task], failures: dict[Task, str]) -> list[str]:
    """What differs from the lists, which are those of the CPU."""
    failures = {task._replace(device="CPU"): reason for task, reason in failures.items()}
    plain = exclusions()
    listed = {form: exclusions(form) for form in FORMS}
    texts = []
    for task in (task._replace(device="CPU") for task in tasks):
        if task.form != "plain" and task._replace(form="plain") in plain:
            continue  # what fails as it is may fail or pass in another form
        if (task in failures) != (task in listed[task.form]):
            what = f"not listed: {failures[task]}" if task in failures else "listed, but passes"
            texts.append(f"{task.name} ({task.form}, opt_level {task.level}) {what}")
    return texts


def _write(form: str, tasks: list[Task], failures: dict[Task, str]) -> None:
    """Replace the lines of ``tasks`` in the list of ``form``."""
    plain = {} if form == "plain" else exclusions()
    kept = exclusions(form)
    for task in tasks:
        kept.pop(task, None)
        if task in failures and task._replace(form="plain") not in plain:
            kept[task] = failures[task]
    lines = []
    for name in sorted({task.name for task in kept}):
        reasons = {level: kept.get(Task(name, form, level)) for level in LEVELS}
        if len(set(reasons.values())) == 1:
            lines.append(f"{name}: {reasons[LEVELS[0]]}\n")
        else:
            lines += [f"{name} at {level}: {why}\n" for level, why in reasons.items() if why]
    header = _HEADER.format(
        where="" if form == "plain" else f" in the {form} form, and pass as they are",
        form="" if form == "plain" else f" --forms {form}",
    )
    exclusion_list(form).write_text(header + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
