"""Candidates for one kernel, measured one after the other."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import ml_dtypes
import numpy as np
from tvm import IRModule, s_tir
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from .. import schedules
from ..schedules.numbers import changed, others
from .device import FAILED, Device, Kernel

__all__ = ["Contest", "Recipe", "digest", "enter_rules", "followed", "own_rule"]

_ROUNDS = 3

#: How a candidate is made of a kernel without a schedule, as JSON has it: the name of a rule and
#: its ``numbers``, or the ``trace`` of a schedule.
Recipe = dict[str, Any]


def digest(*texts: object) -> str:
    """A name for what is made of ``texts``."""
    return sha256("\n".join(map(str, texts)).encode()).hexdigest()


def followed(recipe: Recipe, module: IRModule, target: Target, opt_level: int) -> IRModule | None:
    """``module``, a kernel without a schedule, by ``recipe``; None where that cannot be.

    Raises:
        KeyError, TypeError, ValueError, RuntimeError: it is no recipe for this kernel.
    """
    if "trace" in recipe:
        schedule = s_tir.Schedule(module)
        s_tir.schedule.Trace.apply_json_to_schedule(recipe["trace"], schedule)
        return schedule.mod
    named = {type(rule).__name__: rule for rule in schedules.rules(target, opt_level)}
    rule = named[recipe["rule"]]
    return _by_rule(
        replace(rule, **recipe["numbers"]) if recipe["numbers"] else rule, module, target
    )


def _by_rule(rule: ScheduleRule, module: IRModule, target: Target) -> IRModule | None:
    schedule = schedules.scheduled(rule, module["main"], target)
    if schedule is None:
        return None
    return IRModule({"main": schedule.mod["main"].with_attr("tirx.is_scheduled", True)})


@dataclass(frozen=True)
class Best:
    """The fastest candidate so far."""

    recipe: Recipe
    module: IRModule
    kernel: Kernel
    seconds: float


class Contest:
    """What is tried in the place of a kernel as the rules schedule it.

    Args:
        own: that kernel.
        program: its module.
        trials: so many candidates may be measured.
        deadline: by :func:`time.monotonic`, after which none is.

    Attributes:
        seconds: of ``own``.
        best: the fastest candidate so far, if it is faster.
    """

    def __init__(
        self,
        device: Device,
        program: IRModule,
        own: Kernel,
        trials: int,
        deadline: float,
    ):
        self.trials, self.tried = trials, 0
        self.best: Best | None = None
        self._device, self._own = device, own
        self.seconds = own.seconds()
        self._deadline = deadline
        self._expected = own.results()
        self._known: dict[str, float | None] = {digest(program.script()): self.seconds}

    @property
    def open(self) -> bool:
        """Whether another candidate may be measured."""
        return self.tried < self.trials and time.monotonic() < self._deadline

    def enter(self, recipe: Recipe, module: IRModule | None) -> float | None:
        """Seconds of a candidate; None where it fails, or the contest is over."""
        if module is None:
            return None
        key = digest(module.script())
        if key not in self._known and self.open:
            self.tried += 1
            self._known[key] = self._measured(recipe, module)
        return self._known.get(key)

    def _measured(self, recipe: Recipe, module: IRModule) -> float | None:
        kernel = self._device.load(module)
        if kernel is None:
            return None
        leading = self.seconds if self.best is None else self.best.seconds
        try:
            seconds = kernel.seconds(leading)
            if seconds < leading and not _agree(kernel.results(), self._expected):
                return None
        except FAILED:
            self._device.check()
            return None
        if seconds < leading:
            self.best = Best(recipe, module, kernel, seconds)
        return seconds

    def decision(self) -> tuple[float, float | None]:
        """Seconds of the rules' kernel and of the best candidate, measured in turns."""
        if self.best is None:
            return self.seconds, None
        rivals = self._own, self.best.kernel
        rounds = [[kernel.seconds() for kernel in rivals] for _ in range(_ROUNDS)]
        own, best = map(min, zip(*rounds, strict=True))
        return own, best


def _agree(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return all(map(_close, found, expected))


def _close(found: np.ndarray, expected: np.ndarray) -> bool:
    """Integers and bools equal; floats to half of their digits, as sums may be reordered."""
    if expected.dtype.kind in "iub":
        return bool(np.array_equal(found, expected))
    bound = float(ml_dtypes.finfo(expected.dtype).eps) ** 0.5
    a, b = found.astype("float64"), expected.astype("float64")
    return bool(np.allclose(a, b, rtol=bound, atol=bound, equal_nan=True))


def own_rule(module: IRModule, target: Target, opt_level: int) -> ScheduleRule | None:
    """The rule that builds take for a kernel."""
    for rule in schedules.rules(target, opt_level):
        if _by_rule(rule, module, target) is not None:
            return rule
    return None


def enter_rules(contest: Contest, module: IRModule, target: Target, opt_level: int) -> None:
    """Enter every rule that takes the kernel, then other numbers of it, one number at a time.

    A number that was found to be better is kept while the next is tried.
    """

    def enter(rule: ScheduleRule) -> float | None:
        recipe = {"rule": type(rule).__name__, "numbers": changed(rule)}
        return contest.enter(recipe, _by_rule(rule, module, target))

    for rule in schedules.rules(target, opt_level):
        least = enter(rule)
        if least is None:
            continue
        for name, values in others(rule):
            for other in [replace(rule, **{name: value}) for value in values]:
                seconds = enter(other)
                if seconds is not None and seconds < least:
                    rule, least = other, seconds
