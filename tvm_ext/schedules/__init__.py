"""Schedule rules by target, most specific first: the first rule that applies wins."""

import tvm
from tvm.s_tir import dlight as dl
from tvm.target import Target

from .cuda import CUDA, SAFE
from .llvm import LLVM_CONTRACTIONS

__all__ = ["apply", "rules"]


def rules(target: Target, opt_level: int) -> tuple[dl.base.ScheduleRule, ...]:
    """The ordered rules of ``target`` at ``opt_level``."""
    if target.kind.name == "cuda":
        return CUDA if opt_level >= 2 else SAFE
    return LLVM_CONTRACTIONS


def apply(target: Target, opt_level: int) -> tvm.ir.transform.Pass:
    """The pass that schedules every kernel of a module."""

    @tvm.transform.module_pass(opt_level=0, name="ScheduleKernels")
    def schedule_kernels(module, _context):
        with target:
            return dl.ApplyDefaultSchedule(*rules(target, opt_level))(module)

    return schedule_kernels
