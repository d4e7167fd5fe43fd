"""Float arithmetic as it is written: TVM's simplifier knows no rounding, infinities and NaN.

Fused kernels have such expressions, of rounding by a large number, of ``x - x`` for zeros that keep
NaN, of ``not x < y``, which holds for NaN, too.

Before: ``x + c - c``, which becomes ``x``; ``not x < y``, which becomes ``y <= x``
After:  ``kept(x + c) - c``; ``not kept(x < y)``. What is kept is its operand once intrinsics are
        lowered.
"""

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import IRModule, tirx
from tvm.ir import register_op_attr
from tvm.tirx.expr import CallEffectKind

__all__ = ["exact_floats"]

_KEPT = "tirx.tvm_ext.kept"
register_op_attr(_KEPT, "TCallEffectKind", CallEffectKind.Pure.value)
register_op_attr(_KEPT, "TVectorizable", True)
register_op_attr(_KEPT, "TScriptPrinterName", "tvm_ext_kept", level=20)
tirx.op.register_intrin_lowering(_KEPT, target="default", f=lambda call: call.args[0])

_SUMS = (tirx.Add, tirx.Sub)
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_BOTH = (tirx.And, tirx.Or)


@tvm.transform.module_pass(opt_level=0, name="ExactFloats")
def exact_floats(module: IRModule, _context: object) -> IRModule:
    """The module pass, on scheduled kernels, before any simplification."""
    functions = {
        symbol: function.with_body(tvm_ffi.structural_map(function.body, _CALLBACKS))
        if isinstance(function, tirx.PrimFunc)
        else function
        for symbol, function in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


def _sum(node: tirx.Expr) -> tirx.Expr:
    """A sum or difference: of equal terms, of a sum that has the other term, of two choices."""
    if not _is_float(node):
        return node
    a, b, kind = node.a, node.b, type(node)
    if _has_term(a, b) or _choose_alike(a, b) or (kind is tirx.Sub and _equal(a, b)):
        return kind(_kept(a), b)
    return kind(a, _kept(b)) if _has_term(b, a) else node


def _has_term(value: tirx.Expr, term: tirx.Expr) -> bool:
    return isinstance(value, _SUMS) and (_equal(value.a, term) or _equal(value.b, term))


def _choose_alike(a: tirx.Expr, b: tirx.Expr) -> bool:
    both = isinstance(a, tirx.Select) and isinstance(b, tirx.Select)
    return both and _equal(a.condition, b.condition)


def _comparison(node: tirx.Expr) -> tirx.Expr:
    if _is_float(node.a) and _equal(node.a, node.b):
        return type(node)(_kept(node.a), node.b)
    return node


def _not(node: tirx.Not) -> tirx.Expr:
    return tirx.Not(_kept(node.a)) if _compares_floats(node.a) else node


def _both(node: tirx.Expr) -> tirx.Expr:
    a, b = (_kept(x) if _compares_floats(x) else x for x in (node.a, node.b))
    return node if a is node.a and b is node.b else type(node)(a, b)


def _kept(value: tirx.Expr) -> tirx.Expr:
    return tirx.call_intrin(value.ty, _KEPT, value)


def _compares_floats(value: tirx.Expr) -> bool:
    return isinstance(value, _COMPARISONS) and _is_float(value.a)


def _is_float(value: tirx.Expr) -> bool:
    return "float" in str(value.ty.dtype)


def _equal(a: tirx.Expr, b: tirx.Expr) -> bool:
    return type(a) is type(b) and tvm_ffi.structural_equal(a, b)


_CALLBACKS: list[tuple[type, Callable[..., tirx.Expr]]] = [
    *((kind, _sum) for kind in _SUMS),
    *((kind, _comparison) for kind in _COMPARISONS),
    *((kind, _both) for kind in _BOTH),
    (tirx.Not, _not),
]
