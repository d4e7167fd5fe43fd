"""What kernels do with the tiles of AMX: :mod:`tvm_ext.executors.tiles` has the functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import ir, tirx
from tvm.s_tir import SBlock

from .matmul_rows import term_of
from .register_tiles import int64, sequence

__all__ = [
    "COLUMNS",
    "TILE",
    "WORD_BYTES",
    "Ahead",
    "are_lines",
    "begun",
    "dots_of",
    "fills_tiles",
    "multiplied",
]

# As tvm_ext.ops has them.
_DOTS = "tirx.tvm_ext.bfloat16_dot", "tirx.tvm_ext.integer_dot"
# The names of functions, by the type of sums.
_KINDS = {"float32": "", "int32": "bytes_"}

#: Rows of a tile at most, and its words in a row; columns of two tiles.
TILE = 16
COLUMNS = 2 * TILE
WORD_BYTES = 4

# How many times faster tiles are than vectors, of float32 or of words of bytes.
_FASTER = 8
# The same where words are made for each window's line. Two Emerald Rapids cores, stride 2: 16
# filters of 3x3x3, 640 x 640 pixels, 0.95 ms, in vectors 0.67 to 1.0; 64 of 7x7x3, 224 x 224
# pixels, 0.46 and 0.95 ms.
_FASTER_BY_LINES = 4
# What stands for a symbolic number of parts that a panel is fetched in.
_MANY_PARTS = 4


def dots_of(product: SBlock) -> tuple[ir.TensorLoad, ir.TensorLoad] | None:
    """The words, left and right, that a step of ``product`` multiplies; None of another term."""
    term = term_of(product)
    if not isinstance(term, ir.Call) or getattr(term.op, "name", "") not in _DOTS:
        return None
    left, right = term.args
    loads = isinstance(left, ir.TensorLoad) and isinstance(right, ir.TensorLoad)
    return (left, right) if loads else None


def fills_tiles(
    filters: int, channels: int, factors: int, vector: int, groups: int, columns: int = 1
) -> bool:
    """Whether a convolution in tiles, as full as they would be, is faster than one in vectors.

    Args:
        channels: of each group.
        factors: in a word.
        vector: the filters that are summed side by side without tiles.
        columns: of a window, whose channels are those of a word together.
    """

    def used(count: int, size: int) -> float:
        return count / (-(-count // size) * size)

    depth = TILE * factors
    apart = groups == 1 or (filters // groups % COLUMNS == channels % depth == 0)
    gain = _FASTER if columns == 1 else _FASTER_BY_LINES
    faster = used(filters, COLUMNS) * used(channels * columns, depth) * gain
    return apart and faster >= used(filters, vector)


def are_lines(window: Sequence[int], dilations: Sequence[int]) -> bool:
    """Whether the pixels of a window's line are neighbours, in several lines."""
    rows, columns = window
    return rows > 1 < columns and dilations[1] == 1


def begun(stmt: tirx.Stmt, rows: int) -> tirx.Stmt:
    """``stmt`` while this thread has the registers of tiles, those of the left side of ``rows``."""
    return sequence([_call("begin", int64(rows)), stmt, _call("end")])


def multiplied(
    sums: tirx.Var,
    left: Sequence[ir.TensorLoad],
    right: ir.TensorLoad,
    walk: Sequence[tuple[int, int]],
    pitch: int,
    ahead: Ahead | None = None,
) -> tirx.Stmt:
    """``sums[16 * tiles, 32]`` becomes the product of tiles that begin at ``left`` and ``right``.

    Args:
        left: an element for each tile of rows, one or two; ``pitch`` bytes from a row to the next.
        walk: how often it moves on, and by how many bytes, in three loops.
        ahead: what to ask memory for meanwhile.
    """
    ahead = ahead or Ahead(right, 0)
    zero, last = [int64(0)] * 2, [int64(int(extent) - 1) for extent in sums.ty.shape]
    places = [tirx.BufferLoad(sums, zero), tirx.BufferLoad(sums, last), left[0], left[-1], right]
    numbers = [int64(number) for pair in walk for number in pair]
    kind = _KINDS[str(sums.ty.dtype.dtype)]
    name, first = f"{kind}{len(left)}_{ahead.lines}", tirx.address_of(ahead.first)
    return _call(name, *map(tirx.address_of, places), *numbers, int64(pitch), first)


def _call(name: str, *operands: tirx.Expr) -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_extern("int32", f"tvmx_tiles_{name}", *operands))


@dataclass(frozen=True)
class Ahead:
    """Weights that are wanted soon: ``lines`` of the cache in each step, from ``first`` on."""

    first: ir.TensorLoad
    lines: int

    @classmethod
    def panel(
        cls, weights: tirx.Var, panel: tirx.Expr, part: tirx.Expr, parts: tirx.Expr | int
    ) -> Ahead:
        """A ``part`` of a ``panel``, of so many."""
        parts = int(parts) if isinstance(parts, int | tirx.IntImm) else _MANY_PARTS
        steps = prod(map(int, weights.ty.shape[1:])) // (TILE * COLUMNS)
        pairs = -(-TILE // parts)  # of lines, as long as a row
        first = [panel, *[int64(0)] * (len(weights.ty.shape) - 3), part * (steps * pairs), int64(0)]
        return cls(tirx.BufferLoad(weights, first), 2 * pairs)
