"""Tiles: the pieces of an operator that fit the scratchpad, chosen by what they cost.

The cost is that of the device's own model in ``device/npu.h``. Tiles need not divide: the last
one of an axis is smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import ceil, prod

__all__ = ["Geometry", "Tile", "conv_tile", "halves", "pool_tile", "ranges"]

Pair = tuple[int, int]


@dataclass(frozen=True)
class Geometry:
    """A window over ``[channels, *size]`` that gives ``[filters, *outputs]``.

    ``pads`` are those before the input, along rows and along columns.
    """

    channels: int
    size: Pair
    filters: int
    outputs: Pair
    kernel: Pair
    strides: Pair
    pads: Pair

    def seen(self, axis: int, first: int, last: int) -> tuple[int, int, int]:
        """The input that outputs ``first:last`` of an axis see: begin, end, pad before it."""
        begin = first * self.strides[axis] - self.pads[axis]
        end = (last - 1) * self.strides[axis] - self.pads[axis] + self.kernel[axis]
        inside = max(begin, 0)
        return inside, min(end, self.size[axis]), inside - begin

    def most_seen(self, axis: int, outputs: int) -> int:
        """The most input that so many outputs in a row see."""
        return min((outputs - 1) * self.strides[axis] + self.kernel[axis], self.size[axis])

    @property
    def taps(self) -> int:
        return prod(self.kernel)


@dataclass(frozen=True)
class Tile:
    """The most filters, channels, rows and columns that are in the scratchpad at once."""

    filters: int
    channels: int
    rows: int
    columns: int

    def input_floats(self, over: Geometry) -> int:
        return self.channels * over.most_seen(0, self.rows) * over.most_seen(1, self.columns)

    @property
    def output_floats(self) -> int:
        return self.filters * self.rows * self.columns

    def weight_floats(self, over: Geometry) -> int:
        return self.filters * self.channels * over.taps


@cache
def conv_tile(over: Geometry, capacity: int) -> Tile | None:
    """The cheapest tile of a convolution whose input, weights, bias and output fit together."""

    def fits(tile: Tile) -> bool:
        operands = tile.input_floats(over) + tile.weight_floats(over) + tile.filters
        return operands + tile.output_floats <= capacity

    return _cheapest(over, halves(over.filters), fits, _conv_cycles)


def pool_tile(over: Geometry, capacity: int) -> Tile | None:
    """The cheapest tile of a pooling, which has a filter per channel."""

    def fits(tile: Tile) -> bool:
        return tile.input_floats(over) + tile.output_floats <= capacity

    return _cheapest(over, None, fits, _pool_cycles)


def _cheapest(over: Geometry, filters: list[int] | None, fits, cycles) -> Tile | None:
    candidates = (
        Tile(f, c, rows, columns)
        for c in halves(over.channels)
        for f in filters or [c]
        for rows, columns in product(*map(halves, over.outputs))
    )
    return min(filter(fits, candidates), key=lambda t: cycles(over, t), default=None)


def halves(extent: int) -> list[int]:
    """The whole, half of it, a quarter, ..., one; rounded up."""
    found = [extent]
    while found[-1] > 1:
        found.append(ceil(found[-1] / 2))
    return found


def ranges(extent: int, step: int) -> Iterator[tuple[int, int]]:
    """``0:step, step:2*step, ...`` up to ``extent``."""
    return ((first, min(first + step, extent)) for first in range(0, extent, step))


def _transfers(count: int, floats: int) -> float:
    """Cycles of so many transfers of so many floats each."""
    return count * (32 + floats / 4)


def _conv_cycles(over: Geometry, tile: Tile) -> float:
    areas = _areas(over, tile)
    blocks = ceil(over.filters / tile.filters), ceil(over.channels / tile.channels)
    inputs = areas * blocks[1] * (1 if blocks[1] == 1 else blocks[0])
    weights = 1 if blocks == (1, 1) else areas * prod(blocks)
    products = areas * prod(blocks) * ceil(tile.filters / 8) * ceil(tile.channels / 8)
    return (
        _transfers(inputs, tile.input_floats(over))
        + _transfers(weights, tile.weight_floats(over))
        + _transfers(areas * blocks[0], tile.output_floats)
        + products * tile.rows * tile.columns * over.taps
    )


def _pool_cycles(over: Geometry, tile: Tile) -> float:
    tiles = _areas(over, tile) * ceil(over.channels / tile.channels)
    windows = ceil(tile.channels / 8) * tile.rows * tile.columns * over.taps
    moved = tile.input_floats(over), tile.output_floats
    return sum(_transfers(tiles, floats) for floats in moved) + tiles * windows


def _areas(over: Geometry, tile: Tile) -> int:
    return ceil(over.outputs[0] / tile.rows) * ceil(over.outputs[1] / tile.columns)
