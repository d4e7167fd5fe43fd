"""What every check of a contract uses: findings from failures, and the distance of answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from textwrap import shorten
from typing import Any

import numpy as np

from ..errors import ConversionError, TvmExtError
from ..verify import distance
from .report import Finding

__all__ = ["Breach", "Guard", "checked_distance", "reason_of"]

# |got - want| <= bound * (1 + |want|): what a few thousand roundings of the type may add up to.
_BOUND = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 8e-2}


class Breach(Exception):
    """Something that the contract asks for does not hold."""


def reason_of(error: Exception) -> str:
    """The first line of what went wrong; TVM's go on for pages."""
    text = error.nodes[0].reason if isinstance(error, ConversionError) else str(error)
    named = text if isinstance(error, TvmExtError | Breach) else f"{type(error).__name__}: {text}"
    return shorten(named.strip().split("\n")[0], 300)


class Guard:
    """Turns what fails inside into a finding; where nothing does, into a passed one."""

    def __init__(self, check: str, case: object):
        self.finding = Finding(check, str(case), True)

    def __enter__(self) -> Guard:
        return self

    def note(self, **facts: Any) -> None:
        """Set fields of the finding."""
        self.finding = replace(self.finding, **facts)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if isinstance(error, Exception):
            self.note(passed=False, detail=reason_of(error))
        return error is None or isinstance(error, Exception)


def checked_distance(answer: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """The largest error, as a part of ``1 + |want|``.

    Raises:
        Breach: a shape or kind of type differs, or the error is over the type's bound.
    """
    worst = 0.0
    for k, (got, want) in enumerate(zip(answer, wanted, strict=True)):
        if got.shape != want.shape:
            raise Breach(f"output {k} has shape {got.shape}, by the reference {want.shape}")
        exact = got.dtype.kind in "biu"
        if exact != (want.dtype.kind in "biu"):
            raise Breach(f"output {k} is {got.dtype}, by the reference {want.dtype}")
        error, bound = distance(got, want), 0.0 if exact else _BOUND.get(got.dtype.name, 0.25)
        if not error <= bound:
            raise Breach(f"output {k} is off by {error:.3g} of 1 + |want|, bound {bound:.3g}")
        worst = max(worst, error)
    return worst
