"""Reductions over no element become their initial values.

TVM starts a sum at its first term: of several axes, of which one has no element, it starts none,
and the result is what was in memory.

Before: ``for i, j in grid(2, 0): with T.init(): y[0] = 0``, then ``y[0] = y[0] + x[i, j]``
After: ``y[0] = 0``
"""

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import SBlock

from tvm_ext.schedules.statements import map_children

__all__ = ["empty_sums"]


@tvm.transform.module_pass(opt_level=0, name="EmptySums")
def empty_sums(module, _context):
    """The module pass, over kernels that take a tensor without elements."""
    updates = {
        symbol: _started(func)
        for symbol, func in module.functions_items()
        if isinstance(func, tirx.PrimFunc) and _takes_nothing(func)
    }
    if updates:
        module = module.clone()
        module.update(tvm.IRModule(updates))
    return module


def _takes_nothing(func: tirx.PrimFunc) -> bool:
    buffers = filter(tirx.is_buffer_var, func.params)
    return any(_is_0(dim) for buffer in buffers for dim in buffer.ty.shape)


def _is_0(extent: tirx.Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 0


def _started(func: tirx.PrimFunc) -> tirx.PrimFunc:
    body = _without_terms(func.body, [])
    return tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)


def _without_terms(stmt: tirx.Stmt, loops: list[tirx.Var]) -> tirx.Stmt:
    """``stmt`` with what sums start with in place of those of no terms; adds the loops over these
    to ``loops``, from the innermost."""
    if isinstance(stmt, tirx.For):
        rebuilt = map_children(stmt, lambda body: _without_terms(body, loops))
        return rebuilt.body if any(rebuilt.loop_var.same_as(var) for var in loops) else rebuilt
    if isinstance(stmt, s_tir.SBlockRealize) and _has_no_terms(stmt.block):
        pairs = list(zip(stmt.block.iter_vars, stmt.iter_values, strict=True))
        loops += [value for axis, value in pairs if _is_reduced(axis)]
        kept = [value for axis, value in pairs if not _is_reduced(axis)]
        return s_tir.SBlockRealize(kept, stmt.predicate, _start_of(stmt.block))
    return map_children(stmt, lambda child: _without_terms(child, loops))


def _has_no_terms(block: SBlock) -> bool:
    reduced = filter(_is_reduced, block.iter_vars)
    return block.init is not None and any(_is_0(axis.dom.extent) for axis in reduced)


def _is_reduced(axis: tirx.IterVar) -> bool:
    return axis.iter_type == tirx.IterVar.CommReduce


def _start_of(block: SBlock) -> SBlock:
    return SBlock(
        [axis for axis in block.iter_vars if not _is_reduced(axis)],
        [],
        block.writes,
        block.name_hint,
        block.init,
        None,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
