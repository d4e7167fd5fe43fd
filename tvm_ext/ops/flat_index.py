"""Positions in several axes and in one: what computes over flattened batches have in common."""

from collections.abc import Sequence

from tvm import tirx

__all__ = ["broadcast_index", "flatten_index", "unflatten_index"]


def unflatten_index(index: tirx.Expr, extents: Sequence[tirx.Expr | int]) -> list:
    """The multi-index of a flat position in ``extents``."""
    result = []
    for k in reversed(range(len(extents))):
        first = all(_is_one(extent) for extent in extents[:k])
        result.append(index if first else index % extents[k])
        index = tirx.const(0, "int32") if first else index // extents[k]
    return result[::-1]


def _is_one(extent: tirx.Expr | int) -> bool:
    return isinstance(extent, int | tirx.IntImm) and int(extent) == 1


def flatten_index(index: Sequence, extents: Sequence[tirx.Expr | int]) -> tirx.Expr:
    """The flat position of a multi-index in ``extents``."""
    flat = tirx.const(0, "int32")
    for i, extent in zip(index, extents, strict=True):
        flat = flat * extent + i
    return flat


def broadcast_index(index: Sequence, extents: Sequence[int]) -> list:
    """The last axes of ``index``, 0 where ``extents`` is 1."""
    aligned = index[len(index) - len(extents) :]
    return [i if extent > 1 else 0 for i, extent in zip(aligned, extents, strict=True)]
