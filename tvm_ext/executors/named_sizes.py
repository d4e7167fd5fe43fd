"""Names for formulas of run-time sizes while passes run that need not see into them.

What a kernel of symbolic sizes divides these by, and what it chooses its tiles by, is the same all
over it. TVM simplifies it anew in each index and region, and draws conclusions from each condition
in all that stands beneath: most of what it takes to build such a model.

Before: ``if unseen(cost(n) <= other(n)): for t in (n + 27) // 28: y[min(t * 28, n - 28)] = ..``
Meanwhile: ``if condition: for t in size: ..``
"""

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.ir import TensorLoad
from tvm.ir.transform import Pass
from tvm.tirx.analysis import undefined_vars

from ..schedules.statements import is_unseen, substituted

__all__ = ["name_conditions", "name_quotients", "tell_conditions", "tell_quotients"]


def _passes(what: str, kinds: tuple, named: Callable[[ir.Expr], bool]) -> tuple[Pass, Pass]:
    """The module pass that gives names, and the one that puts the formulas back.

    Meanwhile a kernel has them among its attributes.
    """
    attribute = f"tvm_ext.named_{what.lower()}"

    def give(function: ir.BaseFunc) -> ir.BaseFunc:
        if not isinstance(function, tirx.PrimFunc):
            return function
        names: dict[tirx.Var, ir.Expr] = {}
        body = _named(function, kinds, named, names)
        return function.with_body(body).with_attr(attribute, names) if names else function

    def tell(function: ir.BaseFunc) -> ir.BaseFunc:
        names = function.attrs.get(attribute) if isinstance(function, tirx.PrimFunc) else None
        if names is None:
            return function
        body = substituted(function.body, dict(names.items()))
        return function.with_body(body).without_attr(attribute)

    return _of_each(f"Name{what}", give), _of_each(f"Tell{what}", tell)


def _of_each(title: str, rewritten: Callable[[ir.BaseFunc], ir.BaseFunc]) -> Pass:
    @tvm.transform.module_pass(opt_level=0, name=title)
    def run(module: IRModule, _context: object) -> IRModule:
        functions = {symbol: rewritten(function) for symbol, function in module.functions_items()}
        return IRModule(functions, attrs=module.attrs)

    return run


def _named(
    function: tirx.PrimFunc,
    kinds: tuple,
    named: Callable[[ir.Expr], bool],
    names: dict[tirx.Var, ir.Expr],
) -> tirx.Stmt:
    """The body of ``function`` with names for formulas of its sizes; ``names`` receives these."""
    sizes = _sizes(function)
    if not sizes:
        return function.body

    def name(formula: ir.Expr) -> ir.Expr:
        if not named(formula) or not _is_of(formula, sizes | names.keys()):
            return formula
        whole = substituted(formula, names)
        for known, value in names.items():
            if tvm_ffi.structural_equal(value, whole):
                return known
        variable = tirx.Var("size", formula.ty)
        names[variable] = whole
        return variable

    return tvm_ffi.structural_map(function.body, (kinds, name))


def _sizes(function: tirx.PrimFunc) -> set[tirx.Var]:
    """What the dims of the parameters of ``function`` are in terms of, and its integers."""
    dims = (dim for param in function.params for dim in getattr(param.ty, "shape", []))
    found = {size for dim in dims for size in undefined_vars(dim)}
    return found | {p for p in function.params if "int" in str(getattr(p.ty, "dtype", ""))}


def _is_of(formula: ir.Expr, sizes: set[tirx.Var]) -> bool:
    """Whether ``formula`` is of ``sizes`` alone."""
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(formula, (TensorLoad, loads.append))
    return not loads and sizes.issuperset(undefined_vars(formula))


#: Of quotients and remainders of sizes.
name_quotients, tell_quotients = _passes(
    "Quotients", (tirx.FloorDiv, tirx.FloorMod), lambda _division: True
)
#: Of unseen conditions on sizes.
name_conditions, tell_conditions = _passes("Conditions", (ir.Call,), is_unseen)
