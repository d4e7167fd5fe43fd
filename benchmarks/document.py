"""Several runs of ``benchmarks.cpu`` and a profile of each model, as one page of Markdown.

    for k in 1 2 3; do python -m benchmarks.cpu --out out/$k; done
    python -m benchmarks.document out/[123]/cpu.json --output docs/speed.md

Of each ratio the page gives the least and the greatest of the runs. The profiles say, by kinds of
kernels, where the time goes beside the least that the measured peak of the machine allows.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median

from examples import SIZES
from examples.export import to_onnx
from tvm_ext import convert_and_build, targets
from tvm_ext.compare.engines import OURS
from tvm_ext.compare.result import this_machine
from tvm_ext.profile import KernelTime, Profile

from .cpu import MODELS

__all__ = ["main"]

# Kinds with a smaller share of a model's time are one row, "others".
SMALL = 0.02

Row = Mapping[str, object]


def speeds(runs: Sequence[Mapping]) -> list[str]:
    """A table with one row per model: our time and memory, and the speed against each rival."""
    rows = {(k, r["model"], r["engine"]): r for k, run in enumerate(runs) for r in run["rows"]}
    models, rivals = (list(dict.fromkeys(key[column] for key in rows)) for column in (1, 2))
    rivals.remove(OURS)
    heads = [f"speed to {rival}" for rival in rivals]
    lines = _head(["model", "ours ms", *heads, "ours MB", *(f"{r} MB" for r in rivals), "build s"])
    ratios = defaultdict(list)
    for model in models:
        ours = [rows[k, model, OURS] for k in range(len(runs))]
        cells = [model, f"{1e3 * median(row['median'] for row in ours):.3g}"]
        for rival in rivals:
            theirs = [rows.get((k, model, rival)) for k in range(len(runs))]
            found = [t["median"] / o["median"] for t, o in zip(theirs, ours, strict=True) if t]
            ratios[rival].append(found)
            cells.append(_range(found))
        cells += [
            _most(rows.get((k, model, engine)) for k in range(len(runs)))
            for engine in (OURS, *rivals)
        ]
        lines.append(_line([*cells, f"{max(row['build_seconds'] for row in ours):.1f}"]))
    means = [_range([geometric_mean(x) for x in zip(*ratios[r], strict=True)]) for r in rivals]
    lines.append(_line(["geometric mean", "", *means, *[""] * (len(rivals) + 2)]))
    return lines


def _range(values: Sequence[float]) -> str:
    low, high = (f"{value:.2f}" for value in (min(values), max(values))) if values else ("", "")
    return "failed" if not values else f"{low}x" if low == high else f"{low}-{high}x"


def _most(rows: Iterable[Row | None]) -> str:
    """The greatest resident memory of the runs, in MB."""
    return f"{max((row['resident_bytes'] for row in rows if row), default=0) / 1e6:.0f}"


def where_time_goes(profile: Profile) -> list[str]:
    """A table with one row per kind of kernel, the slowest first."""
    kinds = defaultdict(list)
    for kernel in profile.kernels:
        kinds[_kind(kernel)].append(kernel)
    for name in [n for n, own in kinds.items() if _seconds(own) < SMALL * profile.seconds]:
        kinds["others"] += kinds.pop(name)
    lines = _head(["kind of kernel", "kernels", "ms", "share", "least ms", "least / measured"])
    for name, own in sorted(kinds.items(), key=lambda kind: -_seconds(kind[1])):
        seconds, least = _seconds(own), sum(kernel.predicted or 0.0 for kernel in own)
        if seconds:
            lines.append(
                f"| {name} | {len(own)} | {1e3 * seconds:.3g} | {seconds / profile.seconds:.0%} "
                f"| {1e3 * least:.3g} | {least / seconds:.0%} |"
            )
    return lines


def _seconds(kernels: Iterable[KernelTime]) -> float:
    return sum(kernel.seconds for kernel in kernels)


def _kind(kernel: KernelTime) -> str:
    """The compound operators in a kernel, or else the ONNX operators that it computes."""
    if kernel.compounds:
        return " + ".join(name.removesuffix("()") for name in kernel.compounds)
    return ", ".join(sorted({node.split(" ")[0] for node in kernel.nodes})) or kernel.kernel


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), _line(["---"] * len(cells))]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _page(runs: Sequence[Mapping], size: str) -> str:
    first = runs[0]
    engines = dict.fromkeys(f"{r['engine']} {r['version']}" for r in first["rows"])
    lines = [
        "# Speed on a CPU",
        "",
        f"Written by `python -m benchmarks.document` from {len(runs)} runs of",
        f"`python -m benchmarks.cpu --batch {first['batch']} --threads {first['threads']} "
        f"--precision {first['precision']}`:",
        f"{', '.join(engines)}, on {first['machine']}, {first['date']}.",
        "Times are medians over alternating blocks; a speed is the rival's time by ours, least and",
        "greatest of the runs.",
        "",
        *speeds(runs),
        "",
        "## Where the time goes",
        "",
        "Kernels timed one by one inside whole runs (`tvm-ext profile`), beside the least that",
        "their arithmetic and bytes take at the measured peak of the machine; of a convolution by",
        "Winograd's method that is its own arithmetic. Of recurrent layers only the bytes are",
        "counted, and of an embedding the whole table, though few of its rows are read.",
    ]
    for name in dict.fromkeys(row["model"] for row in first["rows"]):
        profile = _profile(name, size, first)
        of_least = profile.predicted / profile.seconds
        lines += [
            "",
            f"### {name}: {1e3 * profile.seconds:.3g} ms, {of_least:.0%} of the limit",
            "",
        ]
        lines += where_time_goes(profile)
    return "\n".join(lines) + "\n"


def _profile(name: str, size: str, run: Mapping) -> Profile:
    proto = to_onnx(name, size=size, batch=run["batch"])
    target = targets.resolve("llvm", run["threads"])
    return convert_and_build(proto, target, precision=run["precision"]).profile()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.document",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="FILE", help="cpu.json of a run")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--output", type=Path, default=Path("docs", "speed.md"))
    options = parser.parse_args(arguments)
    runs = [json.loads(path.read_text()) for path in options.runs]
    if len({tuple(run[key] for key in ("batch", "threads", "precision")) for run in runs}) > 1:
        parser.error("the runs differ in batch, threads or precision")
    if runs[0]["precision"] in MODELS:
        parser.error("fp16 and int8 are precisions of models, of which no profile is made")
    if runs[0]["machine"] != this_machine().cpu:
        parser.error(f"the runs are of {runs[0]['machine']}, profiles would be of this machine")
    page = _page(runs, options.size)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
