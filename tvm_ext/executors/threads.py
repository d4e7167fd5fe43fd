"""How many threads kernels run on.

Two pools may live in a process: that of static models, which is ours, and TVM's, on which the VM
runs. Both take their number from here. Nothing here imports TVM.
"""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["follow", "set_threads", "spin", "threads"]

_COUNT = "TVM_NUM_THREADS"  # TVM's own variable
_SPIN = "TVM_THREAD_POOL_SPIN_COUNT"

_followers: list[Callable[[int], object]] = []
_wanted: int | None = None


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# TVM reads this once, when its pool starts; by itself it would take half of the logical cores.
os.environ.setdefault(_COUNT, str(_usable_cores()))


def set_threads(count: int) -> None:
    """Let kernels of this process use ``count`` threads, at most ``TVM_NUM_THREADS``."""
    global _wanted
    _wanted = max(1, min(count, _most()))
    for follower in _followers:
        follower(_wanted)


def threads() -> int:
    """The threads that kernels of this process use."""
    return _wanted or _most()


def _most() -> int:
    given = os.environ[_COUNT]
    return max(1, int(given)) if given.isdigit() else _usable_cores()


def follow(set_count: Callable[[int], object]) -> None:
    """Tell ``set_count`` the number of threads whenever it changes."""
    _followers.append(set_count)


def spin() -> int | None:
    """How often an idle thread looks for work before it sleeps; None is the pool's default."""
    given = os.environ.get(_SPIN, "")
    return int(given) if given.isdigit() else None
