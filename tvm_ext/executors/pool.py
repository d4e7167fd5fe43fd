"""The pool of static models for the parallel loops of what TVM runs, too."""

from __future__ import annotations

import ctypes
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import tvm  # noqa: F401  whose symbols are looked up here

from ..errors import BuildError
from . import threads
from .small_loops import ALONE
from .toolchain import link_shared

__all__ = ["one_pool"]

_swapping = threading.RLock()


@contextmanager
def one_pool(library: Path | None = None) -> Iterator[None]:
    """What TVM loads within has its parallel loops run on our pool.

    Without a pool, a ``library`` that has one, and a C compiler they run on TVM's.
    """
    entrances = threads.entrances() or _opened(library)
    if entrances is None:
        yield
        return
    region, alone = entrances
    tvms = ctypes.cast(ctypes.CDLL(None).TVMBackendParallelLaunch, ctypes.c_void_p)
    with _swapping:
        _call_alone(alone)
        _launch_by(ctypes.c_void_p(region))
        try:
            yield
        finally:
            _launch_by(tvms)


def _opened(library: Path | None) -> tuple[int, int] | None:
    """The entrances of ``library``, or of one that holds no more than the runtime."""
    if library is not None:
        return threads.entrances(ctypes.CDLL(str(library)))
    with suppress(BuildError), tempfile.TemporaryDirectory(prefix="tvm_ext_") as folder:
        path = Path(folder, "pool.so")
        link_shared(path, [], [])
        return threads.entrances(ctypes.CDLL(str(path)))
    return None


def _launch_by(launcher: ctypes.c_void_p) -> None:
    """Name what the pointer to it in generated code gets as a library is loaded."""
    ctypes.CDLL(None).TVMFFIEnvModRegisterContextSymbol(b"__TVMBackendParallelLaunch", launcher)


class _Bytes(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


@lru_cache(maxsize=1)
def _call_alone(address: int) -> None:
    """Let what TVM finds by the name ``ALONE`` be the function at ``address``."""
    ffi, made = ctypes.CDLL(None), ctypes.c_void_p()
    ffi.TVMFFIFunctionCreate(None, ctypes.c_void_p(address), None, ctypes.byref(made))
    name = _Bytes(ALONE.encode(), len(ALONE))
    ffi.TVMFFIFunctionSetGlobal(ctypes.byref(name), made, 1)
    ffi.TVMFFIObjectDecRef(made)
