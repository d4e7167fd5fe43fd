"""Writes a model as a package: header, libraries, weights, build files, examples."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..build import convert_and_build
from ..errors import OptionError, OutputPathError
from ..executors.atomic import appearing
from ..executors.static import StaticExecutor
from ..executors.toolchain import is_wasm
from ..interface import numbers_only
from ..keep import check_folder, keep_all, named
from ..model import CompiledModel
from ..targets import levels, resolve
from . import c_example, c_texts, cpp_example, cpp_texts, files, wasm_texts
from .example import Expected, example_input, expected
from .identifiers import identifiers
from .interface import Built, Interface, Variant
from .libraries import HEADERS, write_libraries
from .sizes import SharedWeights, Sizes, choices
from .source import SourcePackage

__all__ = ["FORMATS", "WEIGHTS", "export"]

FORMATS = "c", "c++", "c-source"
WEIGHTS = "embedded", "file"


def export(
    model: object,
    folder: str | os.PathLike,
    format: str = "c",
    *,
    name: str | None = None,
    weights: str = "embedded",
    sizes: Sizes | None = None,
    single_thread: bool = False,
    keep: str | os.PathLike | None = None,
    openmp: bool = False,
    report: Callable[[str], object] | None = None,
    **options: Any,
) -> Path:
    """Write ``model`` as a package that needs neither Python nor TVM; the folder.

    It holds a static and a shared library, headers, ``CMakeLists.txt``, a file for pkg-config,
    and an example that runs the model and checks its answer. For other machines than this it is
    compiled by their gcc, or by the package ziglang; WebAssembly has no shared libraries.

    Args:
        model: what :func:`tvm_ext.convert_and_build` takes, or what it or :func:`tvm_ext.load`
            returned; its shapes are static but for the dims of ``sizes``. What is built already
            was built for CPUs of this kind.
        folder: it must not exist, or be empty; it appears when all is written.
        format: "c"; "c++", which adds a header with a class ``Session``; or "c-source", which
            holds no library but C11 that people read, for any compiler, on one thread.
        name: what the model is called in C; by default as its file, else ``model``.
        weights: "embedded" in the libraries, or a "file" beside them.
        sizes: of symbolic dims, of which callers choose at each run: lists of sizes by the names
            of the dims, such as ``{"batch": [1, 4, 8]}``, of which all combinations are built; or
            a list of choices, such as ``[{"batch": 1, "length": 512}, ...]``. Constants that are
            equal are there once.
        single_thread: do without pthreads; only one thread at a time may then call. WebAssembly
            always does.
        keep: a folder for everything that is made on the way (:func:`tvm_ext.keep.keep`); of
            several sizes, each in a folder of its own in it.
        openmp: with "c-source", mark the loops that OpenMP may share among threads.
        report: is told what memory runs need, a line for each level and choice of sizes.
        options: for ``convert_and_build``; the target is "llvm" by default, and may be another
            machine, or several levels of x86-64 ("x86-64-v2+v3+v4"), of which the CPU's best runs.

    Raises:
        OptionError: an option or a size has no such value, or the model cannot be exported; with
            the reason.
        OutputPathError: the folder cannot be written, or has something in it.
        BuildError: the C compiler or its tools fail.
        TvmExtError: whatever ``convert_and_build`` raises.
    """
    if format not in FORMATS:
        raise OptionError(f"format is one of {list(FORMATS)}, not {format!r}")
    if weights not in WEIGHTS:
        raise OptionError(f"weights are one of {list(WEIGHTS)}, not {weights!r}")
    if not isinstance(name, str | None):
        raise OptionError(f"name is what the model is called in C, not {name!r}")
    place = _free(folder)
    if name is None:
        name = Path(model).stem if isinstance(model, str | os.PathLike) else "model"
    if format == "c-source":
        if keep is not None:
            raise OptionError("C source is all that is made: there is nothing else to keep")
        source = _source(model, name, weights == "embedded", sizes, openmp, options)
        with _appearing(place) as made:
            source.write(made)
        if report is not None:
            report(str(source.program.memory))
        return place
    if openmp:
        raise OptionError(f"openmp is for format='c-source': {format!r} has threads of its own")
    wanted = choices(sizes)
    if keep is not None:
        check_folder(keep)
    built, block = _built(model, wanted, single_thread, options)
    if keep is not None:
        keep_all({label: one.model for label, one in _labelled(list(wanted[0]), built)}, keep)
    embedded = weights == "embedded"
    single_thread |= is_wasm(built[0].parts.needs.triple)
    interface = Interface.of(name, list(wanted[0]), built, block, embedded, single_thread)
    best = zip(interface.variants, built[: len(interface.variants)], strict=True)
    answers = [_answers(variant, one) for variant, one in best]
    with _appearing(place) as made:
        write_libraries(made, interface, built, block)
        _write_texts(made, interface, answers, format)
    if report is not None:
        for label, one in _labelled(list(wanted[0]), built):
            report(f"{label}: {one.parts.plan.memory}" if label else str(one.parts.plan.memory))
    return place


def _source(
    model: object,
    name: str,
    embedded: bool,
    sizes: Sizes | None,
    openmp: bool,
    options: dict[str, Any],
) -> SourcePackage:
    """``model`` as C source."""
    if isinstance(model, CompiledModel):
        raise OptionError("C source is printed from the ONNX model: give that, or its path")
    if sizes is not None:
        raise OptionError("C source is for one size of each symbolic dim: give it by shapes=")
    if options.pop("target", "llvm") not in ("auto", "llvm"):
        raise OptionError("C source is for every CPU: no target to choose")
    return SourcePackage.of(model, name, embedded, openmp, options)


def _built(
    model: object,
    wanted: Sequence[Mapping[str, int]],
    single_thread: bool,
    options: dict[str, Any],
) -> tuple[list[Built], np.ndarray]:
    """``model`` for each level of the target and each of the wanted sizes, and the constants of
    all."""
    if isinstance(model, CompiledModel):
        if options or wanted != [{}]:
            given = sorted([*options, *(["sizes"] if wanted != [{}] else [])])
            raise OptionError(
                f"the model is built already: no {given} to choose; give its ONNX file"
            )
        executor = _exportable(model)
        executor.needs.check()
        return [Built((), "", model, executor.parts(), model)], executor.weights
    machines = levels(options.pop("target", "llvm"))
    shapes = options.pop("shapes", None) or {}
    shared, built = SharedWeights(), []
    for machine, choice in product(machines, wanted):
        options["shapes"] = {**shapes, **choice}
        target = resolve(machine, cores=1 if single_thread else None)
        one = convert_and_build(model, target, **options)
        executor = _exportable(one)
        parts = executor.parts()
        witness = one if executor.needs.lacking() is None else _running_here(model, options)
        sizes, level = tuple(choice.values()), str(machine)
        if len(machines) == len(wanted) == 1:
            return [Built(sizes, level, one, parts, witness)], executor.weights
        plan = shared.add(parts.plan, executor.weights)
        built.append(Built(sizes, level, one, replace(parts, plan=plan), witness))
    return built, shared.block()


def _running_here(model: object, options: Mapping[str, Any]) -> CompiledModel:
    """The same model for this CPU; steps of the caller's bring their own target."""
    here = {name: value for name, value in options.items() if name != "steps"}
    return convert_and_build(model, "llvm", **here)


def _labelled(dims: Sequence[str], built: Sequence[Built]) -> Iterator[tuple[str, Built]]:
    """Each with its level and sizes, which is nothing where there is but one."""
    several = len({one.level for one in built}) > 1
    for one in built:
        sizes = [f"{dim}={size}" for dim, size in zip(identifiers(dims), one.sizes, strict=True)]
        label = ",".join([*([one.level] if several else []), *sizes])
        yield label if len(built) > 1 else "", one


def _exportable(model: CompiledModel) -> StaticExecutor:
    executor = model.executor
    numbers_only(model.outputs)
    symbolic = [str(info) for info in numbers_only(model.inputs) if info.static_shape is None]
    if symbolic:
        raise OptionError(
            "only static shapes can be exported: give one size of each symbolic dim by shapes= or "
            f"--shape, or several by sizes= or --sizes, for {symbolic}"
        )
    if not isinstance(executor, StaticExecutor):
        raise OptionError("this model needs TVM at run time (cuda, or computed shapes)")
    return executor


def _answers(variant: Variant, built: Built) -> list[Expected]:
    """What the example expects."""
    inputs = [example_input(tensor, k) for k, tensor in enumerate(variant.inputs)]
    return expected(built.witness.executor(inputs))


def _free(folder: str | os.PathLike) -> Path:
    place = Path(os.path.abspath(named(folder)))
    try:
        if place.is_dir() and not any(place.iterdir()):
            return place
        if place.exists() or place.is_symlink():
            raise OutputPathError(f"{folder} is there already: give the name of a new folder")
    except OSError as error:  # a name that is too long, a folder that lets nobody in
        if isinstance(error, OutputPathError):
            raise
        raise OutputPathError(f"cannot write {folder}: {error.strerror or error}") from error
    if not place.parent.is_dir():
        raise OutputPathError(f"cannot write {folder}: {place.parent} is not a folder")
    return place


@contextmanager
def _appearing(place: Path) -> Iterator[Path]:
    """A folder that is renamed to ``place`` when everything is written."""
    try:
        with appearing(place) as made:
            yield made
    except OSError as error:
        raise OutputPathError(f"cannot write {place}: {error.strerror or error}") from error


def _write_texts(
    folder: Path, model: Interface, answers: Sequence[Sequence[Expected]], format: str
) -> None:
    for header in HEADERS:
        shutil.copy(header, folder)
    texts = {f"{model.id}.h": c_texts.header(model), "main.c": c_example.example(model, answers)}
    examples = {"main.c": "C"}
    if format == "c++":
        texts |= {
            f"{model.id}.hxx": cpp_texts.header(model),
            "session.cpp": cpp_example.example(model),
        }
        examples["session.cpp"] = "CXX"
    texts |= {
        "CMakeLists.txt": files.cmake_lists(model, examples),
        f"{model.id}.pc": files.pkg_config(model),
    }
    if is_wasm(model.triple):
        texts["main.mjs"] = wasm_texts.runner()
    for file, text in texts.items():
        (folder / file).write_text(text)
