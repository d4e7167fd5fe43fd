"""Where code of a user's stands, as error messages say it: "file:line"."""

from __future__ import annotations

import traceback
from inspect import currentframe
from types import CodeType

__all__ = ["caller", "place", "raised_at"]


def place(code: CodeType) -> str:
    """Where a function stands."""
    return f"{code.co_filename}:{code.co_firstlineno}"


def caller() -> str:
    """Where the function that asks was called."""
    frame = currentframe()
    for _ in range(2):
        frame = frame and frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "unknown"


def raised_at(error: BaseException, where: str) -> str:
    """The innermost line of the file of ``where`` that ``error`` came through; else ``where``."""
    file = where.rpartition(":")[0]
    lines = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return f"{file}:{lines[-1].lineno}" if lines else where
