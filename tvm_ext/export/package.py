"""Writes a model as a package: header, libraries, weights, build files, examples."""

from __future__ import annotations

import os
import secrets
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..build import convert_and_build
from ..errors import OptionError, OutputPathError
from ..executors.parts import Parts
from ..executors.plan import ALIGNMENT
from ..executors.static import StaticExecutor
from ..executors.toolchain import RUNTIME, archive, compile_c, join_objects, link_shared
from ..model import CompiledModel
from . import c_texts, cpp_texts, files
from .example import example_input, expected
from .interface import Interface

__all__ = ["FORMATS", "WEIGHTS", "export"]

FORMATS = "c", "c++"
WEIGHTS = "embedded", "file"

_MODEL_RUNTIME = Path(__file__).parent / "runtime"
_MAGIC = b"tvmx w1\0"


def export(
    model: object,
    folder: str | os.PathLike,
    format: str = "c",
    *,
    name: str | None = None,
    weights: str = "embedded",
    **options: Any,
) -> Path:
    """Write ``model`` as a package that needs neither Python nor TVM; the folder.

    It holds a static and a shared library, headers, ``CMakeLists.txt``, a file for pkg-config,
    and an example that runs the model and checks its answer.

    Args:
        model: what :func:`tvm_ext.convert_and_build` takes, or what it or :func:`tvm_ext.load`
            returned; its shapes are static, and it was built for CPUs of this kind.
        folder: it must not exist, or be empty; it appears when all is written.
        format: "c", or "c++", which adds a header with a class ``Session``.
        name: what the model is called in C; by default as its file, else ``model``.
        weights: "embedded" in the libraries, or a "file" beside them.
        options: for ``convert_and_build``; the target is "llvm" by default.

    Raises:
        OptionError: an option has no such value, or the model cannot be exported; with the reason.
        OutputPathError: the folder cannot be written, or has something in it.
        BuildError: the C compiler or its tools fail.
        TvmExtError: whatever ``convert_and_build`` raises.
    """
    if format not in FORMATS:
        raise OptionError(f"format is one of {list(FORMATS)}, not {format!r}")
    if weights not in WEIGHTS:
        raise OptionError(f"weights are one of {list(WEIGHTS)}, not {weights!r}")
    place = _free(folder)
    if name is None:
        name = Path(model).stem if isinstance(model, str | os.PathLike) else "model"
    if not isinstance(model, CompiledModel):
        model = convert_and_build(model, options.pop("target", "llvm"), **options)
    elif options:
        raise OptionError(f"the model is built already: no {sorted(options)} to choose")
    executor = _exportable(model)
    parts = executor.parts()
    embedded = weights == "embedded"
    interface = Interface.of(name, model, parts, executor.weights, embedded)
    with _appearing(place) as made:
        _write_libraries(made, interface, parts, executor.weights)
        _write_texts(made, interface, executor, format)
    return place


def _exportable(model: CompiledModel) -> StaticExecutor:
    executor = model.executor
    symbolic = [str(info) for info in model.inputs if info.static_shape is None]
    if symbolic:
        raise OptionError(
            f"only static shapes can be exported: give sizes by shapes= or --shape for {symbolic}"
        )
    if not isinstance(executor, StaticExecutor):
        raise OptionError("this model needs TVM at run time (cuda, control flow or sorting)")
    executor.needs.check()
    return executor


def _free(folder: str | os.PathLike) -> Path:
    place = Path(os.path.abspath(folder))
    if place.is_dir() and not any(place.iterdir()):
        return place
    if place.exists() or place.is_symlink():
        raise OutputPathError(f"{folder} is there already: give the name of a new folder")
    if not place.parent.is_dir():
        raise OutputPathError(f"cannot write {folder}: {place.parent} is not a folder")
    return place


@contextmanager
def _appearing(place: Path) -> Iterator[Path]:
    """A folder that is renamed to ``place`` when everything is written."""
    made = place.with_name(f".tvmx-{secrets.token_hex(8)}")
    try:
        made.mkdir()
        yield made
        made.replace(place)
    except OSError as error:
        raise OutputPathError(f"cannot write {place}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write_libraries(folder: Path, model: Interface, parts: Parts, weights: np.ndarray) -> None:
    """The static and the shared library, and the file of weights where they are in one."""
    with tempfile.TemporaryDirectory(prefix="tvm_ext_") as temporary:
        work = Path(temporary)
        for header in _headers():
            shutil.copy(header, work)
        (work / f"{model.id}.h").write_text(c_texts.header(model))
        objects, sources = parts.write(work)
        sources.append(work / "interface.c")
        sources[-1].write_text(c_texts.source(model))
        if model.embedded:
            blob = work / "weights.bin"
            weights.tofile(blob)
            sources.append(work / "weights.s")
            sources[-1].write_text(c_texts.weights_assembly(str(blob)))
        else:
            _write_weights(folder / f"{model.id}.bin", model, weights)
        compiled = [*objects, *(compile_c(source) for source in sources)]
        runtime = [
            compile_c(Path(shutil.copy(source, work)))
            for source in (RUNTIME / "tvmx.c", _MODEL_RUNTIME / "tvmx_model.c")
        ]
        whole = work / "whole" / f"{model.id}.o"
        whole.parent.mkdir()
        join_objects(whole, compiled, [f"{model.id}_*", "__TVMBackend*"])
        archive(folder / f"lib{model.id}.a", [whole, *runtime])
        # One pool for all models of a process: the first library's runtime serves them all.
        exports = [f"{model.id}_*", "tvmx_*", "__TVMBackend*"]
        link_shared(folder / f"lib{model.id}.so", [whole, runtime[1]], [], exports=exports)


def _headers() -> list[Path]:
    return [RUNTIME / "tvmx.h", _MODEL_RUNTIME / "tvmx_model.h"]


def _write_weights(path: Path, model: Interface, weights: np.ndarray) -> None:
    header = _MAGIC + struct.pack("<3Q", *model.checksum)
    with path.open("wb") as file:
        file.write(header.ljust(ALIGNMENT, b"\0"))
        file.flush()
        weights.tofile(file)


def _write_texts(folder: Path, model: Interface, executor: StaticExecutor, format: str) -> None:
    for header in _headers():
        shutil.copy(header, folder)
    inputs = [example_input(tensor, k) for k, tensor in enumerate(model.inputs)]
    results = expected(executor(inputs))
    texts = {f"{model.id}.h": c_texts.header(model), "main.c": c_texts.example(model, results)}
    examples = {"main.c": "C"}
    if format == "c++":
        texts |= {
            f"{model.id}.hxx": cpp_texts.header(model),
            "session.cpp": cpp_texts.example(model),
        }
        examples["session.cpp"] = "CXX"
    texts |= {
        "CMakeLists.txt": files.cmake_lists(model, examples),
        f"{model.id}.pc": files.pkg_config(model),
    }
    for file, text in texts.items():
        (folder / file).write_text(text)
