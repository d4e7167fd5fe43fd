"""What is done with vectors of lanes in loops that are built: folds, transposes, tails."""

from __future__ import annotations

from tvm import tirx

from .register_tiles import int64, lanewise, loop, parts, var

__all__ = ["folded", "folded_rows", "put", "some", "transposed", "vectors"]


def put(buffer: tirx.Var, value: tirx.Expr, *place: tirx.Expr) -> tirx.Stmt:
    """The store of ``value`` at a place of ``buffer``."""
    return tirx.BufferStore(buffer, value, list(place))


def some(extent: int, sizes: list[int]):
    """The pieces of ``extent`` that there are."""
    return ((size, at, int(count)) for size, at, count in parts(extent, sizes) if int(count))


def transposed(tile, other, lanes: int) -> tuple[list[tirx.Stmt], tirx.Var]:
    """The transpose of ``tile[lanes, lanes]``, and which of the two buffers it is in then.

    Blocks off the diagonal change places, of half the rows, of a quarter, down to single elements.
    """
    made, half, vector = [], lanes // 2, tirx.Ramp(int64(0), int64(1), max(lanes, 2))
    while half:
        for row in (r for r in range(lanes) if not r & half):
            both = [tirx.BufferLoad(tile, [int64(r), vector]) for r in (row, row + half)]
            upper = [c if not c & half else lanes + c - half for c in range(lanes)]
            lower = [c + half if not c & half else lanes + c for c in range(lanes)]
            for place, chosen in ((row, upper), (row + half, lower)):
                made.append(put(other, tirx.Shuffle(both, chosen), int64(place), vector))
        tile, other, half = other, tile, half // 2
    return made, tile


def folded_rows(buffer, count: int, first: int = 0) -> list[tirx.Stmt]:
    """The sum of each of ``count`` rows of as many lanes, one after the other in the ``first``.

    Two rows become one of halves, each half of a part of a row added to the other, again and again:
    two shuffles and a sum for each row that is done with.
    """
    lanes = tirx.Ramp(int64(0), int64(1), count) if count > 1 else int64(0)
    made, rows, part = [], count, count
    while rows > 1:
        rows, half = rows // 2, part // 2
        starts = [row * count + at for row in range(2) for at in range(0, count, part)]
        for row in range(rows):
            both = [tirx.BufferLoad(buffer, [int64(first + 2 * row + k), lanes]) for k in range(2)]
            low, high = (
                tirx.Shuffle(both, [start + shift + k for start in starts for k in range(half)])
                for shift in (0, half)
            )
            made.append(tirx.BufferStore(buffer, low + high, [int64(first + row), lanes]))
        part = half
    return made


def vectors(count, lanes: int, statement) -> list[tirx.Stmt]:
    """``statement(lane, place)`` of ``count`` elements; those of no whole vector in lane 0."""
    made = []
    for size, first, n in parts(count, [lanes, 1]):
        turn = var("turn")

        def both(lane, at=first + turn * size):
            return statement(lane, at + lane)

        made.append(loop(turn, n, lanewise(0, size, both)))
    return made


def folded(buffer, row, lanes: int, combine) -> list[tirx.Stmt]:
    """The lanes of a row of ``buffer`` combined, in the first."""
    made = []
    while lanes > 1:
        lanes //= 2

        def half(lane, lanes=lanes):
            value = combine(buffer[row, lane], buffer[row, lane + lanes])
            return tirx.BufferStore(buffer, value, [row, lane])

        made.append(lanewise(0, lanes, half))
    return made
