"""Scratch memory that a thread takes once for some turns of a parallel loop.

To ask for it takes as long as a short row, and behind each call registers are filled again.

Before: ``for i in T.parallel(n): row = alloc(k); ...``
After:  ``for part in T.parallel(ceildiv(n, turns)): row = alloc(k); for i in turns of part: ...``
"""

from itertools import takewhile

import tvm
from tvm import IRModule, tirx
from tvm.tirx.analysis import undefined_vars

from ..schedules.statements import children, map_children, substituted

__all__ = ["scratch_of_parts"]

# At most so many turns in a part; and so many parts where there are as many turns, for loops are
# shared among the cores by parts.
_TURNS, _PARTS = 16, 64


@tvm.transform.module_pass(opt_level=0, name="ScratchOfParts")
def scratch_of_parts(module: IRModule, _context: object) -> IRModule:
    """The module pass, on lowered kernels."""
    functions = {
        symbol: function.with_body(_rewritten(function.body))
        if isinstance(function, tirx.PrimFunc)
        else function
        for symbol, function in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


def _rewritten(stmt: tirx.Stmt) -> tirx.Stmt:
    if not isinstance(stmt, tirx.For) or stmt.kind != tirx.ForKind.PARALLEL:
        return map_children(stmt, _rewritten)
    body = children(stmt.body) if isinstance(stmt.body, tirx.SeqStmt) else [stmt.body]
    arrays = list(takewhile(lambda each: isinstance(each, tirx.AllocBuffer), body))
    if not any(map(_is_symbolic, arrays)) or any(_differs(a, stmt.loop_var) for a in arrays):
        return stmt
    first, *others = body[len(arrays) :]
    return _in_parts(stmt, arrays, tirx.SeqStmt([first, *others]) if others else first)


def _is_symbolic(array: tirx.AllocBuffer) -> bool:
    """Whether ``array`` has a size of run time, and so no place on the stack."""
    return not all(isinstance(extent, tirx.IntImm) for extent in array.buffer.ty.shape)


def _differs(array: tirx.AllocBuffer, turn: tirx.Var) -> bool:
    return any(turn.same_as(var) for size in array.buffer.ty.shape for var in undefined_vars(size))


def _in_parts(loop: tirx.For, arrays: list[tirx.Stmt], body: tirx.Stmt) -> tirx.For:
    def number(value: int) -> tirx.IntImm:
        return tirx.const(value, loop.loop_var.ty)

    extent = loop.extent
    turns = tirx.max(tirx.min(tirx.truncdiv(extent, number(_PARTS)), number(_TURNS)), number(1))
    part = tirx.Var("part", loop.loop_var.ty)
    turn = tirx.Var("turn", loop.loop_var.ty)
    first = part * turns
    inner = tirx.For(
        turn,
        number(0),
        tirx.min(turns, extent - first),
        tirx.ForKind.SERIAL,
        substituted(body, {loop.loop_var: loop.min + first + turn}),
    )
    parts = tirx.truncdiv(extent + turns - number(1), turns)
    return tirx.For(part, number(0), parts, loop.kind, tirx.SeqStmt([*arrays, inner]))
