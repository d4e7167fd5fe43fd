"""C compilers and linkers: of this machine, and of others from the system or from ``ziglang``."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from ..errors import BuildError
from .work_folder import work_folder

__all__ = [
    "RUNTIME",
    "archive",
    "compile_c",
    "compile_runtime",
    "compiler",
    "is_wasm",
    "join_objects",
    "link_shared",
    "run_tool",
    "shared_linker",
]

RUNTIME = Path(__file__).parent / "runtime"

_FLAGS = ("-std=c11", "-O2", f"-I{RUNTIME}")
_CANDIDATES = ("cc", "gcc", "clang")


def compiler(triple: str | None = None) -> list[str]:
    """The command of a C compiler: ``$CC``, else the first of cc, gcc and clang; for another
    machine, as LLVM writes its ``triple``, its gcc or that of the package ziglang.

    Raises:
        BuildError: there is none.
    """
    if triple is not None:
        return _system_tool("gcc", triple) or [*_zig("cc", triple), "-target", _zig_machine(triple)]
    for name in (os.environ.get("CC"), *_CANDIDATES):
        if name and shutil.which(name):
            return [name]
    raise BuildError("no C compiler: install gcc or clang, or name one by the variable CC")


def is_wasm(triple: str | None) -> bool:
    """Whether that machine is WebAssembly: no shared libraries, no threads, no mapped files."""
    return triple is not None and triple.startswith("wasm")


def shared_linker(triple: str | None) -> list[str]:
    """The command that links position-independent code as a shared library.

    Raises:
        BuildError: there is no compiler, or that machine has no shared libraries.
    """
    if is_wasm(triple):
        raise BuildError(f"{triple} has no shared libraries: export the model as a C package")
    return [*compiler(triple), "-fPIC", "-shared"]


def link_shared(
    library: Path,
    objects: Sequence[Path],
    sources: Sequence[Path],
    triple: str | None = None,
    exports: Sequence[str] = ("tvmx_*",),
    flags: Sequence[str] = (),
    version: str = "",
) -> None:
    """Link ``objects`` and compiled C ``sources`` with the runtime as ``library``, for
    this machine or that of ``triple``.

    Only the names that match ``exports`` are seen from outside, as of ``version`` if that is given.

    Raises:
        BuildError: there is no compiler, it fails, or that machine has no shared libraries.
    """
    linker = shared_linker(triple)
    seen = " ".join(f"{name};" for name in exports)
    with work_folder() as folder:
        names = folder / "names.map"
        names.write_text(f"{version} {{ global: {seen} local: *; }};\n")
        runtime = compile_runtime(RUNTIME / "tvmx.c", folder, triple, flags)
        run_tool(
            [*linker, *_FLAGS, *flags, f"-Wl,-soname,{library.name}"]
            + [f"-Wl,--version-script={names}", "-Wl,-z,defs", "-Wl,-s", "-o", str(library)]
            + [str(path) for path in (*sources, runtime, *objects)]
            + ["-lm", "-lpthread"]
        )


def compile_c(source: Path, triple: str | None = None, flags: Sequence[str] = ()) -> Path:
    """Compile one file of C or assembly; the object file beside it.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    compiled = source.with_suffix(".o")
    place = [] if is_wasm(triple) else ["-fPIC"]
    command = [*compiler(triple), *_FLAGS, *place, *flags, f"-I{source.parent}"]
    run_tool([*command, "-c", str(source), "-o", str(compiled)])
    return compiled


def compile_runtime(
    source: Path, folder: Path, triple: str | None = None, flags: Sequence[str] = ()
) -> Path:
    """The object file in ``folder`` of a C file of this package, compiled once per process.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    compiled = folder / f"{source.stem}.o"
    compiled.write_bytes(_object_code(source, triple, tuple(flags), tuple(compiler(triple))))
    return compiled


@lru_cache(maxsize=32)
def _object_code(
    source: Path, triple: str | None, flags: Sequence[str], _compiler: Sequence[str]
) -> bytes:
    with work_folder() as folder:
        copy = shutil.copy(source, folder)
        return compile_c(Path(copy), triple, [*flags, f"-I{source.parent}"]).read_bytes()


def join_objects(
    joined: Path, objects: Sequence[Path], keep: Sequence[str], triple: str | None = None
) -> list[Path]:
    """One object file of many, in which only the names that match ``keep`` stay global; the many,
    where ziglang takes the place of binutils: it hides no names.

    Raises:
        BuildError: there are no tools of that kind, or they fail.
    """
    objcopy = _binary_tool("objcopy", triple)
    if objcopy is None:
        return list(objects)
    run_tool([*compiler(triple), "-r", "-nostdlib", "-o", str(joined), *map(str, objects)])
    kept = [f"--keep-global-symbol={name}" for name in keep]
    run_tool([*objcopy, "--wildcard", "--strip-debug", *kept, str(joined)])
    return [joined]


def archive(library: Path, objects: Sequence[Path], triple: str | None = None) -> None:
    """A static library of ``objects``.

    Raises:
        BuildError: there is no ``ar``, or it fails.
    """
    command = _binary_tool("ar", triple) or _zig("ar", str(triple))
    run_tool([*command, "qcsD", str(library), *map(str, objects)])


def _binary_tool(name: str, triple: str | None) -> list[str] | None:
    """A tool of the system's binutils; None where that of ziglang takes its place."""
    if triple is not None:
        return _system_tool(name, triple)
    if shutil.which(name):
        return [name]
    raise BuildError(f"no {name} on the PATH: it comes with the C compiler's binutils")


def _system_tool(name: str, triple: str) -> list[str] | None:
    full = f"{_gnu_machine(triple)}-{name}"
    return [full] if shutil.which(full) else None


def _zig(tool: str, triple: str) -> list[str]:
    if importlib.util.find_spec("ziglang") is None:
        machine = _gnu_machine(triple)
        system = f"{machine}-gcc (Debian's package gcc-{machine}), or "
        raise BuildError(
            f"no C compiler for {triple}: install {'' if is_wasm(triple) else system}"
            "ziglang (pip install 'tvm_ext[cross]')"
        )
    return [sys.executable, "-m", "ziglang", tool]


def _gnu_machine(triple: str) -> str:
    """``arm-linux-gnueabihf`` of ``armv7a-unknown-linux-gnueabihf``."""
    machine, *rest = triple.split("-")
    machine = "arm" if machine.startswith("armv") else machine
    return "-".join([machine, *(part for part in rest if part not in ("unknown", "none", "pc"))])


def _zig_machine(triple: str) -> str:
    machine, *system = _gnu_machine(triple).split("-")
    return "-".join([machine, *system, *(["gnu"] if system == ["linux"] else [])])


def run_tool(command: Sequence[str]) -> None:
    """Run a compiler or the like.

    Raises:
        BuildError: it fails; with its first error.
    """
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        errors = [line for line in lines if "error:" in line]
        tool = "ziglang" if "ziglang" in command else command[0]
        raise BuildError(f"{tool} failed: {(errors or lines[-1:])[0]}")
