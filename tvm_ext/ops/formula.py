"""Scalar formulas whose shared parts are evaluated once.

A TVM expression is a tree: a subexpression that a formula uses twice is there twice, and a
formula of formulas grows exponentially. ``once`` names a value; the outermost ``formula`` binds
all names in front of the result, in order.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps

import tvm
from tvm import tirx
from tvm.ir import register_op_attr
from tvm.tirx.expr import CallEffectKind

__all__ = ["formula", "number", "once", "once_bits", "opaque"]

Scalar = Callable[..., tirx.Expr]

# An identity that TVM believes to read state. Its simplifier replaces the name of a pure value
# by the value itself, in every place, and a formula of formulas grows exponentially again.
_VALUE = "tirx.tvm_ext.value"
register_op_attr(_VALUE, "TCallEffectKind", CallEffectKind.ReadState.value)
register_op_attr(_VALUE, "TVectorizable", True)
register_op_attr(_VALUE, "TScriptPrinterName", "tvm_ext_value", level=20)
tirx.op.register_intrin_lowering(_VALUE, target="default", f=lambda call: call.args[0])


@dataclass
class _Bindings:
    shared: bool
    bound: list[tuple[tirx.Var, tirx.Expr]] = field(default_factory=list)


_bindings: ContextVar[_Bindings | None] = ContextVar("bindings", default=None)


def formula(function: Scalar, shared: bool = True) -> Scalar:
    """Let ``function`` (of scalar expressions, to one) use ``once``.

    Without ``shared`` the values named there are repeated all the same.
    """

    @wraps(function)
    def evaluate(*operands: tirx.Expr, **attributes: object) -> tirx.Expr:
        if _bindings.get() is not None:  # part of an outer formula
            return function(*operands, **attributes)
        names = _Bindings(shared)
        token = _bindings.set(names)
        try:
            result = function(*operands, **attributes)
        finally:
            _bindings.reset(token)
        for name, value in reversed(names.bound):
            result = tirx.Let(name, value, result)
        return result

    return evaluate


def once(value: tirx.Expr) -> tirx.Expr:
    """A name for ``value``, which is evaluated once. Only inside a ``formula``."""
    names = _bindings.get()
    if names is None or not names.shared:
        return value
    if isinstance(value, tirx.Var | tirx.IntImm | tirx.FloatImm):
        return value
    if "int" in str(value.ty.dtype):
        return value  # TVM takes integer names for indices, and changes their width
    name = tirx.Var("t", value.ty)
    names.bound.append((name, opaque(value)))
    return name


def number(value: float, dtype: str) -> tirx.Expr:
    """A literal of a float type. TVM takes a product by a literal 0 for 0, that of infinity too."""
    literal = tirx.const(float(value), dtype)
    return literal if value else opaque(literal)


def opaque(value: tirx.Expr) -> tirx.Expr:
    """``value``, which TVM's simplifier does not look into."""
    return tirx.call_intrin(value.ty, _VALUE, value)


def once_bits(value: tirx.Expr) -> tirx.Expr:
    """A name for an integer of 32 or 64 bits, as ``once`` for what is none: that of a float."""
    bits = tvm.DataType(str(value.ty.dtype)).bits
    # Unsigned, else TVM makes an int64 that came from an int32 one again: it may be an index.
    unsigned = value.astype(f"uint{bits}")
    return tirx.reinterpret(value.ty, once(tirx.reinterpret(f"float{bits}", unsigned)))
