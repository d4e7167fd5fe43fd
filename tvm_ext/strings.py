"""Strings as numbers: what compiled code holds instead of them.

A tensor of strings is a tensor of int64 numbers, equal where the strings are, so that whatever
moves or compares elements works on it as on any other; 0 is the empty string. The numbers of the
model's own strings are fixed when it is built; those of others hold during one run.

Part of what loading a model needs: nothing here imports TVM or ONNX.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar

import numpy as np

__all__ = ["StringTable", "current", "object_array", "running"]


def object_array(texts: Sequence[str], shape: Sequence[int]) -> np.ndarray:
    """An array of ``texts``: numpy itself would make one of another type, or take them apart."""
    result = np.empty(len(texts), object)
    result[:] = texts
    return result.reshape(shape)


class StringTable:
    """Texts by number; with ``base``, those that are not in that table, which stays as it is."""

    def __init__(self, texts: Sequence[str] = ("",), base: StringTable | None = None):
        self._base = base
        self._first = 0 if base is None else len(base.texts)
        self.texts: list[str] = [] if base is not None else list(texts)
        self._numbers = {text: number for number, text in enumerate(self.texts)}

    def number(self, text: str) -> int:
        """The number of ``text``, a new one where it has none."""
        known = None if self._base is None else self._base._numbers.get(text)
        if known is not None:
            return known
        number = self._numbers.setdefault(text, self._first + len(self.texts))
        if number == self._first + len(self.texts):
            self.texts.append(text)
        return number

    def numbers(self, texts: Iterable[str]) -> np.ndarray:
        """The numbers of ``texts``: an array as theirs, int64."""
        array = np.asarray(texts, object)
        return np.fromiter(map(self.number, array.flat), "int64", array.size).reshape(array.shape)

    def strings(self, numbers: np.ndarray) -> np.ndarray:
        """The texts that ``numbers`` stand for, as an object array."""
        fixed, own, first = [] if self._base is None else self._base.texts, self.texts, self._first
        numbered = numbers.ravel().tolist()
        texts = [fixed[k] if k < first else own[k - first] for k in numbered]
        return object_array(texts, numbers.shape)


_CURRENT: ContextVar[StringTable] = ContextVar("strings")


def current() -> StringTable:
    """The table of the run that is going on."""
    return _CURRENT.get()


class running:  # noqa: N801: a context as contextlib's, which small models would wait for
    """Within it a model runs whose strings ``table`` has."""

    def __init__(self, table: StringTable):
        self._table = table

    def __enter__(self) -> None:
        self._token = _CURRENT.set(StringTable(base=self._table))

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._token)
