"""Whether a package does what it was made from: its own example, compiled and run."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from ..errors import BuildError
from ..executors.toolchain import compiler

__all__ = ["run_example"]

_TIMEOUT = 120.0  # seconds


def run_example(folder: Path) -> None:
    """Compile ``main.c`` of the package in ``folder`` with all warnings, and run it.

    Raises:
        BuildError: it does not compile, or finds another answer than when it was written.
    """
    (*libraries,) = folder.glob("lib*.a")
    sources = [folder / "main.c"] if libraries else list(folder.glob("*.c"))
    with tempfile.TemporaryDirectory(prefix="tvm_ext_") as work:
        program = Path(work, "main")
        strict = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
        command = [*compiler(), *strict, f"-I{folder}", *sources, *libraries]
        _run([*command, "-lm", "-lpthread", "-o", program], folder)
        _run([program], folder)


def _run(command: list, folder: Path) -> None:
    try:
        done = subprocess.run(
            list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} takes more than {_TIMEOUT:.0f} s") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"code {done.returncode}"]
        raise BuildError(f"{Path(command[0]).name} failed: {lines[0]}")
