"""Programs that use a package: compiled with all warnings, and run."""

import shutil
import subprocess

import pytest

from tvm_ext.executors.toolchain import compiler

__all__ = ["CXX", "C", "compiled", "ran"]

C = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g"]
CXX = ["-std=c++17", *C[1:]]


def compiled(folder, sources, *flags, libraries=None, language=C, by=None):
    """The path of a program; ``sources`` are files of the package in ``folder``, or texts.

    It is linked with the package's static library, or with ``libraries``.
    """
    program = folder.parent / f"program{len(list(folder.parent.iterdir()))}"
    libraries = [path.name for path in folder.glob("*.a")] if libraries is None else libraries
    files = []
    for number, source in enumerate(sources):
        if "\n" in source:
            files.append(folder.parent / f"text{number}.{'c' if language is C else 'cpp'}")
            files[-1].write_text(source)
        else:
            files.append(folder / source)
    compile_ = [by] if by else compiler() if language is C else [shutil.which("g++")]
    command = [*compile_, *language, f"-I{folder}", *files, *(folder / lib for lib in libraries)]
    done = subprocess.run(
        [*map(str, command), *flags, "-lm", "-lpthread", "-o", str(program)],
        capture_output=True,
        text=True,
    )
    if "-fsanitize" in " ".join(flags) and "cannot find" in done.stderr:
        pytest.skip("this compiler has no sanitizer runtime")
    assert done.returncode == 0, done.stderr
    return program


def ran(program, folder, *arguments, **environment):
    """What ``program`` prints, run in ``folder``; it ends well and complains of nothing."""
    done = subprocess.run(
        [str(program), *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment or None,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout
