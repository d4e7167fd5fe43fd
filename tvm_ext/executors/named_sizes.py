"""Names for formulas of run-time sizes while passes run that need not see into them.

What a kernel of symbolic sizes divides these by, and what it chooses its tiles by, is the same all
over it. TVM simplifies it anew in each index and region, and draws conclusions from each condition
in all that stands beneath: most of what it takes to build such a model.

Before: ``if value(cost(n) <= other(n)): for t in (n + 27) // 28: y[min(t * 28, n - 28)] = ..``
Meanwhile: ``if condition: for t in size: ..``
"""

from collections.abc import Callable, Sequence

import tvm
import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.ir import TensorLoad
from tvm.ir.transform import Pass
from tvm.tirx.analysis import undefined_vars

from ..ops.formula import is_opaque
from ..schedules.statements import substituted

__all__ = ["with_named_conditions", "with_named_quotients"]

# Each variable and what it stands for.
_Names = dict[tirx.Var, tirx.Expr]
_Naming = Callable[[tirx.Stmt], tuple[tirx.Stmt, _Names]]


def with_named_quotients(passes: Sequence[Pass]) -> Pass:
    """``passes`` on kernels whose quotients and remainders of sizes have names."""
    kinds = (tirx.FloorDiv, tirx.FloorMod)
    return _with_names("NamedQuotients", kinds, lambda _division: True, passes)


def with_named_conditions(passes: Sequence[Pass]) -> Pass:
    """``passes`` on kernels whose opaque conditions on sizes have names."""
    return _with_names("NamedConditions", (ir.Call,), is_opaque, passes)


def _with_names(
    title: str, kinds: tuple, named: Callable[[ir.Expr], bool], passes: Sequence[Pass]
) -> Pass:
    inner = tvm.ir.transform.Sequential(list(passes))

    @tvm.transform.module_pass(opt_level=0, name=title)
    def run(module: IRModule, _context: object) -> IRModule:
        names: _Names = {}
        functions = {
            symbol: _renamed(function, kinds, named, names)
            for symbol, function in module.functions_items()
        }
        if not names:
            return inner(module)
        done = inner(IRModule(functions, attrs=module.attrs))
        functions = {
            symbol: function.with_body(substituted(function.body, names))
            if isinstance(function, tirx.PrimFunc)
            else function
            for symbol, function in done.functions_items()
        }
        return IRModule(functions, attrs=done.attrs)

    return run


def _renamed(
    function: ir.BaseFunc, kinds: tuple, named: Callable[[ir.Expr], bool], names: _Names
) -> ir.BaseFunc:
    """``function`` with names for its formulas; ``names`` receives these."""
    if not isinstance(function, tirx.PrimFunc):
        return function
    sizes = _sizes(function)
    if not sizes:
        return function
    own: _Names = {}

    def name(formula: ir.Expr) -> ir.Expr:
        if not named(formula) or not _is_of(formula, sizes, own):
            return formula
        whole = substituted(formula, own)
        for known, value in own.items():
            if tvm_ffi.structural_equal(value, whole):
                return known
        variable = tirx.Var("size", formula.ty)
        own[variable] = whole
        return variable

    body = tvm_ffi.structural_map(function.body, (kinds, name))
    names |= own
    return function.with_body(body)


def _sizes(function: tirx.PrimFunc) -> set[tirx.Var]:
    """What the dims of the parameters of ``function`` are in terms of, and its integers."""
    dims = (dim for param in function.params for dim in getattr(param.ty, "shape", []))
    found = {size for dim in dims for size in undefined_vars(dim)}
    return found | {p for p in function.params if "int" in str(getattr(p.ty, "dtype", ""))}


def _is_of(formula: ir.Expr, sizes: set[tirx.Var], names: _Names) -> bool:
    """Whether ``formula`` is of ``sizes`` and ``names`` of such formulas alone."""
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(formula, (TensorLoad, loads.append))
    return not loads and all(v in sizes or v in names for v in undefined_vars(formula))
