"""How many threads kernels run on."""

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import tvm

__all__ = ["on_live_pool", "set_threads", "threads", "use_runtime"]

Result = TypeVar("Result")


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# TVM reads this once, when its pool starts; by itself it would take half of the logical cores.
os.environ.setdefault("TVM_NUM_THREADS", str(_usable_cores()))

# Mode 1 of TVM's pool: as many workers as asked for, bound to cores of any kind.
_ANY_CORE = 1

_runtime: ctypes.CDLL | None = None  # the pool of static models; others run on TVM's


def set_threads(count: int) -> None:
    """Let kernels of this process use ``count`` threads, at most those that the pool began with."""
    tvm.get_global_func("runtime.config_threadpool")(_ANY_CORE, count)
    if _runtime is not None:
        _runtime.tvmx_set_threads(threads())


def use_runtime(library: ctypes.CDLL) -> None:
    """Let ``library`` hold the pool of all static models."""
    global _runtime
    _runtime = library
    library.tvmx_set_threads(threads())
    spin = os.environ.get("TVM_THREAD_POOL_SPIN_COUNT")  # as TVM's own pool reads it
    if spin is not None:
        library.tvmx_set_spin(int(spin))


def threads() -> int:
    """The threads that kernels of this process use."""
    return int(tvm.get_global_func("runtime.NumThreads")())


class _Fork:
    """In the child of a fork: the thread that went on, and one that takes over its kernels."""

    survivor: int | None = None
    successor: ThreadPoolExecutor | None = None

    @classmethod
    def happened(cls) -> None:
        cls.survivor, cls.successor = threading.get_ident(), ThreadPoolExecutor(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Fork.happened)


def on_live_pool(function: Callable[..., Result], *args: object) -> Result:
    """``function(*args)`` where TVM's thread pool lives.

    Each thread that runs kernels has a pool. A fork copies the thread but not its workers, for
    which it would wait forever; another thread starts a pool of its own.
    """
    if _Fork.successor is None or threading.get_ident() != _Fork.survivor:
        return function(*args)
    return _Fork.successor.submit(function, *args).result()
