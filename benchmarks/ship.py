"""What a model costs where it is shipped: bytes of code, time to load, memory, time of a call.

``python -m benchmarks.ship`` exports the examples as C packages, links and runs them, loads them
in Python beside onnxruntime, each in fresh processes, and prints a table. ``build``, ``measure``
and ``table`` do it in steps, with names of examples where not all are wanted; what is measured is
kept under ``out/ship`` as JSON.
"""

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median

import numpy as np
import onnx
from onnx import parser
from rich.table import Table

from examples import EXAMPLES, SIZES
from examples.export import to_onnx
from tvm_ext import convert_and_build, export
from tvm_ext.compare.client import Worker
from tvm_ext.compare.engines import ENGINES, OURS
from tvm_ext.compare.result import this_machine
from tvm_ext.compare.worker import Job
from tvm_ext.executors.toolchain import compiler

from .display import console

__all__ = ["Cost", "main"]

MODELS = ("resnet50", "se_resnet101_ibn_a", "mobilenetv2", "bert_base", "unet")
# The time of a call without kernels.
EMPTY = "empty"
EMPTY_TEXT = (
    '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) {y = Identity(x)}'
)
RIVAL = "onnxruntime"
STATIC = {"glibc": None, "musl": "musl-gcc"}
LOADS = 5  # fresh processes of each engine


@dataclass
class Cost:
    """One model: bytes and seconds; of processes the median.

    Attributes:
        library: of the stripped shared library, without weights.
        static: of the stripped program without weights, by C library.
        planned: of weights, arena, and scratch memory of all threads.
        live: the lower bound of the arena.
        load, resident: by engine, in Python; what loading and two runs add to a process.
        create, c_resident: the same of a C program with a file of weights.
        call, region: of a run on one thread, and of an empty parallel loop on all.
    """

    model: str
    library: int
    static: dict[str, int]
    planned: int
    arena: int
    live: int
    load: dict[str, float]
    resident: dict[str, int]
    create: float
    c_resident: int
    call: float | None = None
    region: float | None = None


def build(name: str, folder: Path, size: str) -> None:
    """Write model, saved model and package of ``name`` into ``folder``."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    proto = parser.parse_model(EMPTY_TEXT) if name == EMPTY else to_onnx(name, size=size)
    onnx.save(proto, folder / "model.onnx")
    model = convert_and_build(proto, "llvm")
    model.save(folder / "model.so")
    export(model, folder / "package", name=name, weights="file")
    assert model.memory is not None  # shapes are static
    (folder / "memory.json").write_text(json.dumps(asdict(model.memory)))


def _program(name: str, folder: Path, command: list[str], *flags: str) -> Path:
    program = folder / f"program{len(list(folder.glob('program*')))}"
    package = folder / "package"
    source = Path(__file__).with_suffix(".c")
    names = [f'-DHEADER="{name}.h"', f"-DMODEL(x)={name}_##x", f"-I{package}"]
    libraries = [package / f"lib{name}.a", "-lm", "-lpthread"]
    full = [*command, "-O2", "-s", *names, source, *flags, *libraries, "-o", program]
    subprocess.run(list(map(str, full)), check=True)
    return program


def measure(name: str, folder: Path, threads: int, size: str) -> Cost:
    """What ``build`` wrote for ``name``, measured."""
    memory = json.loads((folder / "memory.json").read_text())
    package = folder / "package"
    program = _program(name, folder, compiler())
    static = {
        libc: _program(name, folder, [by] if by else compiler(), "-static").stat().st_size
        for libc, by in STATIC.items()
        if by is None or shutil.which(by)
    }
    weights = package / f"{name}.bin"
    ran = [
        _ran([program, threads, weights if memory["weight_bytes"] else "", 0]) for _ in range(LOADS)
    ]
    cost = Cost(
        model=name,
        library=(package / f"lib{name}.so").stat().st_size,
        static=static,
        planned=memory["weight_bytes"] + memory["arena_bytes"] + threads * memory["scratch_bytes"],
        arena=memory["arena_bytes"],
        live=memory["live_bytes"],
        load={},
        resident={},
        create=median(row["create"] for row in ran),
        c_resident=int(median(row["resident"] for row in ran)),
    )
    if name == EMPTY:
        cost.call = _ran([program, 1, "", 1])["call"]
        cost.region = _ran([program, threads, "", 1])["region"]
    else:
        feeds = {k: v.numpy() for k, v in EXAMPLES[name].inputs(size, 1).items()}
        for engine, file in ((OURS, "model.so"), (RIVAL, "model.onnx")):
            rows = [_loaded(engine, folder / file, feeds, threads) for _ in range(LOADS)]
            cost.load[engine] = median(row[0] for row in rows)
            cost.resident[engine] = int(median(row[1] for row in rows))
    return cost


def _ran(command: list) -> dict[str, float]:
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def _loaded(
    engine: str, file: Path, feeds: dict[str, np.ndarray], threads: int
) -> tuple[float, int]:
    """Seconds to load, and bytes that loading and two runs added, in a fresh process."""
    with Worker(Job(ENGINES[engine], file.absolute(), feeds, threads)) as worker:
        _, seconds, resident, _ = worker.ask("facts")
    return seconds, resident


def table(costs: list[Cost], threads: int) -> Table:
    """One row per model; bytes as kB and MB of 1000."""
    shown = Table(
        *("model", "library kB", "static, glibc / musl MB", "load ms", f"{RIVAL} ms", "MB"),
        *("MB / planned", f"{RIVAL} MB", "C: create ms", "MB", "MB / planned", "arena / bound"),
        title=f"{this_machine().cpu}, {threads} threads, {date.today()}",
    )
    for cost in costs:
        if cost.model == EMPTY:
            continue
        shown.add_row(
            cost.model,
            f"{cost.library / 1e3:.0f}",
            " / ".join(f"{size / 1e6:.2f}" for size in cost.static.values()),
            *(f"{cost.load[engine] * 1e3:.1f}" for engine in (OURS, RIVAL)),
            f"{cost.resident[OURS] / 1e6:.0f}",
            f"{cost.resident[OURS] / cost.planned:.2f}",
            f"{cost.resident[RIVAL] / 1e6:.0f}",
            f"{cost.create * 1e3:.1f}",
            f"{cost.c_resident / 1e6:.1f}",
            f"{cost.c_resident / cost.planned:.2f}",
            f"{cost.arena / max(1, cost.live):.2f}",
        )
    return shown


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(arguments)
    unknown = sorted(set(options.names) - {EMPTY, *EXAMPLES})
    if unknown:
        print(f"no examples {unknown}; there are {sorted(EXAMPLES)}", file=sys.stderr)
        return 2
    names = options.names or (*MODELS, EMPTY)
    for name in names:
        folder = options.out / name
        if options.step in ("all", "build"):
            build(name, folder, options.size)
        if options.step in ("all", "measure"):
            cost = measure(name, folder, options.threads, options.size)
            (folder / "cost.json").write_text(json.dumps(asdict(cost)))
    if options.step in ("all", "table"):
        texts = [(options.out / name / "cost.json").read_text() for name in names]
        costs = [Cost(**json.loads(text)) for text in texts]
        out = console()
        out.print(table(costs, options.threads))
        for cost in costs:
            if cost.call is not None and cost.region is not None:
                out.print(
                    f"a call without kernels {cost.call * 1e9:.0f} ns on one thread; an empty "
                    f"parallel loop {cost.region * 1e6:.2f} us on {options.threads}"
                )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser_ = argparse.ArgumentParser(prog="python -m benchmarks.ship", description=__doc__)
    parser_.add_argument(
        "step", nargs="?", default="all", choices=("all", "build", "measure", "table")
    )
    parser_.add_argument("names", nargs="*", metavar="NAME", help=f"default: {', '.join(MODELS)}")
    parser_.add_argument("--threads", type=int, default=2)
    parser_.add_argument("--size", choices=SIZES, default="full")
    parser_.add_argument("--out", type=Path, default=Path("out") / "ship")
    return parser_


if __name__ == "__main__":
    sys.exit(main())
