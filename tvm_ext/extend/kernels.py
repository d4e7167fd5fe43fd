"""Schedules for the kernels of one operator: how they find them, and what a failure means."""

from __future__ import annotations

import logging
from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import IRModule, s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir import dlight as dl
from tvm.target import Target

from ..errors import BuildError
from ..passes.compound import COMPOSITE
from ..pipeline import Pipeline
from ..places import place, raised_at
from ..schedules.cuda.checked import flaw

__all__ = ["MARK", "OperatorRule", "insert_rule", "mark_kernels"]

_log = logging.getLogger("tvm_ext.extend")

#: The attribute of a kernel, then of its blocks, that names the operator it was emitted for.
MARK = "tvm_ext.operator"
#: The least opt level that uses schedules of plugins: below it each kernel is scheduled safely.
LEVEL = 2

Edit = Callable[[Schedule, Target], None]


class OperatorRule(dl.base.ScheduleRule):
    """A plugin's rule, asked only for kernels that hold blocks of its operator.

    It passes a kernel on by ``NotImplementedError`` or a refused primitive (``ScheduleError``);
    ``declined`` has the reasons. Any other exception ends the build.
    """

    def __init__(self, operator: str, kind: str, rule: dl.base.ScheduleRule | Edit):
        self.operator = operator
        self.kind = kind
        self.rule = rule
        self.declined: list[str] = []

    @property
    def name(self) -> str:
        """Of its step in the pipeline."""
        return f"{self.operator}:{self.kind}"

    @property
    def place(self) -> str:
        """File and line."""
        rule = self.rule.apply if isinstance(self.rule, dl.base.ScheduleRule) else self.rule
        return place(rule.__code__)

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Schedule | None:
        """The scheduled kernel, or None for the next rule."""
        if self.operator not in _owners(func):
            return None
        try:
            schedule = self._scheduled(func, target, tunable)
        except (NotImplementedError, ScheduleError, InternalError) as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            self.declined.append(lines[0] if lines else repr(error))
            _log.info("%s declines: %s", self.place, self.declined[-1])
            return None
        except Exception as error:
            raise self._failure(f"{type(error).__name__}: {error}", error) from error
        if schedule is not None and self.kind == "cuda":
            reason = flaw(schedule.mod["main"], target)
            if reason is not None:
                raise self._failure(reason)
        return schedule

    def _scheduled(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Schedule | None:
        if isinstance(self.rule, dl.base.ScheduleRule):
            return self.rule.apply(func, target, tunable)
        schedule = Schedule(func)
        self.rule(schedule, target)
        return schedule

    def _failure(self, reason: str, error: Exception | None = None) -> BuildError:
        where = self.place if error is None else raised_at(error, self.place)
        return BuildError(f"the {self.kind} schedule of {self.operator}, {where}: {reason}")


def insert_rule(steps: Pipeline, rule: OperatorRule) -> Pipeline:
    """``steps`` with ``rule`` before the built-in ones, where target and level ask for it."""
    if rule.kind != steps.target.kind.name or steps.opt_level < LEVEL:
        return steps
    if not any(step.name == mark_kernels.info.name for step in steps.steps):
        steps = steps.insert(
            mark_kernels.info.name, mark_kernels, after="LegalizeOps", seconds=None, where=""
        )
    return steps.insert(rule.name, rule, before="ScheduleKernels", where=rule.place)


@tvm.transform.module_pass(opt_level=0, name="MarkOperatorKernels")
def mark_kernels(module: IRModule, _context: object) -> IRModule:
    """Move :data:`MARK` from kernels to their blocks: fusion drops the attributes of kernels.

    Before::

        def normalise(...):              T.func_attr({"tvm_ext.operator": "com.acme.Norm-1"})
            with T.sblock("row_sum"): ...

    After::

        def normalise(...):
            with T.sblock("row_sum"): T.sblock_attr({"tvm_ext.operator": "com.acme.Norm-1"})
    """
    module = module.clone()
    for gv, func in module.functions_items():
        owner = _declared(func)
        if owner is not None:
            schedule = Schedule(func, debug_mask="none")
            for block in schedule.get_child_blocks(schedule.get_sblock(func.body.block.name_hint)):
                schedule.annotate(block, MARK, owner)
            module.update_func(gv, schedule.mod["main"].without_attr(MARK))
    return module


def _declared(func: tvm.ir.BaseFunc) -> str | None:
    """The operator or compound that a kernel was emitted for."""
    if not isinstance(func, tirx.PrimFunc) or not func.attrs:
        return None
    return func.attrs.get(MARK, None) or func.attrs.get(COMPOSITE, None)


def _owners(func: tirx.PrimFunc) -> set[str]:
    """The operators whose blocks ``func`` holds."""
    found: set[str] = set()

    def visit(block: s_tir.SBlock) -> None:
        if MARK in block.annotations:
            found.add(str(block.annotations[MARK]))

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, visit), order="pre")
    return found
