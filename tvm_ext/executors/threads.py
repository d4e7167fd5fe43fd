"""How many threads kernels run on.

All models of a process run on one pool, which is ours. TVM has one, too, for what else uses TVM,
and for models that its VM runs where no C compiler made ours. Both take their number from here.
Nothing here imports TVM.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any

from ..errors import OptionError

__all__ = [
    "entrances", "follow", "launcher", "set_affinity", "set_spin", "set_threads", "threads",
    "usable_cores",
]  # fmt: skip

_COUNT = "TVM_NUM_THREADS"  # TVM's own variable
_SPIN = "TVM_THREAD_POOL_SPIN_COUNT"

_followers: list[Callable[[int], object]] = []
_pool: Any = None  # the library whose runtime serves all of this process
_wanted: int | None = None
_spin: int | None = None
_cores: list[int] | None = None
_choosing = threading.Lock()


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# TVM reads this once, when its pool starts; by itself it would take half of the logical cores.
os.environ.setdefault(_COUNT, str(usable_cores()))


def set_threads(count: int) -> None:
    """Let kernels of this process use ``count`` threads, at most ``TVM_NUM_THREADS``.

    That variable is by default the number of cores that this process may use.

    Raises:
        OptionError: ``count`` is no whole number above 0.
    """
    global _wanted
    _wanted = min(_number("a count of threads", count, least=1), _most())
    for follower in _followers:
        follower(_wanted)


def threads() -> int:
    """The threads that kernels of this process use."""
    return _wanted or _most()


def set_spin(looks: int) -> None:
    """How often an idle thread looks for work before it sleeps: more is quicker, and costs power.

    By default 20000 times, some 0.2 ms, or what the variable ``TVM_THREAD_POOL_SPIN_COUNT`` has.

    Raises:
        OptionError: ``looks`` is no whole number of at least 0.
    """
    global _spin
    _spin = _number("a number of looks", looks, least=0)
    if _pool is not None:
        _pool.tvmx_set_spin(_spin)


def set_affinity(cores: Sequence[int]) -> None:
    """Bind the threads that kernels run on to ``cores``, in turn; none: the system places them.

    The first of the cores is meant for the thread that calls the model, which stays where it is.
    The variable ``TVMX_AFFINITY`` says the same, as in ``0-3,8``. Linux only.

    Raises:
        OptionError: one is no number of a core.
    """
    global _cores
    if not isinstance(cores, Iterable):
        raise OptionError(f"cores are a list of numbers, not {cores!r}")
    _cores = [_number("a core", core, least=0) for core in cores]
    if _pool is not None:
        _bind(_pool, _cores)


def launcher(library: Any = None) -> int | None:
    """The address of the function by which parallel loops of this process get their threads.

    It is that of the first ``library`` with our runtime that is given here; None before.
    """
    global _pool
    with _choosing:
        if _pool is None and hasattr(library, "tvmx_get_region"):
            library.tvmx_get_launcher.restype = ctypes.c_void_p
            library.tvmx_get_region.restype = ctypes.c_void_p
            _serve(library)
            _pool = library
    return _pool.tvmx_get_launcher() if _pool is not None else None


def entrances(library: Any = None) -> tuple[int, int] | None:
    """The addresses of what kernels that TVM runs call in our runtime: for a parallel loop, and
    before one that is small. See :func:`launcher`.
    """
    if launcher(library) is None:
        return None
    alone = ctypes.cast(_pool.tvmx_packed_alone, ctypes.c_void_p).value or 0
    return _pool.tvmx_get_region(), alone


def _serve(pool: Any) -> None:
    """Let ``pool``, a library with our runtime, follow the settings of this process."""
    pool.tvmx_set_threads(threads())
    follow(pool.tvmx_set_threads)
    given = os.environ.get(_SPIN, "")
    spin = int(given) if _spin is None and given.isdigit() else _spin
    if spin is not None:
        pool.tvmx_set_spin(spin)
    if _cores is not None:
        _bind(pool, _cores)


def _bind(pool: Any, cores: Sequence[int]) -> None:
    array = (ctypes.c_int * len(cores))(*cores)
    if pool.tvmx_set_affinity(array, ctypes.c_size_t(len(cores))) != 0:
        raise OptionError(f"these are no numbers of cores: {cores}")


def _number(what: str, value: object, least: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise OptionError(f"{what} is a whole number of at least {least}, not {value!r}")
    if int(value) >= 1 << 31:  # what C's int would make another number of
        raise OptionError(f"{what} is less than 2147483648, not {value}")
    return int(value)


def _most() -> int:
    given = os.environ[_COUNT]
    return max(1, int(given)) if given.isdigit() else usable_cores()


def follow(set_count: Callable[[int], object]) -> None:
    """Tell ``set_count`` the number of threads whenever it changes."""
    _followers.append(set_count)
