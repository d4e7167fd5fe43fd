"""Compiles and links the libraries of a package, for this machine or another."""

from __future__ import annotations

import hashlib
import shutil
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..executors.parts import Parts
from ..executors.plan import ALIGNMENT
from ..executors.toolchain import (
    RUNTIME,
    archive,
    compile_c,
    compile_runtime,
    is_wasm,
    join_objects,
    link_shared,
)
from . import c_texts
from .interface import Built, Interface

__all__ = ["HEADERS", "RUNTIME_SOURCES", "runtime_version", "write_libraries"]

_MODEL_RUNTIME = Path(__file__).parent / "runtime"
_MAGIC = b"tvmx w1\0"

HEADERS = RUNTIME / "tvmx.h", _MODEL_RUNTIME / "tvmx_model.h"
_THREADS = RUNTIME / "tvmx.c"

RUNTIME_SOURCES = _THREADS, _MODEL_RUNTIME / "tvmx_model.c", _MODEL_RUNTIME / "tvmx_cpu.c"


def write_libraries(
    folder: Path, model: Interface, built: Sequence[Built], weights: np.ndarray
) -> None:
    """The static and the shared library, and the file of weights where they are in one.

    Raises:
        BuildError: there is no C compiler for that machine, or it fails.
    """
    needs = built[0].parts.needs
    triple = needs.triple if needs.foreign else None
    flags = ["-DTVMX_SINGLE_THREAD"] if model.single_thread else []
    version = runtime_version(flags)
    flags.append(f"-DTVMX_VERSION=UINT64_C(0x{version})")
    with tempfile.TemporaryDirectory(prefix="tvm_ext_") as temporary:
        work = Path(temporary)
        for file in HEADERS:
            shutil.copy(file, work)
        (work / f"{model.id}.h").write_text(c_texts.header(model))
        sources = [work / "interface.c"]
        sources[-1].write_text(c_texts.source(model))
        if model.embedded:
            blob = work / "weights.bin"
            blob.write_bytes(weights.data)
            sources.append(work / "weights.s")
            sources[-1].write_text(c_texts.weights_assembly(model, str(blob)))
        else:
            _write_weights(folder / f"{model.id}.bin", model, weights)
        objects = [compile_c(source, triple, flags) for source in sources]
        for variant, one in zip(model.programs, built, strict=True):
            objects += _program(work / variant.entry, one.parts, variant.entry, triple)
        threads, *runtime = (
            compile_runtime(source, work, triple, flags) for source in RUNTIME_SOURCES
        )
        whole = work / "whole" / f"{model.id}.o"
        whole.parent.mkdir()
        objects = join_objects(whole, objects, [f"{model.id}_*", "__TVMBackend*"], triple)
        archive(folder / f"lib{model.id}.a", [*objects, threads, *runtime], triple)
        if not is_wasm(triple):
            # One pool for all models of a process: the first library's runtime serves all of that
            # version, by which the loader tells their names apart.
            exports = [f"{model.id}_*", "tvmx_*", "__TVMBackend*"]
            library = folder / f"lib{model.id}.so"
            link_shared(
                library, [*objects, *runtime], [], triple, exports, flags, f"TVMX_{version}"
            )


def runtime_version(flags: Sequence[str]) -> str:
    """Sixteen digits that are others for another runtime."""
    whole = hashlib.sha256("\n".join(flags).encode())
    for file in (*HEADERS, *RUNTIME_SOURCES):
        whole.update(file.read_bytes())
    return whole.hexdigest()[:16]


def _program(folder: Path, parts: Parts, entry: str, triple: str | None) -> list[Path]:
    """Object code that runs ``parts``; where tools can hide names, all but ``entry`` are."""
    folder.mkdir()
    objects, sources = parts.write(folder, entry)
    compiled = [*objects, *(compile_c(source, triple) for source in sources)]
    return join_objects(folder / f"{entry}.o", compiled, [entry, "__TVMBackend*"], triple)


def _write_weights(path: Path, model: Interface, weights: np.ndarray) -> None:
    header = _MAGIC + struct.pack("<3Q", *model.checksum)
    with path.open("wb") as file:
        file.write(header.ljust(ALIGNMENT, b"\0"))
        file.write(weights.data)
