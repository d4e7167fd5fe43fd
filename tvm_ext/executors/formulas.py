"""Formulas of integers in C: of sizes, and of values that are read as a plan runs."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

__all__ = ["NotStatic", "c_text"]


class NotStatic(Exception):
    """The module needs what a plan does not have: sizes that loops compute, sequences, strings.

    ``variable`` is the one of ``main`` that cannot be computed so, where it is one.
    """

    variable: str | None = None


_OPERATORS: dict[type, str] = {
    tirx.Add: "plus({}, {})",
    tirx.Sub: "minus({}, {})",
    tirx.Mul: "times({}, {})",
    tirx.Div: "quotient({}, {})",
    tirx.Mod: "remainder_of({}, {})",
    tirx.FloorDiv: "floor_div({}, {})",
    tirx.FloorMod: "floor_mod({}, {})",
    tirx.Min: "lower({}, {})",
    tirx.Max: "upper({}, {})",
    tirx.EQ: "({} == {})",
    tirx.NE: "({} != {})",
    tirx.LT: "({} < {})",
    tirx.LE: "({} <= {})",
    tirx.GT: "({} > {})",
    tirx.GE: "({} >= {})",
    tirx.And: "({} && {})",
    tirx.Or: "({} || {})",
}


def c_text(formula: Any) -> str:
    """A formula of sizes in C.

    Raises:
        NotStatic: it is none of integers.
    """
    if isinstance(formula, int | tirx.IntImm):
        return f"INT64_C({int(formula)})"
    if isinstance(formula, tirx.Var):
        return formula.name
    pattern = _OPERATORS.get(type(formula))
    if pattern is not None:
        return pattern.format(c_text(formula.a), c_text(formula.b))
    if isinstance(formula, tirx.Not):
        return f"(!{c_text(formula.a)})"
    if isinstance(formula, tirx.Cast) and tvm.DataType(str(formula.ty.dtype)).type_code < 2:
        return f"({formula.ty.dtype}_t)({c_text(formula.value)})"
    if not isinstance(formula, tirx.Select):
        raise NotStatic(f"the formula {formula}")
    parts = formula.condition, formula.true_value, formula.false_value
    return "({} ? {} : {})".format(*map(c_text, parts))
