"""Asserts of indices known only at run time: those that lie beyond their axis end the run.

Kernels stay inside their tensors whatever they are given, so that the checks may wait: a tiny
kernel finds the least and the greatest index, and what follows is fused as if it was not there.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from tvm import relax, tirx

from tvm_ext.ops import verdicts

from .bounds import KEEP_VALUES, Bounds, bounds, column_bounds
from .builder import Builder, Dim
from .known import as_expr

__all__ = ["demand_columns", "demand_indices"]


def demand_indices(
    bb: Builder,
    indices: relax.Expr,
    extent: Dim,
    what: str = "an index",
    *,
    negative: bool = True,
) -> None:
    """Assert that all ``indices``, which ``what`` names, are places on an axis of ``extent``.

    ``negative``: places may be counted from the end.
    """
    if bb.walk is None:  # TVM's importer calls the converter
        return
    value = _value(bb, indices)
    known = bounds(bb, value) if value is not None else None
    least, most = _limits(bb, extent, negative)
    if _inside(bb, known, least, most):
        return
    source, types = _source(bb, value) if value is not None else (indices, [])
    found = bb.emit_te(verdicts.extremes, source, 0, types)
    bb.later(lambda: _demand(bb, found, [(least, most, what)]))


def demand_columns(
    bb: Builder, indices: relax.Expr, axes: Sequence[int], shape: Sequence[Dim]
) -> None:
    """The same of the places along the last axis of ``indices``, one for each of ``axes``."""
    if bb.walk is None or not axes:
        return
    value, limits = _value(bb, indices), [_limits(bb, shape[axis], True) for axis in axes]
    known = [None] * len(axes) if value is None else column_bounds(bb, value, len(axes))
    if all(_inside(bb, k, *limit) for k, limit in zip(known, limits, strict=True)):
        return
    found = bb.emit_te(verdicts.column_extremes, indices)
    rows = [(*k, f"an index on axis {axis}") for axis, k in zip(axes, limits, strict=True)]
    bb.later(lambda: _demand(bb, found, rows))


def _limits(bb: Builder, extent: Dim, negative: bool) -> Bounds:
    """Between which numbers indices are; 0 is there in any case, for where there are none."""
    count = bb.simplify(tirx.max(as_expr(extent), as_expr(1)))
    return bb.simplify(0 - as_expr(count)) if negative else 0, bb.simplify(as_expr(count) - 1)


def _inside(bb: Builder, known: Bounds | None, least: Dim, most: Dim) -> bool:
    """Whether what is known of indices says that they are between two numbers."""
    if known is None:
        return False
    low, high, least, most = map(as_expr, (*known, least, most))
    return bb.proves(low >= least) and bb.proves(high <= most)


def _demand(bb: Builder, found: relax.Expr, rows: Sequence[tuple[Dim, Dim, str]]) -> None:
    """Assert that a least and a greatest number are between two, for each row."""
    dims = [bb.fresh_dim("index") for _ in range(2 * len(rows))]
    bb.bind(found, dims)
    checks = []
    for (least, most, what), low, high in zip(rows, dims[::2], dims[1::2], strict=True):
        beyond = ", less than {wanted}", ", more than {wanted}"
        if isinstance(least, int) and isinstance(most, int):
            beyond = (f", not {least}..{most}",) * 2
        least, most = as_expr(least), as_expr(most)
        checks.append((low, tirx.max(low, least), f"{what} is {{given}}{beyond[0]}"))
        checks.append((high, tirx.min(high, most), f"{what} is {{given}}{beyond[1]}"))
    bb.check(*checks)


def _value(bb: Builder, operand: relax.Expr) -> ir.Value | None:
    """The input of the node that ``operand`` is."""
    inputs = [x for x in bb.node.inputs if x is not None]
    return next((x for x in inputs if operand.same_as(bb.walk.values.get(x))), None)


def _source(bb: Builder, value: ir.Value) -> tuple[relax.Expr, list[str]]:
    """A value of the same elements, and the types that they are given one after the other.

    Its kernels read ``value`` alone, and are fused with what reads that, too.
    """
    types: list[str] = []
    while (node := value.producer()) is not None and node.graph is bb.node.graph:
        source = node.inputs[0] if node.inputs else None
        made = None if source is None else bb.walk.values.get(source)
        if node.domain or not isinstance(made, relax.Var) or "int" not in bb.dtype(made):
            break
        if node.op_type == "Cast":
            types.insert(0, bb.dtype(bb.walk.values[value]))
        elif node.op_type not in KEEP_VALUES:
            break
        value = source
    return bb.walk.values[value], types
