"""Memory-bound kernels against onnxruntime and against a plain copy, one small model per row.

    python -m benchmarks.kernels build softmax pool       # families; all by default
    python -m benchmarks.kernels time softmax pool

Each engine works in a process of its own, rounds alternate. Ours is the time of the kernels,
theirs that of a run with bound inputs and outputs: neither copies arrays in or out. "of copy" is
the time in which the same cores copy as many bytes as the operator must read and write, over ours.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from math import prod
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np
import onnx
from rich.table import Table

from .display import console
from .kernel_cases import CASES, Case

__all__ = ["main"]

# Seconds of runs per model and round; and in which the threads of the other engine fall asleep.
BLOCK, PAUSE = 0.03, 0.4

# Seconds per run, from so many runs.
Timer = Callable[[int], float]


def _tensors(infos: Sequence[onnx.ValueInfoProto]) -> list[tuple[str, tuple[int, ...], np.dtype]]:
    """Name, shape and dtype of each."""
    return [
        (
            info.name,
            tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim),
            onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type),
        )
        for info in infos
    ]


def _feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Random inputs: floats around 0, integers below 100."""
    rng = np.random.default_rng(0)
    return {
        name: (
            rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 100, shape)
        ).astype(dtype)
        for name, shape, dtype in _tensors(model.graph.input)
    }


def _bytes(model: onnx.ModelProto) -> int:
    """What inputs and outputs hold; rows that a Gather leaves alone are not read."""
    gathers = any(node.op_type == "Gather" for node in model.graph.node)
    read = _tensors(model.graph.input[1:] if gathers else model.graph.input)
    written = _tensors(model.graph.output)
    sizes = [prod(shape) * dtype.itemsize for _, shape, dtype in [*read, *written]]
    return sum(sizes) + (sizes[-1] if gathers else 0)


def _open_ours(stem: Path, _threads: int) -> Timer:
    import tvm_ext

    model, feeds = tvm_ext.load(stem.with_suffix(".tvmx")), _feeds(onnx.load(f"{stem}.onnx"))
    return lambda repeat: model.profile(feeds, repeat).seconds


def _open_onnxruntime(stem: Path, threads: int) -> Timer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(f"{stem}.onnx", options)
    binding = session.io_binding()
    for name, array in _feeds(onnx.load(f"{stem}.onnx")).items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    names = [output.name for output in session.get_outputs()]
    for name in names:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    for name, value in zip(names, binding.get_outputs(), strict=True):
        binding.bind_ortvalue_output(name, value)
    return lambda repeat: _median_seconds(lambda: session.run_with_iobinding(binding), repeat)


def _open_copy(nbytes: Path, _threads: int) -> Timer:
    """``y[i] = x[i]`` that reads and writes so many bytes in all."""
    import tvm
    from tvm import s_tir, te

    from tvm_ext.executors.threads import threads
    from tvm_ext.targets import host_target

    x = te.placeholder((int(nbytes.name) // 8,), name="x")
    sch = s_tir.Schedule(te.create_prim_func([x, te.compute(x.shape, lambda i: x[i], "y")]))
    chunk, _, lane = sch.split(sch.get_loops(sch.get_sblock("y"))[0], [threads(), None, 16])
    sch.parallel(chunk)
    sch.vectorize(lane)
    function = tvm.compile(sch.mod, target=host_target(threads()))["main"]
    arrays = [tvm.runtime.tensor(np.ones(x.shape[0].value, "float32")) for _ in range(2)]
    return lambda repeat: _median_seconds(lambda: function(*arrays), repeat)


_ENGINES = {"ours": _open_ours, "onnxruntime": _open_onnxruntime, "copy": _open_copy}


def _median_seconds(run: Callable[[], object], repeat: int) -> float:
    clock, seconds = time.perf_counter, []
    for _ in range(repeat):
        start = clock()
        run()
        seconds.append(clock() - start)
    return median(seconds)


def _serve(requests: Connection, engine: str, stems: list[Path], threads: int) -> None:
    """Answer each request by the seconds of every model."""
    os.environ["TVM_NUM_THREADS"] = str(threads)
    timers = [_ENGINES[engine](stem, threads) for stem in stems]
    repeats = [max(5, int(BLOCK / max(timer(3), timer(3)))) for timer in timers]
    requests.send(None)
    while requests.recv():
        requests.send([timer(n) for timer, n in zip(timers, repeats, strict=True)])


def _measure(jobs: dict[str, list[Path]], threads: int, rounds: int) -> dict[str, np.ndarray]:
    """Median seconds of every model of every engine."""
    context = get_context("spawn")
    ends, processes = {}, []
    for engine, stems in jobs.items():
        ends[engine], other = context.Pipe()
        process = context.Process(target=_serve, args=(other, engine, stems, threads), daemon=True)
        process.start()
        processes.append(process)
        other.close()
        ends[engine].recv()
    seconds: dict[str, list[list[float]]] = {engine: [] for engine in jobs}
    for _ in range(rounds):
        for engine, end in ends.items():
            time.sleep(PAUSE)
            end.send(True)
            seconds[engine].append(end.recv())
    for process in processes:
        process.kill()
    return {engine: np.median(times, axis=0) for engine, times in seconds.items()}


def _build(cases: list[tuple[Path, Case]], threads: int) -> None:
    """Write each case as an ONNX file and compiled."""
    import tvm_ext
    from tvm_ext.targets import host_target

    for stem, case in cases:
        model = case.model()
        onnx.save(model, f"{stem}.onnx")
        start = time.perf_counter()
        tvm_ext.convert_and_build(model, host_target(threads)).save(f"{stem}.tvmx")
        print(f"{time.perf_counter() - start:5.2f} s  {case}", file=sys.stderr)


def _time(cases: list[tuple[Path, Case]], threads: int, rounds: int) -> list[dict]:
    """A row per case: seconds of both engines and of the copy, and the bytes."""
    stems = [stem for stem, _ in cases]
    sizes = [_bytes(case.model()) for _, case in cases]
    powers = sorted({1 << max(14, round(np.log2(size))) for size in sizes})
    copies = [Path(str(power)) for power in powers]
    seconds = _measure({"ours": stems, "onnxruntime": stems, "copy": copies}, threads, rounds)
    pace = dict(zip(powers, seconds["copy"] / powers, strict=True))
    return [
        {
            "family": case.family,
            "case": str(case),
            "bytes": size,
            "ours": ours,
            "onnxruntime": theirs,
            "copy": size * pace[min(powers, key=lambda power: abs(np.log2(power / size)))],
        }
        for (_, case), size, ours, theirs in zip(
            cases, sizes, seconds["ours"], seconds["onnxruntime"], strict=True
        )
    ]


def _table(rows: list[dict], threads: int) -> Table:
    import onnxruntime

    title = f"{platform.processor() or platform.machine()}, {threads} threads, "
    table = Table("case", title=title + f"onnxruntime {onnxruntime.__version__}, {time.ctime()}")
    for column in "ours us", "theirs us", "speed", "GB/s", "of copy":
        table.add_column(column, justify="right")
    for family in dict.fromkeys(row["family"] for row in rows):
        members = [row for row in rows if row["family"] == family]
        for row in members:
            table.add_row(
                row["case"],
                f"{row['ours'] * 1e6:.1f}",
                f"{row['onnxruntime'] * 1e6:.1f}",
                f"{row['onnxruntime'] / row['ours']:.2f}",
                f"{row['bytes'] / row['ours'] / 1e9:.0f}",
                f"{row['copy'] / row['ours']:.2f}",
            )
        ratios = [row["onnxruntime"] / row["ours"] for row in members]
        mean = f"[bold]{geometric_mean(ratios):.2f}"
        table.add_row(f"[bold]{family}", "", "", mean, "", "", end_section=True)
    return table


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    families = list(dict.fromkeys(case.family for case in CASES))
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("step", choices=("build", "time"))
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(families))
    parser.add_argument("--only", default="", help="a part of the name of the cases wanted")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out", "kernels"))
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.families) - set(families))
    if unknown:
        parser.error(f"no families {unknown}; there are {families}")
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = options.families or families
    cases = [
        (options.out / f"{k:03}", case)
        for k, case in enumerate(CASES)
        if case.family in wanted and options.only in str(case)
    ]
    if options.step == "build":
        _build(cases, options.threads)
        return 0
    rows = _time(cases, options.threads, options.rounds)
    console().print(_table(rows, options.threads))
    (options.out / "kernels.json").write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
