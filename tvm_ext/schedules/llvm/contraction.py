"""What the rules for convolutions and matrix products ask of a kernel."""

from tvm import tirx
from tvm.s_tir import SBlock

__all__ = ["axis_kinds", "divisors", "is_static"]


def divisors(extent: int, limit: int) -> list[int]:
    """The divisors of ``extent`` up to ``limit``, ascending."""
    return [d for d in range(1, min(extent, limit) + 1) if extent % d == 0]


def axis_kinds(block: SBlock) -> str:
    """A letter per iteration axis: S(patial), R(eduction), O(ther)."""
    letters = {tirx.IterVar.DataPar: "S", tirx.IterVar.CommReduce: "R"}
    return "".join(letters.get(axis.iter_type, "O") for axis in block.iter_vars)


def is_static(func: tirx.PrimFunc) -> bool:
    """Whether all parameters are buffers of static, non-zero shape."""
    return all(
        tirx.is_buffer_var(param)
        and all(isinstance(d, tirx.IntImm) and int(d) > 0 for d in param.ty.shape)
        for param in func.params
    )
