"""The shared library of a static model, loaded."""

from __future__ import annotations

import ctypes
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..errors import BuildError
from . import threads
from .emit import ENTRY

__all__ = ["Library"]

_Observer = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_double)


class Library:
    """Calls the entry function; parallel loops of all libraries run on one pool of threads."""

    _pool: ctypes.CDLL | None = None  # the library whose runtime serves all of this process
    _loading = threading.Lock()

    def __init__(self, image: np.ndarray):
        self._library = _loaded(image)
        with self._loading:
            if Library._pool is None:
                Library._pool = self._library
                threads.use_runtime(self._library)
        get = Library._pool.tvmx_get_launcher
        get.restype = ctypes.c_void_p
        self._library.tvmx_set_launcher(ctypes.c_void_p(get()))
        self._function = getattr(self._library, ENTRY)
        self._function.argtypes = [ctypes.c_void_p] * 5

    def execute(
        self,
        weights: np.ndarray,
        arena: np.ndarray,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        observe: Callable[[int, float], None] | None = None,
    ) -> None:
        """Fill ``outputs``; ``observe`` gets each kernel's number and seconds when it is done."""
        observer = None if observe is None else _Observer(observe)
        code = self._function(
            weights.ctypes.data,
            arena.ctypes.data,
            _addresses(inputs),
            _addresses(outputs),
            ctypes.cast(observer, ctypes.c_void_p) if observer else None,
        )
        if code != 0:
            raise MemoryError(f"a kernel returned {code}: there is no scratch memory")


def _addresses(arrays: Sequence[np.ndarray]) -> ctypes.Array:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def _loaded(image: np.ndarray) -> ctypes.CDLL:
    # A fresh name each time: the loader answers a known one with the library it already has.
    with tempfile.TemporaryDirectory(prefix="tvm_ext_") as folder:
        path = Path(folder, "library.so")
        path.write_bytes(image.tobytes())
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"cannot load the kernels: {error}") from error
