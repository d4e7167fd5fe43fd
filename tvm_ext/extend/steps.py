"""Passes and schedule rules that a plugin adds to every pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import FunctionType
from typing import Any, TypeVar

import tvm
from onnx_ir.passes import PassBase
from tvm.s_tir import dlight as dl

from .. import pipeline
from ..errors import OptionError, PluginError, unknown
from ..places import caller, place
from .declared import check_kind, check_parameters
from .plugin import INTERACTIVE, current

__all__ = ["insert_everywhere", "step"]

Run = TypeVar("Run")

_PASSES = dl.base.ScheduleRule, tvm.ir.transform.Pass, PassBase


def step(
    name: str,
    *,
    before: str | None = None,
    after: str | None = None,
    phase: str | None = None,
    target: str | None = None,
    opt_level: int = 1,
    bound: float = 1e-4,
    seconds: float | None = pipeline.SECONDS,
) -> Callable[[Run], Run]:
    """Decorate a step of every default pipeline: a pass, an ONNX rewrite, a schedule rule.

    Args:
        name: of the step, as ``tvm-ext inspect --passes`` prints it.
        before, after, phase: its place, as in :meth:`tvm_ext.pipeline.Pipeline.insert`.
        target: the target kind that has it; None: all.
        opt_level: the least level that has it. A level without the anchor lacks the step, too.
        bound: how far it may move a float32 answer ``y``, as a part of ``1 + |y|``.
        seconds: after which a build that is still in it is ended; None: never.

    Raises:
        PluginError: the anchor exists at no level, the name is taken, or what is decorated is no
            step.
    """
    if not isinstance(name, str):
        raise PluginError('a step has a name: @step("name", after="FuseTIR")')
    if target is not None:
        check_kind(target, f"step {name!r}")
    if opt_level not in (0, 1, 2, 3):
        raise PluginError(f"step {name!r}: opt_level is 0, 1, 2 or 3, not {opt_level!r}")

    def add(run: Run) -> Run:
        made = run() if isinstance(run, type) and issubclass(run, _PASSES) else run
        where = place(made.__code__) if isinstance(made, FunctionType) else caller()
        if not isinstance(made, _PASSES):
            check_parameters(made, ("the model or module",), f"step {name!r}")
        anchors = {"before": before, "after": after, "phase": phase}
        kinds = (target,) if target else ()
        plugin, undo = current(), ExitStack()
        if plugin is INTERACTIVE and name in plugin.steps:  # a notebook's cell that runs again
            plugin.steps.pop(name).close()
        insert_everywhere(
            name, made, kinds, opt_level, anchors, bound, undo, seconds=seconds, where=where
        )
        plugin.steps[name] = undo
        plugin.undo.push(undo)
        return run

    return add


def insert_everywhere(
    name: str,
    run: Any,
    kinds: Sequence[str],
    opt_level: int,
    anchors: Mapping[str, str | None],
    bound: float,
    undo: ExitStack,
    *,
    seconds: float | None = None,
    where: str = "",
) -> None:
    """Add a step to the default pipelines of these target kinds (none: of all).

    ``undo`` is given what takes it back.

    Raises:
        PluginError: the anchor exists at no level, or the name is taken.
    """
    anchor = anchors["before"] or anchors["after"]

    def extend(steps: pipeline.Pipeline) -> pipeline.Pipeline:
        wanted = not kinds or steps.target.kind.name in kinds
        there = anchor is None or any(step.name == anchor for step in steps.steps)
        if not (wanted and there and steps.opt_level >= opt_level):
            return steps
        return steps.insert(name, run, bound=bound, seconds=seconds, where=where, **anchors)

    _try(extend, name, anchor, kinds)
    pipeline.EXTENSIONS.append(extend)
    undo.callback(pipeline.EXTENSIONS.remove, extend)


def _try(extend, name: str, anchor: str | None, kinds: Sequence[str]) -> None:
    """Place the step once, to meet its errors where it is declared."""
    from .. import targets

    known: dict[str, None] = {}
    for candidate in kinds or ("llvm", "cuda"):
        steps = pipeline.default(targets.resolve(candidate), 3)
        known |= dict.fromkeys(step.name for step in steps.steps)
        try:
            extend(steps)
        except OptionError as error:
            raise PluginError(f"step {name!r}: {error}") from error
        if anchor is None or anchor in known:
            return
    raise PluginError(f"step {name!r}: {unknown('step', str(anchor), known)}")
