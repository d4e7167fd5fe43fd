"""``tune=``: kernels that are measured to be faster than those that our rules choose.

A build needs no tuning: rules pick tiles in milliseconds, from what is known of the machine. Who
has seconds per kernel can spend them once. Candidates are the rules with other numbers, other rules
that take the kernel, and schedules that TVM's meta_schedule finds; a folder keeps what was
measured, and a kernel is replaced only where a candidate was faster than the rules' own.
"""

from .records import TunedKernel, TuningReport
from .step import Tuned, Tuning

__all__ = ["Tuned", "TunedKernel", "Tuning", "TuningReport"]
