"""LoopPartition, kept from cuts that may cross.

LoopPartition cuts a loop where a condition changes: one in a value that holds from a place on
gives the right pieces beside the guard of a vector. Of others it takes for granted that they change
one after the other. In ``select(k < 3, x[k], 0)`` under ``k < n`` they do not where n is 2: then
pieces overlap, lose conditions, and write beyond the buffers. Those are hidden from it, unless all
that changes in the loop does so in one order for every size; so are comparisons of other values
than integers, which it ends on.
"""

from collections.abc import Callable
from itertools import combinations

import tvm
import tvm_ffi
from tvm import IRModule, ir, s_tir, sym, tirx
from tvm.ir import Call
from tvm.tirx.analysis import undefined_vars

__all__ = ["partition_loops"]

_HINT = "pragma_loop_partition_hint"
_COMPARISONS = tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE
_HIDDEN = {kind: f"tvmx_hidden_{kind.__name__}" for kind in _COMPARISONS}
_SHOWN = {name: kind for kind, name in _HIDDEN.items()}


@tvm.transform.module_pass(opt_level=0, name="PartitionLoops")
def partition_loops(module: IRModule, _context: object) -> IRModule:
    """The module pass: LoopPartition, where loops that it would cut wrongly are left whole."""
    hidden = _mapped(module, _with_hidden_conditions)
    return _mapped(s_tir.transform.LoopPartition()(hidden), _with_shown_conditions)


def _mapped(module: IRModule, change: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> IRModule:
    functions = {
        symbol: change(function) if isinstance(function, tirx.PrimFunc) else function
        for symbol, function in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


def _with_hidden_conditions(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    hinted: list[tirx.For] = []

    def note(mark: tirx.AttrStmt) -> None:
        if mark.attr_key == _HINT and isinstance(mark.body, tirx.For):
            hinted.append(mark.body)

    tvm_ffi.structural_walk(kernel.body, (tirx.AttrStmt, note))
    hidden = [c for loop in hinted for c in (*_crossing(loop, kernel), *_of_others(loop))]

    def hide(comparison: tirx.Expr) -> tirx.Expr:
        if not any(tvm_ffi.structural_equal(comparison, other) for other in hidden):
            return comparison
        return tirx.call_pure_extern("bool", _HIDDEN[type(comparison)], comparison.a, comparison.b)

    if not hidden:
        return kernel
    return kernel.with_body(tvm_ffi.structural_map(kernel.body, (_COMPARISONS, hide)))


def _with_shown_conditions(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    def show(call: Call) -> tirx.Expr:
        name = call.args[0].value if call.args and isinstance(call.args[0], ir.StringImm) else ""
        return _SHOWN[name](*call.args[1:]) if name in _SHOWN else call

    return kernel.with_body(tvm_ffi.structural_map(kernel.body, (Call, show)))


def _crossing(loop: tirx.For, kernel: tirx.PrimFunc) -> list[tirx.Expr]:
    """What values in ``loop`` compare with its variable, where the order of changes is not known.

    None are where there is one that holds from a place on, as there are pieces for it before, at
    and behind the guard.
    """
    guards: list[tirx.Expr] = []
    tvm_ffi.structural_walk(
        loop.body, (tirx.IfThenElse, lambda node: guards.extend(_compared(node.condition, loop)))
    )
    inside = [c for c in _compared(loop.body, loop) if not _is_among(c, guards)]
    if not inside:
        return []
    found = [_place(comparison, loop.loop_var) for comparison in (*inside, *guards)]
    known = [place for place in found if place is not None]
    if len(inside) == 1 and found[0] is not None and found[0][0] > 0:
        return []
    if len(known) < len(found) or len({abs(step) for step, _ in known}) > 1:
        return inside
    places = [place for _, place in known]
    analyzer, lanes = _with_ranges(kernel, loop)
    first = [
        tvm_ffi.structural_map(place, (tirx.Var, lambda var: lanes.get(var, var)))
        for place in places[: len(inside)]
    ]
    ends = [] if guards else [loop.extent * abs(known[0][0])]
    pairs = [*combinations(places, 2), *((place, end) for place in first for end in ends)]
    ordered = all(
        analyzer.can_prove(a <= b) or analyzer.can_prove(a >= b) for a, b in pairs
    ) and all(analyzer.can_prove(place >= 0) for place in first)
    return [] if ordered else inside


def _compared(node: tirx.Stmt | tirx.Expr, loop: tirx.For) -> list[tirx.Expr]:
    """The comparisons of integers in ``node`` that use the variable of ``loop``."""
    return [c for c in _comparisons(node, loop) if "int" in str(c.a.ty.dtype)]


def _of_others(loop: tirx.For) -> list[tirx.Expr]:
    """The comparisons of other values than integers in ``loop`` that use its variable."""
    return [c for c in _comparisons(loop.body, loop) if "int" not in str(c.a.ty.dtype)]


def _comparisons(node: tirx.Stmt | tirx.Expr, loop: tirx.For) -> list[tirx.Expr]:
    """The different comparisons in ``node`` that use the variable of ``loop``."""
    found: list[tirx.Expr] = []

    def visit(comparison: tirx.Expr) -> None:
        uses = any(loop.loop_var.same_as(var) for var in undefined_vars(comparison))
        if uses and not _is_among(comparison, found):
            found.append(comparison)

    tvm_ffi.structural_walk(node, (_COMPARISONS, visit))
    return found


def _is_among(comparison: tirx.Expr, others: list[tirx.Expr]) -> bool:
    return any(tvm_ffi.structural_equal(comparison, other) for other in others)


def _place(comparison: tirx.Expr, var: tirx.Var) -> tuple[int, tirx.Expr] | None:
    """The factor of ``var``, and the multiple of ``var`` at which ``comparison`` changes.

    It holds from there on, or up to there where the factor is negative. None where there is no
    such place.
    """
    if isinstance(comparison, tirx.EQ | tirx.NE):
        return None
    a, b = comparison.a, comparison.b
    if isinstance(comparison, tirx.LT | tirx.LE):
        a, b = b, a
    strict = isinstance(comparison, tirx.LT | tirx.GT)
    parts = sym.detect_linear_equation(a - b, [var])  # true from 0 on, from 1 on where strict
    if len(parts) != 2 or not isinstance(parts[0], tirx.IntImm) or int(parts[0]) == 0:
        return None
    step, rest = int(parts[0]), parts[1] - int(strict)
    return step, -rest if step > 0 else rest + 1


def _with_ranges(
    kernel: tirx.PrimFunc, loop: tirx.For
) -> tuple[sym.Analyzer, dict[tirx.Var, tirx.Expr]]:
    """An analyzer that knows loops and that sizes are not negative; the first trips in ``loop``."""
    analyzer = sym.Analyzer()
    lanes: dict[tirx.Var, tirx.Expr] = {}

    def bind(inner: tirx.For) -> None:
        analyzer.bind(inner.loop_var, ir.Range.from_min_extent(inner.min, inner.extent))

    for parameter in kernel.params:
        for dim in getattr(parameter.ty, "shape", ()):
            if isinstance(dim, tirx.Var):
                analyzer.update(dim, sym.ConstIntBound(0, sym.ConstIntBound.POS_INF))
    tvm_ffi.structural_walk(kernel.body, (tirx.For, bind), order="pre")
    tvm_ffi.structural_walk(
        loop.body, (tirx.For, lambda inner: lanes.__setitem__(inner.loop_var, inner.min))
    )
    return analyzer, lanes
