"""Reductions over one element: what becomes of it is element-wise, and its block says so.

Without their loops, which are of one turn, nothing but the initial value would tell these blocks
from others, and what rules make of a block's update alone would begin with what is in memory.

Before: ``with T.init(): y[i] = 0``, then ``y[i] = y[i] + x[i + k]``, with ``k`` in ``range(1)``
After: ``y[i] = 0 + x[i + k]``, with ``k`` a spatial axis
"""

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock

from ..statements import with_value

__all__ = ["with_single_terms"]


def with_single_terms(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with a plain store for each reduction over one element into one buffer."""
    body = tvm_ffi.structural_map(func.body, (SBlock, _elementwise))
    if body.same_as(func.body):
        return func
    return tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)


def _elementwise(block: SBlock) -> SBlock:
    start, update = block.init, block.body
    if not isinstance(start, tirx.BufferStore) or not isinstance(update, tirx.BufferStore):
        return block
    if not all(_is_one(axis.dom.extent) for axis in block.iter_vars if _is_reduced(axis)):
        return block
    value = with_value(update.value, update.buffer, start.value)
    return SBlock(
        [_spatial(axis) if _is_reduced(axis) else axis for axis in block.iter_vars],
        block.reads,
        block.writes,
        block.name_hint,
        tirx.BufferStore(update.buffer, value, update.indices),
        None,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


def _is_reduced(axis: tirx.IterVar) -> bool:
    return axis.iter_type == tirx.IterVar.CommReduce


def _is_one(extent: ir.Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def _spatial(axis: tirx.IterVar) -> tirx.IterVar:
    return tirx.IterVar(axis.dom, axis.var, tirx.IterVar.DataPar)
