"""Asserts of indices known only at run time: those that lie beyond their axis end the run.

Kernels stay inside their tensors whatever they are given, so that the checks may wait: a tiny
kernel finds the least and the greatest index, and what follows is fused as if it was not there.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import onnx_ir as ir
from tvm import relax, tirx

from tvm_ext.ops import verdicts

from .bounds import KEEP_VALUES, Bounds, bounds, column_bounds
from .builder import Builder, Dim
from .known import as_expr

__all__ = ["demand_between", "demand_columns", "demand_indices"]

_Row = tuple[Dim, Dim, str]  # the least and the most that are allowed, and what they are of


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
    demand_between(bb, indices, *_limits(bb, extent, negative), what)


def demand_between(
    bb: Builder, values: relax.Expr, least: Dim, most: Dim, what: str, but: int | None = None
) -> None:
    """Assert that integers, which ``what`` names, are no less and no more than these; 0 is one.

    Those that are ``but`` may be there, too.
    """
    if bb.walk is None:  # TVM's importer calls the converter
        return
    value = _value(bb, values)
    known = bounds(bb, value) if value is not None else None
    if _inside(bb, known, least, most):
        return
    source, types = _source(bb, value) if value is not None else (values, [])
    key = "extremes", source, *types, but
    _demand(bb, key, [(least, most, what)], verdicts.extremes, source, 0, types, but)


def demand_columns(
    bb: Builder, indices: relax.Expr, axes: Sequence[int], shape: Sequence[Dim]
) -> None:
    """Assert that the places along the last axis of ``indices`` are on ``axes``, one on each."""
    if bb.walk is None or not axes:
        return
    value, limits = _value(bb, indices), [_limits(bb, shape[axis], True) for axis in axes]
    known = [None] * len(axes) if value is None else column_bounds(bb, value, len(axes))
    if all(_inside(bb, k, *limit) for k, limit in zip(known, limits, strict=True)):
        return
    rows = [(*k, f"an index on axis {axis}") for axis, k in zip(axes, limits, strict=True)]
    _demand(bb, ("columns", indices), rows, verdicts.column_extremes, indices)


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


def _demand(bb: Builder, key: Hashable, rows: Sequence[_Row], verdict: object, *given: object):
    """Assert that the numbers which ``verdict`` finds are between two, for each row.

    What was found of the same values, by ``key``, is not looked for again.
    """
    limits = key, str([row[:2] for row in rows])
    if limits in bb.seen:
        return
    if key not in bb.seen:
        bb.seen[key] = bb.emit_te(verdict, *given)
    found = bb.seen[limits] = bb.seen[key]
    bb.later(lambda: _check(bb, found, rows))


def _check(bb: Builder, found: relax.Expr, rows: Sequence[_Row]) -> None:
    """Emit the check of a least and a greatest number for each row."""
    dims = [bb.fresh_dim("index") for _ in range(2 * len(rows))]
    bb.bind(found, dims)
    checks = []
    for (least, most, what), low, high in zip(rows, dims[::2], dims[1::2], strict=True):
        less, more = ", less than {wanted}", ", more than {wanted}"
        if isinstance(least, int) and isinstance(most, int):
            less = more = f", not {least}..{most}"
        least, most = as_expr(least), as_expr(most)
        checks.append((low, tirx.max(low, least), f"{what} is {{given}}{less}"))
        checks.append((high, tirx.min(high, most), f"{what} is {{given}}{more}"))
    bb.check(*checks)


def _value(bb: Builder, operand: relax.Expr) -> ir.Value | None:
    """The input of the node that ``operand`` is."""
    inputs = [x for x in bb.node.inputs if x is not None]
    return next((x for x in inputs if operand.same_as(bb.walk.values.get(x))), None)


def _source(bb: Builder, value: ir.Value) -> tuple[relax.Expr, list[str]]:
    """A value of the same elements, and the types that they are given one after the other.

    So kernels that read ``value`` alone are fused with what makes it.
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
