"""The C compiler and linker of this machine."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..errors import BuildError

__all__ = ["RUNTIME", "archive", "compile_c", "compiler", "join_objects", "link_shared"]

RUNTIME = Path(__file__).parent / "runtime"

_FLAGS = ("-std=c11", "-O2", "-fPIC", f"-I{RUNTIME}")
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
    library: Path,
    objects: Sequence[Path],
    sources: Sequence[Path],
    triple: str | None = None,
    exports: Sequence[str] = ("tvmx_*",),
) -> None:
    """Link ``objects`` and compiled C ``sources`` with the runtime as ``library``, for
    this machine or that of ``triple``.

    Only the names that match ``exports`` are seen from outside.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    names = library.with_suffix(".map")
    names.write_text(f"{{ global: {' '.join(f'{name};' for name in exports)} local: *; }};\n")
    _run(
        [compiler(triple), *_FLAGS, "-shared", f"-Wl,-soname,{library.name}"]
        + [f"-Wl,--version-script={names}", "-Wl,-z,defs", "-Wl,-s", "-o", str(library)]
        + [str(path) for path in (*sources, RUNTIME / "tvmx.c", *objects)]
        + ["-lm", "-lpthread"]
    )
    names.unlink()


def compile_c(source: Path, triple: str | None = None) -> Path:
    """Compile one file of C or assembly; the object file beside it.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    compiled = source.with_suffix(".o")
    _run([compiler(triple), *_FLAGS, f"-I{source.parent}", "-c", str(source), "-o", str(compiled)])
    return compiled


def join_objects(
    joined: Path, objects: Sequence[Path], keep: Sequence[str], triple: str | None = None
) -> None:
    """One object file of many, in which only the names that match ``keep`` stay global.

    Raises:
        BuildError: there are no tools of that kind, or they fail.
    """
    _run([compiler(triple), "-r", "-nostdlib", "-o", str(joined), *map(str, objects)])
    kept = [f"--keep-global-symbol={name}" for name in keep]
    _run([_binary_tool("objcopy", triple), "--wildcard", "--strip-debug", *kept, str(joined)])


def archive(library: Path, objects: Sequence[Path], triple: str | None = None) -> None:
    """A static library of ``objects``.

    Raises:
        BuildError: there is no ``ar``, or it fails.
    """
    _run([_binary_tool("ar", triple), "rcsD", str(library), *map(str, objects)])


def _binary_tool(name: str, triple: str | None) -> str:
    full = name if triple is None else f"{triple}-{name}"
    if shutil.which(full):
        return full
    raise BuildError(f"no {full} on the PATH: it comes with the C compiler's binutils")


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        errors = [line for line in lines if "error:" in line]
        raise BuildError(f"{command[0]} failed: {(errors or lines[-1:])[0]}")
