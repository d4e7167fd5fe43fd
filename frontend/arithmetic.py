"""Sums and products that converters compose operators of; the operands broadcast."""

import numpy as np
from tvm import relax

from tvm_ext.ops import arithmetic as ops

from .broadcasting import emit_broadcast
from .builder import Builder

__all__ = ["added", "multiplied", "scaled", "shifted", "subtracted"]


def added(bb: Builder, a: relax.Expr, b: relax.Expr) -> relax.Var:
    """``a + b``."""
    return emit_broadcast(bb, relax.op.add, ops.add, a, b)


def subtracted(bb: Builder, a: relax.Expr, b: relax.Expr) -> relax.Var:
    """``a - b``."""
    return emit_broadcast(bb, relax.op.subtract, ops.sub, a, b)


def multiplied(bb: Builder, a: relax.Expr, b: relax.Expr) -> relax.Var:
    """``a * b``."""
    return emit_broadcast(bb, relax.op.multiply, ops.mul, a, b)


def scaled(bb: Builder, x: relax.Expr, factor: float) -> relax.Expr:
    """``factor * x``, in the type of ``x``."""
    if factor == 1:
        return x
    return bb.emit(relax.op.multiply(x, bb.const(np.asarray(factor), bb.dtype(x))))


def shifted(bb: Builder, x: relax.Expr, term: object) -> relax.Expr:
    """``x + term``, a number or an array that broadcasts, in the type of ``x``."""
    return bb.emit(relax.op.add(x, bb.const(np.asarray(term), bb.dtype(x))))
