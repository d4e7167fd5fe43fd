"""Schedule rules by target, most specific first: the first rule that applies wins."""

import logging
from functools import lru_cache

import tvm
import tvm_ffi
from tvm import tirx
from tvm.error import InternalError
from tvm.s_tir import SBlock, Schedule, ScheduleError
from tvm.s_tir import dlight as dl
from tvm.target import Target

from .c import C_SOURCE
from .cuda import CUDA, SAFE
from .llvm import LLVM_CONTRACTIONS, LLVM_GENERIC, LLVM_SIMPLE

__all__ = ["apply", "rules", "scheduled"]

_LOG = logging.getLogger(__name__)


def rules(target: Target, opt_level: int) -> tuple[dl.base.ScheduleRule, ...]:
    """The ordered rules of ``target`` at ``opt_level``."""
    if target.kind.name == "cuda":
        return CUDA if opt_level >= 2 else SAFE
    if target.kind.name == "c":
        return C_SOURCE
    return (*LLVM_CONTRACTIONS, *LLVM_GENERIC) if opt_level else LLVM_SIMPLE


class _OrNext(dl.base.ScheduleRule):
    """A rule that leaves a kernel to the next one where a primitive refuses it, or breaks."""

    def __init__(self, rule: dl.base.ScheduleRule):
        self.rule = rule
        # To look whether such a rule takes a kernel costs more than to see that it sums nothing.
        self.asks_sums = rule in LLVM_CONTRACTIONS

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Schedule | None:
        if self.asks_sums and not _sums(func):
            return None
        try:
            return self.rule.apply(func, target, tunable)
        except (ScheduleError, InternalError) as error:
            reason = str(error).strip().splitlines()[0]
            _LOG.debug("%s failed: %s", type(self.rule).__name__, reason)
            return None


@lru_cache(maxsize=4)  # each rule asks, of each kernel
def _sums(func: object) -> bool:
    """Whether a block of ``func`` reduces, to a maximum, say."""
    found: list[tirx.IterVar] = []

    def visit(block: SBlock) -> None:
        found.extend(axis for axis in block.iter_vars if axis.iter_type != tirx.IterVar.DataPar)

    tvm_ffi.structural_walk(func, (SBlock, visit))
    return bool(found)


def scheduled(rule: dl.base.ScheduleRule, func: tirx.PrimFunc, target: Target) -> Schedule | None:
    """``func`` by one rule; None where it is not that rule's, or a primitive refuses it."""
    with target:
        return _OrNext(rule).apply(func, target, False)


def apply(target: Target, opt_level: int) -> tvm.ir.transform.Pass:
    """The pass that schedules every kernel of a module.

    An unscheduled kernel is right on a CPU, if slow. On a GPU it would be left on the host, so the
    last rule of cuda must not fail: what it raises ends the build.
    """
    *first, last = rules(target, opt_level)
    ordered = [*map(_OrNext, first), last if target.kind.name == "cuda" else _OrNext(last)]

    @tvm.transform.module_pass(opt_level=0, name="ScheduleKernels")
    def schedule_kernels(module, _context):
        with target:
            return dl.ApplyDefaultSchedule(*ordered)(module)

    return schedule_kernels
