"""Ours and every rival on the example models, in one run on the CPU.

``python -m benchmarks.cpu --batch 1 --threads 2`` measures all models with all engines that are
installed (the extra ``benchmarks`` has OpenVINO). Each engine works in a process of its own, and
blocks of runs alternate. The table is printed; JSON and a plot go to ``out/``. With ``--keep FILE``
the ratios to onnxruntime are written to a file, with ``--check FILE`` compared with one.
"""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import torch
from rich.table import Table

from examples import EXAMPLES, SIZES
from examples.export import to_onnx
from tvm_ext import convert_and_build, targets
from tvm_ext.compare.client import Worker
from tvm_ext.compare.engines import ENGINES, OURS, Engine
from tvm_ext.compare.measure import alternate
from tvm_ext.compare.result import this_machine
from tvm_ext.compare.statistics import accuracy, latency
from tvm_ext.compare.worker import Job
from tvm_ext.errors import ComparisonError
from tvm_ext.executors.threads import threads as usable_threads

from .display import console
from .float16 import halved
from .quantize import NotQuantizedError, quantized
from .rivals import RIVALS, file_of, of_precision

__all__ = ["Measurement", "main", "measure"]

BASE = "onnxruntime"  # whose time is 1.0
FP16, INT8 = MODELS = "fp16", "int8"  # precisions of models: no options of ours
# A block of one run of a slow engine may take this long; longer ones are measured once.
PATIENT = 5.0
TOLERANCE = {"fp32": 1e-3, "bf16": 0.5, "fp16": 0.05, "int8": 0.5}


@dataclass(frozen=True)
class Measurement:
    """One engine on one model: seconds, bytes, and the tolerance at which it agrees with ours."""

    model: str
    engine: str
    version: str
    median: float
    minimum: float
    resident_bytes: int
    load_seconds: float
    build_seconds: float
    tolerance: float
    quiet: bool


def measure(
    name: str, engines: Sequence[Engine], options: argparse.Namespace
) -> tuple[list[Measurement], dict[str, str]]:
    """Every engine on one example; and why those failed that did."""
    onnx_file = options.out / f"{name}_b{options.batch}.onnx"
    inputs = EXAMPLES[name].inputs(options.size, options.batch)
    build_seconds = _prepare(name, onnx_file, engines, inputs, options)
    feeds = {key: value.numpy() for key, value in inputs.items()}
    failures: dict[str, str] = {}
    workers = []
    with contextlib.ExitStack() as stack:
        for engine in engines:
            job = Job(engine, file_of(engine, onnx_file).absolute(), feeds, options.threads)
            try:
                workers.append(stack.enter_context(Worker(job)))
            except ComparisonError as error:
                failures[engine.name] = str(error)
        blocks = _blocks(workers, options.rounds)
        expected = workers[0].ask("outputs")
        found = []
        for worker, own in zip(workers, blocks, strict=True):
            version, load_seconds, resident, _ = worker.ask("facts")
            times, mine = latency(own), worker.engine.name == OURS
            found.append(
                Measurement(
                    name,
                    worker.engine.name,
                    version,
                    times.median,
                    times.minimum,
                    resident,
                    load_seconds,
                    build_seconds if mine else 0.0,
                    _tolerance(worker.ask("outputs"), expected),
                    times.quiet,
                )
            )
    return found, failures


def _prepare(
    name: str,
    onnx_file: Path,
    engines: Sequence[Engine],
    inputs: dict[str, torch.Tensor],
    options: argparse.Namespace,
) -> float:
    """Write the files that the engines open; the seconds that our build takes."""
    proto = to_onnx(name, size=options.size, batch=options.batch)
    if options.precision == INT8:
        proto = quantized(proto, {key: value.numpy() for key, value in inputs.items()})
    elif options.precision == FP16:
        proto = halved(proto)
    onnx_file.write_bytes(proto.SerializeToString())
    for path in {file_of(engine, onnx_file) for engine in engines if engine.package == "torch"}:
        module = EXAMPLES[name].build(options.size)
        torch.export.save(torch.export.export(module, tuple(inputs.values())), path)
    start = time.perf_counter()
    target = targets.resolve("llvm", options.threads)
    precision = "fp32" if options.precision in MODELS else options.precision
    compiled = convert_and_build(
        onnx_file, target, opt_level=options.opt_level, precision=precision
    )
    seconds = time.perf_counter() - start
    compiled.save(file_of(ENGINES[OURS], onnx_file))
    return seconds


def _blocks(workers: Sequence[Worker], rounds: int) -> list[list]:
    """Alternating blocks of the fast engines; one block of each that is slow."""
    first = {worker: worker.ask("block", 0.0) for worker in workers}
    fast = [worker for worker in workers if min(first[worker].seconds) < PATIENT]
    blocks = dict(zip(fast, alternate(fast, rounds, 0.3), strict=True))
    return [blocks.get(worker, [first[worker]]) for worker in workers]


def _tolerance(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    pairs = zip(outputs, expected, strict=True)
    return max(accuracy(str(k), *pair).tolerance for k, pair in enumerate(pairs))


def table(rows: Sequence[Measurement], threads: int) -> Table:
    """One row per model and engine, with its speed against onnxruntime."""
    versions = dict.fromkeys(f"{row.engine} {row.version}" for row in rows)
    heading = f"{this_machine().cpu}, {threads} threads, {date.today()}: {', '.join(versions)}"
    columns = "model", "engine", "median ms", "minimum ms", "speed", "MB", "load s", "build s"
    result = Table(title=heading)
    for column in (*columns, "tolerance"):
        result.add_column(column, no_wrap=True)
    speeds = _speeds(rows)
    for row in rows:
        speed = speeds.get((row.model, row.engine))
        result.add_row(
            row.model if row.engine == OURS else "",
            row.engine,
            f"{row.median * 1e3:.2f}{'' if row.quiet else ' *'}",
            f"{row.minimum * 1e3:.2f}",
            "-" if speed is None else f"{speed:.2f}x",
            f"{row.resident_bytes / 1e6:.0f}",
            f"{row.load_seconds:.2f}",
            f"{row.build_seconds:.1f}" if row.build_seconds else "-",
            f"{row.tolerance:.0e}",
        )
    result.caption = f"{_means(speeds)}; *: other processes ran meanwhile"
    return result


def _means(speeds: Mapping[tuple[str, str], float]) -> str:
    """The geometric mean speed of each engine over the models that it ran."""
    by_engine: dict[str, list[float]] = {}
    for (_, engine), speed in speeds.items():
        by_engine.setdefault(engine, []).append(speed)
    means = (f"{engine} {geometric_mean(own):.2f}x" for engine, own in by_engine.items())
    return f"geometric mean speed: {', '.join(means)}"


def _speeds(rows: Sequence[Measurement]) -> dict[tuple[str, str], float]:
    base = {row.model: row.median for row in rows if row.engine == BASE}
    return {
        (row.model, row.engine): base[row.model] / row.median for row in rows if row.model in base
    }


def _record(rows: Sequence[Measurement], options: argparse.Namespace) -> dict[str, object]:
    return {
        "machine": this_machine().cpu,
        "date": date.today().isoformat(),
        "batch": options.batch,
        "threads": options.threads,
        "precision": options.precision,
        "rows": [asdict(row) for row in rows],
    }


def plot(rows: Sequence[Measurement], path: Path) -> None:
    """Speed against onnxruntime, grouped by model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    speeds = _speeds(rows)
    models, engines = (list(dict.fromkeys(column)) for column in zip(*speeds, strict=True))
    width = 0.8 / len(engines)
    figure, axes = pyplot.subplots(figsize=(2 + 1.6 * len(models), 4))
    for k, engine in enumerate(engines):
        places = np.arange(len(models)) + (k - (len(engines) - 1) / 2) * width
        axes.bar(places, [speeds.get((m, engine), 0) for m in models], width, label=engine)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(models)), models, rotation=20, ha="right")
    axes.set_ylabel(f"speed ({BASE} = 1)")
    axes.legend()
    figure.savefig(path, bbox_inches="tight", dpi=120)
    pyplot.close(figure)


def regressions(rows: Sequence[Measurement], kept: dict[str, float], slack: float) -> list[str]:
    """The models whose speed against onnxruntime fell by more than ``slack`` of what was kept."""
    now = {model: speed for (model, engine), speed in _speeds(rows).items() if engine == OURS}
    return [
        f"{model}: {now[model]:.2f}x, kept {before:.2f}x"
        for model, before in kept.items()
        if model in now and now[model] < before * (1 - slack)
    ]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"of {', '.join(EXAMPLES)}")
    parser.add_argument("--model", nargs="+", default=[], metavar="MODEL", help="the same")
    parser.add_argument("--engines", nargs="+", choices=RIVALS, help="rivals (default: installed)")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=usable_threads())
    parser.add_argument("--opt-level", type=int, choices=range(4), default=3)
    parser.add_argument(
        "--precision",
        choices=TOLERANCE,
        default="fp32",
        help="of ours; bf16 is measured beside OpenVINO's, and onnxruntime's fp32; "
        "fp16, int8: all engines run the model that onnxruntime's tools write",
    )
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--rounds", type=int, default=6, help="quiet blocks per engine")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--keep", type=Path, help="write the ratios to this file")
    parser.add_argument("--check", type=Path, help="fail where a ratio of this file is not reached")
    parser.add_argument("--slack", type=float, default=0.1, help="of --check (default: 0.1)")
    options = parser.parse_args(arguments)
    options.names += options.model
    unknown = sorted(set(options.names) - set(EXAMPLES))
    if unknown:
        parser.error(f"no models {unknown}; there are {sorted(EXAMPLES)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 where an engine differs, a kept ratio is missed, or nothing ran."""
    options = _options(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    fair = of_precision(options.precision)
    installed = [name for name in fair if find_spec(RIVALS[name].package)]
    rivals = dict.fromkeys([BASE, *(options.engines or installed)])
    engines = [ENGINES[OURS], *(RIVALS[name] for name in rivals)]
    out = console()
    rows: list[Measurement] = []
    for name in options.names or EXAMPLES:
        try:
            found, failures = measure(name, engines, options)
        except NotQuantizedError as error:
            out.print(f"{name} is left out: {error}", markup=False)
            continue
        rows += found
        out.print(table(found, options.threads), "")
        for engine, reason in failures.items():
            out.print(f"{name}: {engine} failed: {reason}", markup=False)
    if not rows:
        return 1
    out.print(table(rows, options.threads))
    (options.out / "cpu.json").write_text(json.dumps(_record(rows, options), indent=2))
    plot(rows, options.out / "cpu.png")
    if options.keep:
        ratios = {model: s for (model, engine), s in _speeds(rows).items() if engine == OURS}
        options.keep.write_text(json.dumps(ratios, indent=2) + "\n")
    kept = json.loads(options.check.read_text()) if options.check else {}
    bound = TOLERANCE[options.precision]
    wrong = [f"{r.model}: {r.engine} differs" for r in rows if not r.tolerance <= bound]
    wrong += regressions(rows, kept, options.slack)
    for line in wrong:
        out.print(line, style="red", markup=False)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
