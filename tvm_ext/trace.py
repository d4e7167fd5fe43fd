"""What each pass of a build does, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from .build import convert_and_build
from .display import Shown, table
from .errors import OptionError, unknown
from .interface import Shapes
from .pipeline import Pipeline, Step

__all__ = ["PassTime", "PassTimes", "dump_after", "time_passes"]


@dataclass(frozen=True)
class PassTime:
    """The seconds of one step; those of the phase "emit" are the compilation of all kernels."""

    phase: str
    name: str
    seconds: float


@dataclass(frozen=True)
class PassTimes(Shown):
    """The steps of a build, in order; prints as a table."""

    passes: tuple[PassTime, ...]

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.passes)

    def _derived(self) -> Mapping[str, object]:
        return {"seconds": self.seconds}

    def __rich__(self):
        whole = self.seconds
        rows = (
            (each.phase, each.name, f"{each.seconds * 1e3:.1f}", f"{each.seconds / whole:.1%}")
            for each in self.passes
        )
        title = f"{len(self.passes)} passes, {self.seconds:.3f} s"
        return table(("phase", "pass", "ms", "%"), rows, numbers=("ms", "%"), title=title)


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
        raise OptionError(unknown("pass", name, known))
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
