"""Export, compile and compare the architectures; count what is equal.

Examples:
    python -m tests.architectures                      all, by all exporters, in both forms
    python -m tests.architectures bert 'swin.*' --exporter dynamo --dynamic
    python -m tests.architectures --family speech --jobs 2
    python -m tests.architectures --keep out/results --write docs/architectures.md
    python -m tests.architectures t5 --exporter dynamo --static --save t5.onnx

Exit status 1: something fails that is exported.
"""

import argparse
import re
import sys
import time
from pathlib import Path

from .registry import EXPORTERS, FAMILIES, FORMS, Task, architectures, tasks
from .results import document, keep, kept, reasons, refused, summary
from .worker import run


def main() -> int:
    args = _arguments()
    asked = _tasks(args)
    if args.save:
        import onnx

        from .check import equal, export

        exported = export(asked[0])
        onnx.save(exported.model, args.save)
        print(equal(exported))
        return 0
    results = kept(args.keep) if args.keep else {}
    settled = {task for task, each in results.items() if not each.reason or refused(each)}
    left, start = [task for task in asked if task not in settled], time.monotonic()
    for result in run(left, args.jobs, args.limit):
        results[result.task] = result
        if args.keep:
            keep(args.keep, result)
        print(
            f"{' '.join(result.task):44} {result.seconds:5.0f} s  {result.reason or 'ok'}",
            flush=True,
        )
    print(f"{len(left)} tasks in {time.monotonic() - start:.0f} s")
    found = [results[task] for task in asked]
    print("\n".join(["", *summary(found), "", *reasons(found)]))
    if args.write:
        args.write.parent.mkdir(parents=True, exist_ok=True)
        args.write.write_text(document(results.values()), encoding="utf-8")
    return any(each.reason and not refused(each) for each in found)


def _tasks(args: argparse.Namespace) -> list[Task]:
    """Of each architecture, static by one exporter and dynamic by the next; then the others.

    A run that is ended early has so seen the most of them.
    """
    every = architectures()
    matching = [each for pattern in args.names for each in every if re.fullmatch(pattern, each)]
    names = [
        name
        for name in dict.fromkeys(matching)
        if not args.family or every[name].family in args.family
    ]

    def place(task: Task) -> tuple[int, int]:
        odd = (EXPORTERS.index(task.exporter) + FORMS.index(task.form)) % 2
        return odd, names.index(task.name)

    asked = [
        task
        for task in tasks()
        if task.name in names and task.exporter in args.exporter and args.form in (None, task.form)
    ]
    return sorted(asked, key=place)


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
    parser.add_argument(
        "--limit", type=float, default=300, help="seconds to export, then to build (default 300)"
    )
    parser.add_argument(
        "--keep", type=Path, help="a file of results: what is equal in it is not run again"
    )
    parser.add_argument("--write", type=Path, help="a page with these results and all kept ones")
    parser.add_argument("--save", help="write the ONNX model of the first, check it in-process")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
