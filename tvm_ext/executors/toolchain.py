"""The C compiler and linker of this machine."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..errors import BuildError

__all__ = ["RUNTIME", "compiler", "link_shared"]

RUNTIME = Path(__file__).parent / "runtime"

_CANDIDATES = ("cc", "gcc", "clang")


def compiler(triple: str | None = None) -> str:
    """The C compiler: ``$CC``, else the first of cc, gcc and clang; for ``triple``, its gcc.

    Raises:
        BuildError: there is none.
    """
    if triple is not None:
        if shutil.which(f"{triple}-gcc"):
            return f"{triple}-gcc"
        raise BuildError(
            f"cannot link the kernels for {triple}: no compiler {triple}-gcc is on the PATH"
        )
    for name in (os.environ.get("CC"), *_CANDIDATES):
        if name and shutil.which(name):
            return name
    raise BuildError("no C compiler: install gcc or clang, or name one by the variable CC")


def link_shared(
    library: Path, objects: Sequence[Path], sources: Sequence[Path], triple: str | None = None
) -> None:
    """Link ``objects`` and compiled C ``sources`` with the runtime as ``library``, for
    this machine or that of ``triple``.

    Only the names that begin with ``tvmx_`` are seen from outside.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    exports = library.with_suffix(".map")
    exports.write_text("{ global: tvmx_*; local: *; };\n")
    _run(
        [compiler(triple), "-std=c11", "-O2", "-fPIC", "-shared", f"-I{RUNTIME}"]
        + [f"-Wl,--version-script={exports}", "-Wl,-z,defs", "-Wl,-s", "-o", str(library)]
        + [str(path) for path in (*sources, RUNTIME / "tvmx.c", *objects)]
        + ["-lm", "-lpthread"]
    )


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        errors = [line for line in lines if "error:" in line]
        raise BuildError(f"{command[0]} failed: {(errors or lines[-1:])[0]}")
