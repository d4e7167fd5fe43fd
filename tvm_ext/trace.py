"""What each pass of a build does, and how long it takes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from .build import convert_and_build
from .display import as_html, as_text
from .errors import OptionError
from .pipeline import Pipeline, Step

__all__ = ["PassTime", "PassTimes", "dump_after", "time_passes"]

Shapes = Mapping[str, int | Sequence[int | None]]


@dataclass(frozen=True)
class PassTime:
    """The seconds of one step; those of the phase "emit" are the compilation of all kernels."""

    phase: str
    name: str
    seconds: float


@dataclass(frozen=True)
class PassTimes:
    """The steps of a build, in order; prints as a table."""

    passes: tuple[PassTime, ...]

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.passes)

    def to_json(self) -> str:
        """All of it, as JSON."""
        return json.dumps(asdict(self) | {"seconds": self.seconds}, indent=2)

    def _table(self):
        from rich.table import Table

        table = Table(title=f"{len(self.passes)} passes, {self.seconds:.3f} s")
        for column in ("phase", "pass"):
            table.add_column(column, overflow="fold")
        for column in ("ms", "%"):
            table.add_column(column, justify="right")
        for each in self.passes:
            share = each.seconds / self.seconds
            table.add_row(each.phase, each.name, f"{each.seconds * 1e3:.1f}", f"{share:.1%}")
        return table

    def __rich__(self):
        return self._table()

    def __str__(self) -> str:
        return as_text(self._table())

    def _repr_html_(self) -> str:
        return as_html(self._table())


class _Done(BaseException):
    """Ends a build whose rest nobody needs; no error, so that no one takes it for one."""


def dump_after(model: object, steps: Pipeline, name: str, shapes: Shapes | None = None) -> str:
    """The program as the named step leaves it: ONNX in the phase import, TVMScript after it.

    Raises:
        OptionError: there is no such step.
        TvmExtError: whatever ``convert_and_build`` raises.
    """
    known = [step.name for step in steps.steps]
    if name not in known:
        raise OptionError(f"no pass {name!r}; there are {', '.join(known)}")
    found: list[str] = []

    def watch(step: Step, result: Any, _seconds: float) -> None:
        if step.name == name:
            found.append(str(result) if isinstance(result, ir.Model) else result.script())
            raise _Done

    with suppress(_Done):
        convert_and_build(model, steps=steps.watched(watch), shapes=shapes)
    return found[0]


def time_passes(model: object, steps: Pipeline, shapes: Shapes | None = None) -> PassTimes:
    """Build ``model`` and time every step.

    Raises:
        TvmExtError: whatever ``convert_and_build`` raises.
    """
    passes: list[PassTime] = []
    finished = [time.perf_counter()]

    def watch(step: Step, _result: Any, seconds: float) -> None:
        passes.append(PassTime(step.phase, step.name, seconds))
        finished[0] = time.perf_counter()

    convert_and_build(model, steps=steps.watched(watch), shapes=shapes)
    compilation = time.perf_counter() - finished[0]
    return PassTimes((*passes, PassTime("emit", "compilation", compilation)))
