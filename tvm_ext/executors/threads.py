"""How many threads kernels run on."""

import os

import tvm

__all__ = ["set_threads", "threads"]


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# TVM reads this once, when its pool starts; by itself it would take half of the logical cores.
os.environ.setdefault("TVM_NUM_THREADS", str(_usable_cores()))

# Mode 1 of TVM's pool: as many workers as asked for, bound to cores of any kind.
_ANY_CORE = 1


def set_threads(count: int) -> None:
    """Let kernels of this process use ``count`` threads, at most those that the pool began with."""
    tvm.get_global_func("runtime.config_threadpool")(_ANY_CORE, count)


def threads() -> int:
    """The threads that kernels of this process use."""
    return int(tvm.get_global_func("runtime.NumThreads")())
