"""Kernels that only give a tensor another shape: the executors turn them into views."""

from tvm import tirx
from tvm.error import InternalError
from tvm.relax.analysis import has_reshape_pattern

__all__ = ["is_reshape"]


def is_reshape(func: tirx.PrimFunc) -> bool | None:
    """Whether TVM finds that ``func``, as it was before any schedule, is a reshape; None where its
    search ends with an error: a kernel that divides by a sum of dims is none."""
    try:
        return bool(has_reshape_pattern(func))
    except InternalError:
        return None
