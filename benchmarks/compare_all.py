"""Compare the example models with onnxruntime, in one run.

``python -m benchmarks.compare_all --batch 1 --threads 2`` measures all of them; names choose some.
Every comparison goes to ``out/`` as JSON and PNG; the summary is printed last.
"""

import argparse
import json
import sys
from pathlib import Path

from rich.table import Table

from examples import EXAMPLES, SIZES
from examples.export import EXPORTERS, to_onnx
from tvm_ext.compare import Comparison, compare

from .display import console

__all__ = ["main", "measure", "summary"]


def measure(name: str, options: argparse.Namespace) -> Comparison:
    """Export one example, compare it on its own inputs, and write the result as JSON and PNG."""
    inputs = EXAMPLES[name].inputs(options.size, options.batch)
    path = options.out / f"{name}_b{options.batch}.onnx"
    to_file = to_onnx(name, exporter=options.exporter, size=options.size, batch=options.batch)
    path.write_bytes(to_file.SerializeToString())
    report = compare(
        path,
        {key: value.numpy() for key, value in inputs.items()},
        target=options.target,
        threads=options.threads,
        opt_level=options.opt_level,
        rounds=options.rounds,
    )
    path.with_suffix(".json").write_text(report.to_json())
    report.plot(path.with_suffix(".png"))
    return report


def summary(reports: list[Comparison]) -> Table:
    """One row per model."""
    first = reports[0]
    versions = (
        f"{first.ours.engine} {first.ours.version}, {first.theirs.engine} {first.theirs.version}"
    )
    table = Table(
        "model",
        *(f"{side} {what}" for what in ("ms", "MB") for side in ("ours", "theirs")),
        "speed",
        "tolerance",
        "build s",
        title=f"{first.machine.cpu}, {first.threads} threads, {versions}, {first.date}",
    )
    for report in reports:
        sides = report.ours, report.theirs
        table.add_row(
            report.model,
            *(f"{side.latency.median * 1e3:.2f}" for side in sides),
            *(f"{side.resident_bytes / 1e6:.0f}" for side in sides),
            f"{report.speedup:.2f}x",
            f"{report.tolerance:.1e}",
            f"{report.ours.build_seconds:.1f}",
        )
    return table


def main(arguments: list[str] | None = None) -> int:
    """The command line; 1 if a model does not agree within ``--tolerance``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare_all", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXAMPLES)}")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, help="of both engines (default: all CPUs)")
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--opt-level", type=int, choices=range(4), default=3)
    parser.add_argument("--exporter", choices=EXPORTERS, default="torchscript")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--rounds", type=int, default=6, help="quiet blocks per engine")
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(EXAMPLES))
    if unknown:
        parser.error(f"no examples {unknown}; there are {sorted(EXAMPLES)}")
    options.out.mkdir(parents=True, exist_ok=True)

    out = console()
    reports = []
    for name in options.names or EXAMPLES:
        reports.append(measure(name, options))
        out.print(reports[-1], "")
    if len(reports) > 1:
        out.print(summary(reports))
        everything = [json.loads(report.to_json()) for report in reports]
        (options.out / "compare_all.json").write_text(json.dumps(everything, indent=2))
    out.print(f"JSON and plots: {options.out}/", highlight=False)
    wrong = [r.model for r in reports if not r.agrees(options.tolerance)]
    if wrong:
        out.print(f"[red]not within {options.tolerance}: {', '.join(wrong)}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
