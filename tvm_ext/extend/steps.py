"""Passes and schedule rules that a plugin adds to every pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import FunctionType
from typing import Any, TypeVar

from tvm.s_tir import dlight as dl

from .. import pipeline
from ..errors import BuildError, PluginError, TvmExtError
from .plugin import current, place

__all__ = ["insert_everywhere", "step"]

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
        anchors = {"before": before, "after": after, "phase": phase}
        insert_everywhere(name, own, (target,) if target else (), opt_level, anchors, bound)
        current().steps.append(name)
        return run

    return add


def insert_everywhere(
    name: str,
    run: Any,
    kinds: Sequence[str],
    opt_level: int,
    anchors: Mapping[str, str | None],
    bound: float,
    undo: ExitStack | None = None,
) -> None:
    """Add a step to the default pipelines of these target kinds (none: of all).

    ``undo`` takes it back; by default that of the plugin which is loaded.

    Raises:
        PluginError: the anchor exists at no level, or the name is taken.
    """
    anchor = anchors["before"] or anchors["after"]

    def extend(steps: pipeline.Pipeline) -> pipeline.Pipeline:
        wanted = not kinds or steps.target.kind.name in kinds
        there = anchor is None or any(step.name == anchor for step in steps.steps)
        if not (wanted and there and steps.opt_level >= opt_level):
            return steps
        return steps.insert(name, run, bound=bound, **anchors)

    _try(extend, name, anchor, kinds)
    pipeline.EXTENSIONS.append(extend)
    stack = current().undo if undo is None else undo
    stack.callback(pipeline.EXTENSIONS.remove, extend)


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


def _try(extend, name: str, anchor: str | None, kinds: Sequence[str]) -> None:
    """Place the step once, to meet its errors where it is declared."""
    from .. import targets

    for candidate in kinds or ("llvm", "cuda"):
        steps = pipeline.default(targets.resolve(candidate), 3)
        known = [step.name for step in steps.steps]
        try:
            extend(steps)
        except ValueError as error:
            raise PluginError(f"step {name!r}: {error}") from error
        if anchor is None or anchor in known:
            return
    raise PluginError(f"step {name!r}: no step {anchor!r}; there are {known}")
