"""Scheduled kernels as loops over buffers of several dims, the form that is printed."""

from __future__ import annotations

import tvm
from tvm import IRModule, s_tir, tirx

from ...executors.exact_floats import exact_floats

__all__ = ["lower_to_loops"]

_BLOCKS, _LOOPS = s_tir.transform, tirx.transform

# TVM's lowering without what makes text long: buffers keep their dims, loops are neither cut nor
# unrolled, no value is named that the formulas do not name.
_PASSES = (
    exact_floats,
    _BLOCKS.CanonicalizeLoop(),
    _BLOCKS.LowerInitBlock(),
    _BLOCKS.PlanAndUpdateBufferAllocationLocation(),
    _BLOCKS.ConvertBlocksToOpaque(),
    _BLOCKS.CompactBufferAllocation(),
    _BLOCKS.LowerMatchBuffer(),
    _BLOCKS.StmtSimplify(),
    _BLOCKS.LowerOpaqueBlock(),
    _LOOPS.NarrowDataType(32),
    _LOOPS.StmtSimplify(),
    _LOOPS.RemoveNoOp(),
)


def lower_to_loops(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """``kernel`` without blocks, its indices as narrow as 32 bits allow."""
    return tvm.transform.Sequential(list(_PASSES))(IRModule({"kernel": kernel}))["kernel"]
