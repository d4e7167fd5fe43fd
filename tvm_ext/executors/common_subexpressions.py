"""Common subexpressions, except in kernels where TVM would use a name that is not defined there.

It looks for the first use among the places that it has counted, and replaces more than those: a
remainder within an index that as a whole is common, too, or what stands in the body of a ``Let``.
That may be before the definition, or behind the loop that it stands in.

Floats that are computed of indices or sizes get no name: TVM bounds what a name stands for, and
fails where one of them is multiplied or divided by another that is known only at run time.
"""

import tvm
import tvm_ffi
from tvm import IRModule, tirx
from tvm.tirx.analysis import undefined_vars

from ..schedules.statements import children, reads_memory, substituted

__all__ = ["common_subexpressions"]

_ELIMINATE = tirx.transform.CommonSubexprElim()


@tvm.transform.module_pass(opt_level=0, name="CommonSubexpressions")
def common_subexpressions(module: IRModule, _context: object) -> IRModule:
    """The module pass, on lowered kernels."""
    eliminated = _ELIMINATE(module)
    functions = {}
    for symbol, after in eliminated.functions_items():
        before = module[symbol.name_hint]
        sound = after if _is_sound(after) or not _is_sound(before) else before
        functions[symbol] = _without_floats_of_indices(sound)
    return IRModule(functions, attrs=eliminated.attrs)


def _is_sound(function: object) -> bool:
    """Whether every name is defined once, before it is used, and used where it is known."""
    if not isinstance(function, tirx.PrimFunc):
        return True
    try:
        undefined_vars(function.body, list(function.params))
    except tvm.error.InternalError:  # the only answer of the analysis where that does not hold
        return False
    return _stays_inside(function.body)


def _stays_inside(stmt: tirx.Stmt) -> bool:
    """Whether no name of a loop or a branch in ``stmt`` is used behind it."""
    gone: set[tirx.Var] = set()
    for child in children(stmt):
        if gone and not gone.isdisjoint(undefined_vars(child)):
            return False
        if not _stays_inside(child):
            return False
        if not isinstance(child, tirx.Bind):
            gone |= _named(child)
    return True


def _named(stmt: tirx.Stmt) -> set[tirx.Var]:
    found: set[tirx.Var] = set()
    tvm_ffi.structural_walk(stmt, (tirx.Bind, lambda node: found.add(node.var)))
    return found


def _without_floats_of_indices(function: object) -> object:
    if not isinstance(function, tirx.PrimFunc):
        return function
    values: dict[tirx.Var, tirx.Expr] = {}

    def unnamed(bind: tirx.Bind) -> tirx.Stmt:
        if not _is_of_indices(bind.value):
            return bind
        values[bind.var] = substituted(bind.value, values)
        return tirx.Evaluate(0)

    body = tvm_ffi.structural_map(function.body, (tirx.Bind, unnamed))
    return function.with_body(substituted(body, values)) if values else function


def _is_of_indices(value: tirx.Expr) -> bool:
    """Whether ``value`` is of floats, and indices or sizes are cast to floats in it."""
    if "float" not in str(value.ty.dtype) or reads_memory(value):
        return False
    casts: list[tirx.Cast] = []
    tvm_ffi.structural_walk(value, (tirx.Cast, casts.append))
    return any("int" in str(cast.value.ty.dtype) for cast in casts)
