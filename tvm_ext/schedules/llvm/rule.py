"""The guard that rules on loop nests share."""

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.cpu.base import CPUScheduleRule
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from ..machine import Machine
from .loops import normal_form

__all__ = ["LoopNestRule"]


class LoopNestRule(CPUScheduleRule):
    """A rule for kernels that have a normal form (see :func:`normal_form`)."""

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> Schedule | None:
        """The scheduled kernel; None where it is not this rule's."""
        form = normal_form(func) if self.is_target_available(target) else None
        return None if form is None else self.schedule(func, *form, Machine.of(target))

    def schedule(
        self, func: tirx.PrimFunc, sch: Schedule, blocks: list[SBlockRV], machine: Machine
    ) -> Schedule | None:
        """``func`` scheduled, where ``sch`` holds its normal form of ``blocks``; None: declined."""
        raise NotImplementedError
