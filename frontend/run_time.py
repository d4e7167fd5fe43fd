"""Asserts of the numbers that nodes are given as tensors, known only at run time.

Each emits checks (:meth:`.builder.Builder.check`) and changes no value.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from tvm import relax, tirx

from tvm_ext.ops import verdicts

from .builder import Builder, Dim
from .known import as_expr

__all__ = ["demand_axes", "demand_holds", "demand_parts", "demand_range", "demand_within", "raw"]


def raw(bb: Builder, values: relax.Expr, neutral: int = 0) -> list[Dim]:
    """The elements of a tensor of integers, which may be negative: for checks alone.

    Of one whose number of elements is known only at run time they are the least and the greatest
    of them and of ``neutral``.
    """
    known = bb.static(values)
    if known is not None:
        return [v if isinstance(v, tirx.Expr) else int(v) for v in known.flat]
    if bb.static_shape(values) is None:
        values = bb.emit_te(verdicts.extremes, values, neutral)
    elif bb.rank(values) != 1:
        values = bb.reshape(values, [int(np.prod(bb.static_shape(values)))])
    dims = [bb.fresh_dim() for _ in range(bb.shape(values)[0])]
    bb.bind(values, dims)
    return dims


def demand_within(bb: Builder, values: Sequence[Dim], what: str, least: int, most: int) -> None:
    """Assert that ``values``, each of which ``what`` names, are no less and no more than these."""
    low, high = (tirx.const(bound, "int64") for bound in (least, most))
    bb.check(
        *(
            (
                value,
                tirx.max(tirx.min(value, high), low),
                f"{what} is {{given}}, not {least}..{most}",
            )
            for value in map(as_expr, values)
        )
    )


def demand_range(
    bb: Builder, value: Dim, what: str, least: Dim | None = None, most: Dim | None = None
) -> None:
    """Assert that ``value``, which ``what`` names, is no less and no more than these dims."""
    bounds = (least, tirx.max, "less"), (most, tirx.min, "more")
    value = as_expr(value)
    bb.check(
        *(
            (value, nearest(value, as_expr(bound)), f"{what} is {{given}}, {word} than {{wanted}}")
            for bound, nearest, word in bounds
            if bound is not None
        )
    )


def demand_parts(bb: Builder, size: Dim, parts: Dim, what: str) -> None:
    """Assert that ``size``, which ``what`` names, is a multiple of ``parts``."""
    rest = bb.simplify(as_expr(size) % parts)
    whole = bb.simplify(as_expr(size) - rest)
    bb.check((size, whole, f"{what} is {{given}}, which is no multiple of {parts}"))


def demand_holds(bb: Builder, *conditions: tuple[tirx.Expr, str]) -> None:
    """Assert conditions; behind each what is told where it does not hold."""
    one, zero = map(as_expr, (1, 0))
    bb.check(*((_either(holds, one, zero), one, reason) for holds, reason in conditions))


def demand_axes(bb: Builder, axes: relax.Expr, rank: int, what: str = "an axis") -> list[Dim]:
    """Assert that a tensor names axes of ``rank``, each but once.

    Returns them as counted from the front; none where their number is known only at run time.
    """
    given = raw(bb, axes)
    demand_within(bb, given, what, -rank, rank - 1)
    if bb.static_shape(axes) is None:
        return []
    found = [_either(axis < 0, axis + rank, axis) for axis in map(as_expr, given)]
    none = as_expr(-1)
    bb.check(
        *(
            (_either(a == b, b, none), none, f"{what} is {{given}} twice")
            for a, b in combinations(found, 2)
        )
    )
    return found


def _either(condition: tirx.Expr, yes: tirx.Expr, no: tirx.Expr) -> tirx.Expr:
    if isinstance(condition, tirx.IntImm):
        return yes if int(condition) else no
    return tirx.Select(condition, yes, no)
