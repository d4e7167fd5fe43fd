"""What the commands of the command line do; each takes its parsed arguments."""

import itertools
import json
import os
import re
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tvm_ext

from . import extend, pipeline, targets, trace
from .build import leave_out
from .cache import Cache, default_folder
from .compare import compare as compare_engines
from .errors import InputError, OutputPathError
from .executors.artifact import is_artifact
from .executors.atomic import filling
from .export import export as write_package
from .inputs import dims_of, random_inputs, read_array
from .inspect import OperatorSupport, inspect_built, inspect_model, support_table
from .interface import Info, MapsInfo, TensorInfo, TensorType
from .model import CompiledModel
from .tuning import Tuning

__all__ = [
    "build",
    "cache",
    "check_op",
    "compare",
    "export",
    "inspect",
    "load_plugins",
    "new_op",
    "ops",
    "profile",
    "run",
]


def load_plugins(sources: Sequence[str]) -> None:
    """Load the plugins that a command is given."""
    for source in sources:
        extend.load(source)


def build(args: Namespace) -> None:
    """Compile MODEL and save it."""
    _check_output(args.output, args.model)
    tune = None if args.tune is None else _tuning(args)
    model = _compile(args, verify=args.verify, keep=args.keep, tune=tune)
    if model.tuning is not None:
        print(model.tuning)
    model.save(args.output)
    memory = f"; {model.memory}" if model.memory else ""
    print(f"wrote {args.output} ({args.output.stat().st_size / 1e6:.1f} MB){memory}")


def export(args: Namespace) -> None:
    """Write MODEL as a package."""
    built = is_artifact(args.model)
    if built:
        _refuse_choices(args)
    options = {
        "target": "llvm" if args.target == "auto" else args.target,
        "opt_level": args.opt_level,
        "precision": args.precision,
        "shapes": dict(args.shape),
        "without": args.without,
    }
    folder = write_package(
        tvm_ext.load(args.model) if built else args.model,
        args.output,
        args.format,
        name=args.name or args.model.stem,
        weights=args.weights,
        single_thread=args.single_thread,
        sizes=dict(args.sizes) or None,
        keep=args.keep,
        openmp=args.openmp,
        report=print,
        **({} if built and not args.shape else options),
    )
    print(f"wrote {folder}: " + ", ".join(sorted(path.name for path in folder.iterdir())))


def run(args: Namespace) -> None:
    """Run MODEL once; describe the outputs, and write them if asked to."""
    folder = args.output_dir
    if folder:
        _check_writable(folder if folder.exists() else folder.parent)
    model, feeds = _model_and_feeds(args)
    results = model.run(None, feeds)
    for info, value in zip(model.outputs, results, strict=True):
        print(f"{info.name}  {_described(info, value)}")
    if folder:
        files = _file_names(model.outputs)
        _write(folder, dict(zip(files, results, strict=True)))


def profile(args: Namespace) -> None:
    """Time every kernel of MODEL."""
    model, feeds = _model_and_feeds(args)
    report = model.profile(feeds)
    print(report.to_json() if args.format == "json" else report)


def compare(args: Namespace) -> None:
    """Compare MODEL with onnxruntime."""
    if args.plot:
        _check_writable(args.plot.parent)
    report = compare_engines(
        args.model,
        against=args.against,
        target=args.target,
        opt_level=args.opt_level,
        precision=args.precision,
        shapes=dict(args.shape),
        threads=args.threads,
        batch=args.batch,
    )
    print(report.to_json() if args.format == "json" else report)
    if args.plot:
        report.plot(args.plot)


def inspect(args: Namespace) -> None:
    """Describe MODEL and what of it is not supported; or the passes of a build, and their work."""
    if is_artifact(args.model):
        _refuse_choices(args)
        if args.passes or args.dump_after or args.time_passes or args.shape:
            raise InputError(f"{args.model} is built already: no passes to show, no shape to give")
        built = inspect_built(args.model)
        print(built.to_json() if args.format == "json" else built)
        return
    steps = pipeline.default(targets.resolve(args.target), args.opt_level, args.precision)
    steps = leave_out(steps, args.without)
    if args.passes:
        rows = [
            {"phase": step.phase, "name": step.name, "compound": step.compound}
            for step in steps.steps
        ]
        print(json.dumps(rows, indent=2) if args.format == "json" else steps)
    elif args.dump_after:
        print(trace.dump_after(args.model, steps, args.dump_after, dict(args.shape)))
    elif args.time_passes:
        times = trace.time_passes(args.model, steps, dict(args.shape))
        print(times.to_json() if args.format == "json" else times)
    else:
        report = inspect_model(args.model, opt_level=args.opt_level, shapes=dict(args.shape))
        print(report.to_json() if args.format == "json" else report)


def cache(args: Namespace) -> None:
    """Describe the cache, or clear it."""
    kept = Cache(default_folder())
    if args.clear:
        kept.clear()
    count = len(kept.entries())
    print(f"{kept.folder}: {count} model{'s' * (count != 1)}, {kept.bytes / 1e6:.1f} MB")


def ops(args: Namespace) -> None:
    """Print the support table."""
    table = support_table()
    print({"text": _text, "markdown": _markdown, "json": _json}[args.format](table))


def new_op(args: Namespace) -> None:
    """Write a plugin and its test."""
    if args.compound:
        plugin, test = extend.new_compound(args.name, args.output_dir)
    else:
        plugin, test = extend.new_operator(args.name, args.domain, args.output_dir)
    print(f"wrote {plugin} and {test}; now: tvm-ext check-op {plugin}")


def check_op(args: Namespace) -> int:
    """Check what a plugin declares; the exit code."""
    report = extend.check(extend.load(args.plugin_file))
    print(report.to_json() if args.format == "json" else report)
    return 0 if report.passed else 1


def _tuning(args: Namespace) -> Tuning:
    tracker, device = (None, None) if args.tune_on is None else args.tune_on
    return Tuning(
        args.tune,
        trials=args.tune_trials,
        seconds=args.tune_seconds,
        kernels=args.tune_kernels,
        tracker=tracker,
        device=device,
    )


def _compile(
    args: Namespace,
    verify: str | None = None,
    keep: Path | None = None,
    tune: Tuning | None = None,
) -> CompiledModel:
    return tvm_ext.convert_and_build(
        args.model,
        args.target,
        opt_level=args.opt_level,
        precision=args.precision,
        shapes=dict(args.shape),
        without=args.without,
        verify=verify,
        keep=keep,
        tune=tune,
        cache=None if args.no_cache or tune is not None else default_folder(),
    )


def _model_and_feeds(args: Namespace) -> tuple[CompiledModel, Mapping[str, np.ndarray]]:
    """MODEL compiled, or loaded where it is what ``build`` wrote; arrays for all its inputs."""
    given = {name: read_array(path, name) for name, path in args.input}
    dims: Mapping[str, int] = {}
    if is_artifact(args.model):
        _refuse_choices(args)
        model = tvm_ext.load(args.model)
        dims = dims_of(model.inputs, dict(args.shape))
    else:
        model = _compile(args)
    rest = [info for info in model.inputs if info.name not in given]
    return model, given | random_inputs(rest, dims, args.seed)


def _refuse_choices(args: Namespace) -> None:
    """A built model has no options of a build."""
    if (args.target, args.opt_level, args.precision, args.without) != ("auto", 3, None, []):
        raise InputError(
            f"{args.model} is built already: no target, level, precision or pass to choose"
        )


def _described(info: Info, value: Any) -> str:
    if isinstance(info, TensorInfo):
        return f"{TensorType.of(value)}  {_statistics(value)}".rstrip()
    if isinstance(value, np.ndarray):  # of an optional
        return f"{info.type}  {TensorType.of(value)}"
    return f"{info.type}  {'None' if value is None else f'{len(value)} elements'}"


def _statistics(array: np.ndarray) -> str:
    if not array.size or array.dtype.kind not in "biuf":
        return ""
    wide = array.astype("float64")
    return f"min {wide.min():.6g}  mean {wide.mean():.6g}  max {wide.max():.6g}"


def _file_names(infos: Sequence[Info]) -> list[str]:
    """A file for each output; no two are one, on file systems that ignore case too.

    Maps are JSON, other values that are no tensors, or may be none, archives of numpy.
    """
    files: dict[str, str] = {}
    for info in infos:
        stem = re.sub(r"[^\w.-]", "_", info.name)
        tries = itertools.chain([stem], (f"{stem}_{count}" for count in itertools.count(2)))
        free = next(each for each in tries if each.casefold() not in files)
        others = ".json" if isinstance(info, MapsInfo) else ".npz"
        form = ".npy" if isinstance(info, TensorInfo) else others
        files[free.casefold()] = f"{free}{form}"
    return list(files.values())


def _check_output(path: Path, model: Path) -> None:
    """Fail before the work, not after it."""
    _check_writable(path.parent)
    if path.is_dir():
        raise OutputPathError(f"{path} is a folder: give the name of a file in it")
    if path.exists() and model.exists() and path.samefile(model):
        raise OutputPathError(f"{path} is the model itself: give another name")


def _check_writable(folder: Path) -> None:
    """Fail before the work, not after it."""
    if not folder.is_dir():
        raise OutputPathError(f"{folder} is not a folder")
    if not os.access(folder, os.W_OK):
        raise OutputPathError(f"cannot write into {folder}")


def _write(folder: Path, values: Mapping[str, Any]) -> None:
    """``folder`` has all the values, by the names of their files, or is not touched."""
    try:
        with filling(folder) as made:
            for name, value in values.items():
                _WRITERS[Path(name).suffix](made / name, value)
    except OSError as error:
        raise OutputPathError(f"cannot write {folder}: {error.strerror or error}") from error


def _save_json(path: Path, maps: list[dict]) -> None:
    path.write_text(json.dumps(maps, ensure_ascii=False), "utf-8")


def _save_all(path: Path, value: list[np.ndarray] | np.ndarray | None) -> None:
    """An archive of a sequence's arrays, of the one of an optional, or of none."""
    arrays = value if isinstance(value, list) else [] if value is None else [value]
    np.savez(path, *map(_plain, arrays))


def _plain(array: np.ndarray) -> np.ndarray:
    """``array``, of a type that numpy reads without pickle."""
    return array.astype(str) if array.dtype == object else array


_WRITERS: Mapping[str, Callable[[Path, Any], None]] = {
    ".npy": lambda path, array: np.save(path, _plain(array)),
    ".npz": _save_all,
    ".json": _save_json,
}


def _text(table: list[OperatorSupport]) -> str:
    rows = [row for row in table if row.supported or row.by_function]
    width = max(len(row.name) for row in rows)
    lines = []
    for row in rows:
        by_function = [f"by function {_versions(row.by_function)}"] if row.by_function else []
        missing = [f"(not {_versions(row.missing)})"] if row.missing else []
        served = [_versions(row.supported)] if row.supported else []
        lines.append(f"{row.name:{width}}  " + "  ".join([*served, *by_function, *missing]))
    missing = [row.name for row in table if not (row.supported or row.by_function)]
    return "\n".join([*lines, f"{len(rows)} operators; not supported: {', '.join(missing)}"])


def _markdown(table: list[OperatorSupport]) -> str:
    lines = ["| operator | by a converter | by its function | not supported |", "|---|---|---|---|"]
    for row in table:
        cells = map(_versions, (row.supported, row.by_function, row.missing))
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _json(table: list[OperatorSupport]) -> str:
    return json.dumps([vars(row) for row in table], indent=2)


def _versions(versions: tuple[int, ...]) -> str:
    return ", ".join(map(str, versions))
