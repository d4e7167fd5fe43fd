"""Passes and schedule rules that a plugin adds to every pipeline."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from tvm.s_tir import dlight as dl

from .. import pipeline
from ..errors import BuildError, PluginError, TvmExtError
from .plugin import current, place

__all__ = ["step"]

Run = TypeVar("Run")


def step(
    name: str,
    *,
    before: str | None = None,
    after: str | None = None,
    phase: str | None = None,
    target: str | None = None,
    opt_level: int = 1,
    bound: float = 1e-4,
) -> Callable[[Run], Run]:
    """Decorate a step of every default pipeline: a pass, an ONNX rewrite, a schedule rule.

    Args:
        name: of the step, as ``tvm-ext inspect --passes`` prints it.
        before, after, phase: its place, as in :meth:`tvm_ext.pipeline.Pipeline.insert`.
        target: the target kind that has it; None: all.
        opt_level: the least level that has it. A level without the anchor lacks the step, too.
        bound: how far it may move a float32 answer ``y``, as a part of ``1 + |y|``.

    Raises:
        PluginError: the anchor exists at no level, or the name is taken.
    """

    def add(run: Run) -> Run:
        made = run() if isinstance(run, type) and issubclass(run, dl.base.ScheduleRule) else run
        own = _named(name, made) if isinstance(made, FunctionType) else made

        def extend(steps: pipeline.Pipeline) -> pipeline.Pipeline:
            wanted = target in (None, steps.target.kind.name) and steps.opt_level >= opt_level
            anchor = before or after
            there = anchor is None or any(step.name == anchor for step in steps.steps)
            if not (wanted and there):
                return steps
            return steps.insert(name, own, before=before, after=after, phase=phase, bound=bound)

        _try(extend, name, before or after, target)
        pipeline.EXTENSIONS.append(extend)
        plugin = current()
        plugin.steps.append(name)
        plugin.undo.callback(pipeline.EXTENSIONS.remove, extend)
        return run

    return add


def _named(name: str, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``run``, whose errors say where the step stands."""

    def named(value: Any) -> Any:
        try:
            return run(value)
        except TvmExtError:
            raise
        except Exception as error:
            where = place(run.__code__)
            reason = f"{type(error).__name__}: {error}"
            raise BuildError(f"step {name!r}, {where}: {reason}") from error

    return named


def _try(extend, name: str, anchor: str | None, kind: str | None) -> None:
    """Place the step once, to meet its errors where it is declared."""
    from .. import targets

    for candidate in [kind] if kind else ["llvm", "cuda"]:
        steps = pipeline.default(targets.resolve(candidate), 3)
        known = [step.name for step in steps.steps]
        try:
            extend(steps)
        except ValueError as error:
            raise PluginError(f"step {name!r}: {error}") from error
        if anchor is None or anchor in known:
            return
    raise PluginError(f"step {name!r}: no step {anchor!r}; there are {known}")
