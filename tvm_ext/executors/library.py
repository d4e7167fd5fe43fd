"""The shared library of a static model, open.

Part of what loading a model needs: nothing here imports TVM.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from ..checks import failure
from ..errors import BuildError, RunError
from . import threads
from .emit import ENTRY
from .work_folder import work_folder

__all__ = ["Library", "fresh_name", "open_bytes", "opened"]

_NO_MEMORY = -1  # what kernels return that cannot allocate

Kind = TypeVar("Kind", bound="Library")

_Failed = ctypes.c_int64 * 3  # the number of a check, and the two that differ
_Observer = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_double)


class Library:
    """Calls the entry function; parallel loops of all libraries run on one pool of threads.

    Raises:
        BuildError: the file at ``path`` is no such library.
    """

    def __init__(self, path: str | Path):
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"cannot load the kernels: {error}") from error
        self._function = self.function(ENTRY)
        self._library.tvmx_set_launcher(ctypes.c_void_p(threads.launcher(self._library)))
        self._function.argtypes = [ctypes.c_void_p] * 6
        self._library.tvmx_lend.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._library.tvmx_lend.restype = None
        self._frames: list[_Frame] = []  # that no call uses

    def function(self, name: str) -> Any:
        """The C function of that name.

        Raises:
            BuildError: there is none.
        """
        try:
            return getattr(self._library, name)
        except AttributeError as error:
            raise BuildError(f"cannot load the kernels: {error}") from error

    def execute(
        self,
        weights: int,
        arena: int,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        scratch: tuple[int, int, int] | None,
        observe: Callable[[int, float], None] | None,
        checks: Sequence[str],
        *more: Any,
        function: Any = None,
    ) -> None:
        """Fill ``outputs``; ``observe`` gets each kernel's number and seconds when it is done.

        ``weights`` and ``arena`` are addresses; ``scratch``, where kernels need any, is one too,
        with the bytes for each thread of a parallel loop and how many threads these are for.
        ``checks`` are what those tell that fail; ``more``: what else the function takes, which is
        another than the entry function where ``function`` is given.

        Raises:
            RunError: a check failed, or a kernel gave up.
        """
        try:
            frame = self._frames.pop()  # another for other threads, and for calls within this one
        except IndexError:
            frame = _Frame(len(inputs), len(outputs))
        _place(inputs, frame.inputs)
        _place(outputs, frame.outputs)
        given, results, failed = frame.places
        observer = None if observe is None else _Observer(observe)
        if scratch is not None:
            self._library.tvmx_lend(*scratch)
        seen = None if observer is None else ctypes.cast(observer, ctypes.c_void_p)
        call = function or self._function
        code = call(weights, arena, given, results, seen, failed, *more)
        if scratch is not None:
            self._library.tvmx_lend(None, 0, 0)
        if code != 0:
            self._refuse(code, frame.failed, checks)
        self._frames.append(frame)

    @staticmethod
    def _refuse(code: int, failed: ctypes.Array, checks: Sequence[str]) -> NoReturn:
        number, *numbers = failed
        if number != 0:
            raise failure(checks[number - 1], *numbers)
        own = f"a kernel of C code returned {code}"
        raise RunError("no scratch memory for a kernel" if code == _NO_MEMORY else own)


# Found once: each lookup takes as long as the call, and small models run for microseconds.
_addressof, _of_buffer = ctypes.addressof, ctypes.c_char.from_buffer


class _Frame:
    """Where a call finds the addresses of its arrays, and leaves what failed."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs = (ctypes.c_void_p * inputs)()
        self.outputs = (ctypes.c_void_p * outputs)()
        self.failed = _Failed()
        self.places = tuple(_addressof(a) for a in (self.inputs, self.outputs, self.failed))


def _place(arrays: Sequence[Any], addresses: ctypes.Array) -> None:
    """Fill ``addresses`` with those of ``arrays``."""
    for k, array in enumerate(arrays):
        try:
            addresses[k] = _addressof(_of_buffer(array))
        except (TypeError, ValueError, BufferError):  # read-only, empty, or a type without buffers
            # Still quicker than array.ctypes.data, which makes an object first.
            addresses[k] = array.__array_interface__["data"][0]


def open_bytes(image: Any) -> Library:
    """The library whose file would hold ``image``."""
    return opened(image, Library)


def opened(image: Any, kind: type[Kind]) -> Kind:
    """The same, of a kind."""
    with work_folder() as folder:
        path = folder / "library.so"
        path.write_bytes(image)
        return kind(path)


@contextmanager
def fresh_name(path: Path) -> Iterator[Path]:
    """Another name of ``path``, never used before, for as long as the context lasts.

    The loader answers a name that it knows with the library it already has, also where the file
    is another by now.
    """
    with work_folder() as folder:
        link = folder / "library.so"
        link.symlink_to(path)
        yield link
