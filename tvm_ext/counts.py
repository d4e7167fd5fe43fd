"""How much a kernel does, as a number or as a formula of the sizes that a call brings.

Part of what loading a model needs: nothing here imports TVM. A formula is what JSON holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["OPERATORS", "SIZE", "Count", "counted"]

#: A number, ``[SIZE, input, axis]``, or an operator's name and its two operands.
Count = int | list

SIZE = "size"

#: Those of formulas, by name; what is divided by 0 is 0.
OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
}


def counted(count: Count, shapes: Sequence[Sequence[int]]) -> int:
    """The number that ``count`` is for inputs of such ``shapes``."""
    if isinstance(count, int):
        return count
    name, first, second = count
    if name == SIZE:
        return shapes[first][second]
    return OPERATORS[name](counted(first, shapes), counted(second, shapes))
