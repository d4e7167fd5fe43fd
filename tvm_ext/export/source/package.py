"""Writes a model as C source: header, kernels, weights, build file, example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...build import convert_and_build
from ..example import Expected, example_input, expected
from . import texts
from .program import Program, program_of

__all__ = ["SourcePackage"]


@dataclass(frozen=True)
class SourcePackage:
    """A model as C source, and what its example expects.

    Attributes:
        program: the model.
        results: per output, what LLVM's code of the same model answers.
        embedded: weights are C, too; else they are a file beside it.
        openmp: loops that threads may share are marked.
    """

    program: Program
    results: Sequence[Expected]
    embedded: bool
    openmp: bool

    @classmethod
    def of(
        cls, model: object, name: str, embedded: bool, openmp: bool, options: Mapping[str, Any]
    ) -> SourcePackage:
        """``model`` (what :func:`tvm_ext.convert_and_build` takes), called ``name`` in C;
        ``options`` are those of ``convert_and_build`` that choose no machine.

        Raises:
            OptionError: the model needs TVM at run time, or its types have no form in C.
            BuildError: a kernel has no form in C; with its nodes and the reason.
            TvmExtError: whatever ``convert_and_build`` raises.
        """
        parallel = texts.PARALLEL if openmp else ""
        program = program_of(model, name, parallel=parallel, **options)
        compiled = convert_and_build(model, "llvm", **options)
        inputs = [example_input(tensor, k) for k, tensor in enumerate(program.inputs)]
        return cls(program, expected(compiled.executor(inputs)), embedded, openmp)

    def write(self, folder: Path) -> None:
        """Write all files into ``folder``, which exists.

        Raises:
            OSError: the folder cannot be written.
        """
        program, embedded, id = self.program, self.embedded, self.program.id
        (folder / f"{id}.h").write_text(texts.header(program, embedded))
        (folder / f"{id}.c").write_text(texts.source(program, embedded, self.openmp))
        if embedded:
            with (folder / f"{id}_weights.c").open("w") as file:
                file.writelines(f"{line}\n" for line in texts.weights_source(program))
        else:
            _write_weights(folder / f"{id}.bin", program)
        (folder / "main.c").write_text(texts.example(program, self.results, embedded))
        cmake = texts.cmake_lists(program, embedded, self.openmp)
        (folder / "CMakeLists.txt").write_text(cmake)


def _write_weights(path: Path, program: Program) -> None:
    with path.open("wb") as file:
        for weight in program.weights:
            file.seek(weight.offset)
            file.write(np.ascontiguousarray(weight.array).tobytes())
