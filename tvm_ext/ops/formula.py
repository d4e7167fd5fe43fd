"""Scalar formulas whose shared parts are evaluated once.

A TVM expression is a tree: a subexpression that a formula uses twice is there twice, and a
formula of formulas grows exponentially. ``once`` names a value; the outermost ``formula`` binds
all names in front of the result, in order.
"""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps

from tvm import tirx

__all__ = ["formula", "once"]

Scalar = Callable[..., tirx.Expr]

_bindings: ContextVar[list[tuple[tirx.Var, tirx.Expr]] | None] = ContextVar(
    "bindings", default=None
)


def formula(function: Scalar) -> Scalar:
    """Let ``function`` (of scalar expressions, to one) use ``once``."""

    @wraps(function)
    def evaluate(*operands: tirx.Expr, **attributes: object) -> tirx.Expr:
        if _bindings.get() is not None:  # part of an outer formula
            return function(*operands, **attributes)
        token = _bindings.set([])
        try:
            result = function(*operands, **attributes)
            for name, value in reversed(_bindings.get()):
                result = tirx.Let(name, value, result)
            return result
        finally:
            _bindings.reset(token)

    return evaluate


def once(value: tirx.Expr) -> tirx.Expr:
    """A name for ``value``, which is evaluated once. Only inside a ``formula``."""
    if isinstance(value, tirx.Var | tirx.IntImm | tirx.FloatImm):
        return value
    name = tirx.Var("t", value.ty)
    _bindings.get().append((name, value))
    return name
