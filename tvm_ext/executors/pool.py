"""The pool of static models for the parallel loops of what TVM runs, too."""

from __future__ import annotations

import ctypes
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import tvm  # noqa: F401  whose symbols are looked up here

from ..errors import BuildError
from . import threads
from .toolchain import link_shared

__all__ = ["one_pool"]

_swapping = threading.RLock()


@contextmanager
def one_pool(library: Path | None = None) -> Iterator[None]:
    """What TVM loads within has its parallel loops run on our pool.

    Without a pool, a ``library`` that has one, and a C compiler they run on TVM's.
    """
    launcher = threads.launcher() or _opened(library)
    if launcher is None:
        yield
        return
    tvms = ctypes.cast(ctypes.CDLL(None).TVMBackendParallelLaunch, ctypes.c_void_p)
    with _swapping:
        _register(ctypes.c_void_p(launcher))
        try:
            yield
        finally:
            _register(tvms)


def _opened(library: Path | None) -> int | None:
    """The launcher of ``library``, or of one that holds no more than the runtime."""
    if library is not None:
        return threads.launcher(ctypes.CDLL(str(library)))
    with suppress(BuildError), tempfile.TemporaryDirectory(prefix="tvm_ext_") as folder:
        path = Path(folder, "pool.so")
        link_shared(path, [], [])
        return threads.launcher(ctypes.CDLL(str(path)))
    return None


def _register(launcher: ctypes.c_void_p) -> None:
    """Name what the pointer to it in generated code gets as a library is loaded."""
    ctypes.CDLL(None).TVMFFIEnvModRegisterContextSymbol(b"__TVMBackendParallelLaunch", launcher)
