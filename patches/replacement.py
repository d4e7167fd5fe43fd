"""Put something in the place of another package's function, and take it back in any order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

__all__ = ["Replacement", "of_attribute"]

Function = Callable[..., object]


class Replacement:
    """A function of another package, wrapped while at least one context is open.

    It holds for the whole process, whichever thread opened the context. What others put over it
    in the meantime stays there, and finds the original behind it as soon as no context is open.

    Args:
        get: the function that is in place now.
        put: put a function in its place.
        wrap: from the original to what shall be called instead.
    """

    def __init__(
        self,
        get: Callable[[], Function],
        put: Callable[[Function], None],
        wrap: Callable[[Function], Function],
    ):
        self._get, self._put, self._wrap = get, put, wrap
        self._lock = threading.Lock()
        self._open = 0
        self._take_back: Callable[[], None] = lambda: None

    @contextmanager
    def open(self) -> Iterator[None]:
        """A context in which the replacement is called."""
        with self._lock:
            if self._open == 0:
                self._take_back = self._place()
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                if self._open == 0:
                    self._take_back()

    def _place(self) -> Callable[[], None]:
        """Put the replacement in place; what ends it."""
        original = self._get()
        current = self._wrap(original)

        @wraps(original)
        def replacement(*args, **kwargs):
            return current(*args, **kwargs)

        def take_back():
            nonlocal current
            current = original  # for those who put a wrapper of theirs over the replacement
            if self._get() is replacement:
                self._put(original)

        self._put(replacement)
        return take_back


def of_attribute(owner: object, name: str, wrap: Callable[[Function], Function]) -> Replacement:
    """The replacement of ``owner.name``, a function of a module or a method of a class."""
    return Replacement(
        lambda: getattr(owner, name), lambda function: setattr(owner, name, function), wrap
    )
