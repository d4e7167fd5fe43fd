"""How many threads kernels run on."""

import ctypes
import os

import tvm

__all__ = ["set_threads", "threads", "use_runtime"]


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# TVM reads this once, when its pool starts; by itself it would take half of the logical cores.
os.environ.setdefault("TVM_NUM_THREADS", str(_usable_cores()))

# Mode 1 of TVM's pool: as many workers as asked for, bound to cores of any kind.
_ANY_CORE = 1

_runtime: ctypes.CDLL | None = None  # the pool of static models; those of the VM use TVM's
_count = int(os.environ["TVM_NUM_THREADS"])


def set_threads(count: int) -> None:
    """Let kernels of this process use ``count`` threads.

    Models with dynamic shapes use at most as many as TVM's pool began with.
    """
    global _count
    _count = count
    tvm.get_global_func("runtime.config_threadpool")(_ANY_CORE, count)
    if _runtime is not None:
        _runtime.tvmx_set_threads(count)


def threads() -> int:
    """The threads that kernels of this process use."""
    return _count


def use_runtime(library: ctypes.CDLL) -> None:
    """Let ``library`` hold the pool of all static models."""
    global _runtime
    _runtime = library
    library.tvmx_set_threads(_count)
    spin = os.environ.get("TVM_THREAD_POOL_SPIN_COUNT")  # as TVM's own pool reads it
    if spin is not None:
        library.tvmx_set_spin(int(spin))
