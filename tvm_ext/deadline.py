"""A limit on the time that code of a user's may take, and where it was when it ran out.

A thread waits beside the code and raises an exception in it. That reaches Python code, also where
TVM calls it; code that stays in C++ is stopped when it comes back.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TypeVar

__all__ = ["Overrun", "within"]

Result = TypeVar("Result")

_AGAIN = 0.5  # seconds, until code that swallowed the exception meets it once more


class Overrun(Exception):
    """The time is over; ``place`` is the file and line, in Python, that was running."""

    def __init__(self, seconds: float, place: str):
        super().__init__(f"not finished after {seconds:g} s, running {place}")
        self.place = place


class _Expired(BaseException):
    """Raised in the code; no Exception, which the code might catch."""


def within(seconds: float, run: Callable[[], Result], file: str) -> Result:
    """What ``run`` returns, if it does so in time.

    Args:
        file: where the code stands: the innermost of its lines is the place that is told.

    Raises:
        Overrun: the time is over.
        Exception: whatever ``run`` raises.
    """
    watch = _Watch(seconds, file)
    try:
        try:
            watch.start()
            return run()
        finally:
            watch.end()
    except BaseException as error:
        while not watch.ended:  # the exception came while it was ending
            with suppress(_Expired):
                watch.end()
        if watch.place is None:
            raise
        # The exception itself, or what TVM or the code made of it.
        raise Overrun(seconds, watch.place) from error


class _Watch:
    """Watches the thread that makes it, from another one."""

    def __init__(self, seconds: float, file: str):
        self.place: str | None = None
        self._file = file
        self._thread = threading.get_ident()
        self._ended = threading.Event()
        self._raising = threading.Lock()
        self._watcher = threading.Thread(target=self._wait, args=(seconds,), daemon=True)
        self.ended = False

    def start(self) -> None:
        self._watcher.start()

    def _wait(self, seconds: float) -> None:
        while not self._ended.wait(seconds):
            with self._raising:
                if self._ended.is_set():
                    return
                frame = sys._current_frames().get(self._thread)
                self.place = self.place or _place(frame, self._file)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(_Expired)
                )
            seconds = _AGAIN

    def end(self) -> None:
        """No exception is raised from here on; one that is under way arrives in here."""
        with self._raising:
            self._ended.set()
        if self._watcher.ident is not None:
            self._watcher.join()
        self.ended = True


def _place(frame: FrameType | None, file: str) -> str:
    """The innermost line of ``file``; of any file where it is not running."""
    innermost = frame
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    found = frame or innermost
    return f"{found.f_code.co_filename}:{found.f_lineno}" if found else file
