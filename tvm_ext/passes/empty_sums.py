"""Reductions over no element become their initial values, and kernels without a result nothing.

TVM starts a sum at its first term: of several axes, of which one has no element, it starts none,
and the result is what was in memory. Where it looks into what makes no element, it refuses to
divide by a size, or a sum, of 0.

Before: ``for i, j in grid(2, 0): with T.init(): y[0] = 0``, then ``y[0] = y[0] + x[i, j]``
After: ``y[0] = 0``
"""

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import SBlock

from tvm_ext.schedules.statements import map_children

from .facts import is_empty

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
    return any(is_empty(param.ty.shape) for param in func.params if tirx.is_buffer_var(param))


def _started(func: tirx.PrimFunc) -> tirx.PrimFunc:
    written = _written(func)
    if not written or not all(is_empty(buffer.ty.shape) for buffer in written):
        return func.with_body(_without_terms(func.body, []))
    nothing = SBlock([], [], [], "root", tirx.Evaluate(0))
    idle = func.with_body(s_tir.SBlockRealize([], tirx.const(True), nothing))
    return idle.with_attr("tirx.is_scheduled", True)


def _written(func: tirx.PrimFunc) -> list[tirx.Var]:
    """The parameters that ``func`` writes."""
    stored: list[tirx.Var] = []
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, lambda stmt: stored.append(stmt.buffer)))
    return [param for param in func.params if any(param.same_as(buffer) for buffer in stored)]


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
    terms = [axis.dom.extent for axis in block.iter_vars if _is_reduced(axis)]
    return block.init is not None and is_empty(terms)


def _is_reduced(axis: tirx.IterVar) -> bool:
    return axis.iter_type == tirx.IterVar.CommReduce


def _start_of(block: SBlock) -> SBlock:
    return SBlock(
        [axis for axis in block.iter_vars if not _is_reduced(axis)],
        [],
        block.writes,
        block.name_hint,
        tvm_ffi.structural_map(block.init, (tirx.FloatImm, _unfolded)),
        None,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


def _unfolded(number: tirx.FloatImm) -> tirx.Expr:
    """0 as the absolute value of it, which nothing folds: TVM refuses to fold a division by it."""
    return number if number.value else tirx.call_intrin(number.ty, "tirx.fabs", number)
