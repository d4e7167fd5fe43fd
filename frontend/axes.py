"""Axes as ONNX counts them: from the front, or negative from the back."""

from collections.abc import Iterable

__all__ = ["placed", "placed_all"]


def placed(axis: int, rank: int) -> int:
    """``axis`` counted from the front.

    Raises:
        ValueError: there is no such axis.
    """
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank


def placed_all(axes: Iterable[int], rank: int) -> list[int]:
    """Several axes, in the order given.

    Raises:
        ValueError: there is no such axis, or one is given twice.
    """
    found = [placed(axis, rank) for axis in axes]
    if len(set(found)) < len(found):
        raise ValueError(f"axes {found} are not all different")
    return found
