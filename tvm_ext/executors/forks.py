"""TVM's thread pool in the child of a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

__all__ = ["on_live_pool"]

Result = TypeVar("Result")


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
    return _Fork.successor.submit(copy_context().run, function, *args).result()
