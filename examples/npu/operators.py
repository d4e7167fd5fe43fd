"""The device's operators: each turns itself into commands, tile by tile.

Every one loads what it reads into the scratchpad, computes there, and stores what it writes: the
tensors between operators are in the device's DRAM, where :mod:`.program` places them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from .commands import PLAIN, Command, Copy, Does, Opcode, Sum, Window
from .tiling import Geometry, Tile, conv_tile, pool_tile, ranges

__all__ = ["Addition", "Convolution", "NoTile", "Operator", "Pooling", "Tensor"]


class NoTile(Exception):
    """Not even the smallest piece of an operator fits the scratchpad."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor in the device's DRAM, dense and row-major; ``value`` where it is a weight."""

    name: str
    shape: tuple[int, ...]
    value: np.ndarray | None = None

    @property
    def size(self) -> int:
        return prod(self.shape)


Places = Mapping[Tensor, int]


@dataclass(frozen=True, eq=False)
class Operator:
    """What the device computes in one go. ``name`` is for people."""

    name: str
    output: Tensor

    @property
    def kind(self) -> str:
        """What it computes, in a word."""
        raise NotImplementedError

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The activations that it reads."""
        raise NotImplementedError

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """The constants that it reads."""
        return ()

    def commands(self, at: Places, scratchpad: int) -> Iterator[Command]:
        """Its commands, with tensors at the addresses ``at``.

        Raises:
            NoTile: nothing of it fits a scratchpad of so many floats.
        """
        raise NotImplementedError


class Loads:
    """Issues LOADs into fixed places, except of what lies there already."""

    def __init__(self) -> None:
        self._held: dict[int, Copy] = {}

    def __call__(self, command: Copy) -> Iterator[Copy]:
        if self._held.get(command.local) != command:
            self._held[command.local] = command
            yield command


def block(opcode: Opcode, dram: int, local: int, shape, begin, end, note: str) -> Copy:
    """LOAD or STORE the part ``begin:end`` of a DRAM tensor of three axes; dense in the pad."""
    count = tuple(e - b for b, e in zip(begin, end, strict=True))
    strides = shape[1] * shape[2], shape[2]
    first = begin[0] * strides[0] + begin[1] * strides[1] + begin[2]
    return Copy(
        opcode=opcode,
        dram=dram + first,
        local=local,
        count=count,
        dram_stride=strides,
        local_stride=(count[1] * count[2], count[2]),
        note=note,
    )


@dataclass(frozen=True, eq=False)
class _Windowed(Operator):
    """A window that slides over ``x[N, C, H, W]``."""

    x: Tensor
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int]  # before the input, along rows and columns

    @property
    def geometry(self) -> Geometry:
        (_, channels, *size), (_, filters, *outputs) = self.x.shape, self.output.shape
        return Geometry(
            channels, tuple(size), filters, tuple(outputs), self.kernel, self.strides, self.pads
        )

    def _tile(self, scratchpad: int) -> Tile:
        raise NotImplementedError

    def commands(self, at: Places, scratchpad: int) -> Iterator[Command]:
        over, tile, loads = self.geometry, self._tile(scratchpad), Loads()
        areas = list(
            product(ranges(over.outputs[0], tile.rows), ranges(over.outputs[1], tile.columns))
        )
        for image, (rows, columns), filters in product(
            range(self.x.shape[0]), areas, list(ranges(over.filters, tile.filters))
        ):
            yield from self._outputs(at, tile, image, rows, columns, filters, loads)

    def _outputs(self, at, tile, image, rows, columns, filters, loads) -> Iterator[Command]:
        """Compute and store one tile of the output."""
        raise NotImplementedError

    def _part(self, image: int, *spans: tuple[int, int]) -> str:
        """A tile of the output, for people."""
        return f"{self.name}[{image}, {', '.join(f'{a}:{b}' for a, b in spans)}]"

    def _input(self, at: Places, local: int, image, rows, columns, channels, note) -> Copy:
        """Load what outputs ``rows`` and ``columns`` see of ``channels``."""
        over = self.geometry
        (top, bottom, _), (left, right, _) = over.seen(0, *rows), over.seen(1, *columns)
        return block(
            Opcode.LOAD,
            at[self.x] + image * over.channels * prod(over.size),
            local,
            (over.channels, *over.size),
            (channels[0], top, left),
            (channels[1], bottom, right),
            note,
        )

    def _whole(self, opcode, at: int, local: int, image, rows, columns, filters, note) -> Copy:
        """Load or store a tile of a tensor that has the shape of the output."""
        over = self.geometry
        return block(
            opcode,
            at + image * over.filters * prod(over.outputs),
            local,
            (over.filters, *over.outputs),
            (filters[0], rows[0], columns[0]),
            (filters[1], rows[1], columns[1]),
            note,
        )

    def _window(self, opcode, rows, columns, channels, filters, **operands) -> Window:
        over = self.geometry
        (top, bottom, above), (left, right, beside) = over.seen(0, *rows), over.seen(1, *columns)
        return Window(
            opcode=opcode,
            channels=channels[1] - channels[0],
            height=bottom - top,
            width=right - left,
            filters=filters[1] - filters[0],
            rows=rows[1] - rows[0],
            columns=columns[1] - columns[0],
            kernel=over.kernel,
            stride=over.strides,
            pad=(above, beside),
            **operands,
        )


@dataclass(frozen=True, eq=False)
class Convolution(_Windowed):
    """``relu?(conv(x, weight) + bias? + residual?)``: one pass, nothing stored in between."""

    weight: Tensor
    bias: Tensor | None = None
    residual: Tensor | None = None
    relu: bool = False

    @property
    def kind(self) -> str:
        parts = {"bias": self.bias, "residual": self.residual, "relu": self.relu or None}
        return "+".join(["conv", *(part for part, value in parts.items() if value is not None)])

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (self.x,) if self.residual is None else (self.x, self.residual)

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def _tile(self, scratchpad: int) -> Tile:
        tile = conv_tile(self.geometry, scratchpad)
        if tile is None:
            raise NoTile(f"one {self.kernel[0]}x{self.kernel[1]} window exceeds the scratchpad")
        return tile

    def _outputs(self, at, tile, image, rows, columns, filters, loads) -> Iterator[Command]:
        over = self.geometry
        weight = tile.input_floats(over)  # the input is first
        bias = weight + tile.weight_floats(over)
        output = bias + tile.filters
        area, note = (image, rows, columns), self._part(image, filters, rows, columns)
        if self.bias is not None:
            yield from loads(_row(at[self.bias], bias, *filters, note))
        if self.residual is not None:
            yield self._whole(Opcode.LOAD, at[self.residual], output, *area, filters, note)
        for channels in ranges(over.channels, tile.channels):
            yield from loads(self._input(at, 0, *area, channels, note))
            yield from loads(self._weight(at, weight, filters, channels, note))
            yield self._window(
                Opcode.CONV,
                rows,
                columns,
                channels,
                filters,
                input=0,
                weight=weight,
                bias=bias,
                output=output,
                flags=self._flags(channels),
                note=note,
            )
        yield self._whole(Opcode.STORE, at[self.output], output, *area, filters, note)

    def _flags(self, channels: tuple[int, int]) -> Does:
        """The first channels take the bias, the last the relu; all but the first add up."""
        first, last = channels[0] == 0, channels[1] == self.geometry.channels
        flags = PLAIN
        if first and self.bias is not None:
            flags |= Does.BIAS
        if not first or self.residual is not None:
            flags |= Does.ACCUMULATE
        if last and self.relu:
            flags |= Does.RELU
        return flags

    def _weight(self, at: Places, local: int, filters, channels, note: str) -> Copy:
        over = self.geometry
        return block(
            Opcode.LOAD,
            at[self.weight],
            local,
            (1, over.filters, over.channels * over.taps),
            (0, filters[0], channels[0] * over.taps),
            (1, filters[1], channels[1] * over.taps),
            note,
        )


@dataclass(frozen=True, eq=False)
class Pooling(_Windowed):
    """The maximum of each window; what lies outside of ``x`` does not count."""

    kind = "max pool"

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return (self.x,)

    def _tile(self, scratchpad: int) -> Tile:
        tile = pool_tile(self.geometry, scratchpad)
        if tile is None:
            raise NoTile(f"one {self.kernel[0]}x{self.kernel[1]} window exceeds the scratchpad")
        return tile

    def _outputs(self, at, tile, image, rows, columns, filters, loads) -> Iterator[Command]:
        output = tile.input_floats(self.geometry)
        area, note = (image, rows, columns), self._part(image, filters, rows, columns)
        yield from loads(self._input(at, 0, *area, filters, note))
        yield self._window(
            Opcode.POOL, rows, columns, filters, filters, input=0, output=output, note=note
        )
        yield self._whole(Opcode.STORE, at[self.output], output, *area, filters, note)


@dataclass(frozen=True, eq=False)
class Addition(Operator):
    """``relu?(a + b)`` of one shape."""

    a: Tensor
    b: Tensor
    relu: bool = False

    @property
    def kind(self) -> str:
        return "add+relu" if self.relu else "add"

    @property
    def reads(self) -> tuple[Tensor, ...]:
        return self.a, self.b

    def commands(self, at: Places, scratchpad: int) -> Iterator[Command]:
        half = scratchpad // 2
        if half == 0:
            raise NoTile("two floats exceed the scratchpad")
        for first, last in ranges(self.output.size, half):
            note = f"{self.name}[{first}:{last}]"
            yield _row(at[self.a], 0, first, last, note)
            yield _row(at[self.b], half, first, last, note)
            flags = Does.RELU if self.relu else PLAIN
            yield Sum(a=0, b=half, output=0, count=last - first, flags=flags, note=note)
            yield _row(at[self.output], 0, first, last, note, Opcode.STORE)


def _row(at: int, local: int, first: int, last: int, note: str, opcode=Opcode.LOAD) -> Copy:
    """Floats ``first:last`` of a tensor, one after the other."""
    return block(opcode, at, local, (1, 1, last), (0, 0, first), (1, 1, last), note)
