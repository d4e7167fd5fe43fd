"""The device's commands, as ``device/npu.h`` defines them: as C text, as words, as a line to read.

Addresses and counts are in floats; ``local`` addresses lie in the scratchpad.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Flag, IntEnum
from typing import ClassVar

__all__ = ["PLAIN", "Command", "Copy", "Does", "Opcode", "Sum", "Window"]

#: An npu_command: opcode, flags, and the widest member of its union.
WORDS = 18


class Opcode(IntEnum):
    LOAD, STORE, CONV, POOL, ADD = range(5)


class Does(Flag):
    """What CONV and ADD do on the way."""

    BIAS, ACCUMULATE, RELU = 1, 2, 4


PLAIN = Does(0)


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command; ``note`` says which operator and tile it is a part of."""

    opcode: Opcode
    flags: Does = PLAIN
    note: str = field(default="", compare=False)
    member: ClassVar[str]

    def words(self) -> list[int]:
        """The command as 32-bit words."""
        operands = [word for value in self._operands() for word in _flat(value)]
        return [self.opcode, self.flags.value, *operands, *[0] * (WORDS - 2 - len(operands))]

    def c(self) -> str:
        """A C initialiser of ``npu_command``."""
        flags = " | ".join(f"NPU_{name}" for name in self._flags()) or "0"
        operands = ", ".join(
            f"{{{', '.join(map(str, value))}}}" if isinstance(value, tuple) else str(value)
            for value in self._operands()
        )
        return f"{{NPU_{self.opcode.name}, {flags}, .{self.member} = {{{operands}}}}}"

    def __str__(self) -> str:
        flags = "".join(f"+{name.lower()}" for name in self._flags())
        return f"{self.opcode.name + flags:16} {self._says():60} {self.note}".rstrip()

    def _flags(self) -> list[str]:
        return [flag.name for flag in Does if flag in self.flags]

    def _operands(self) -> Iterator[int | tuple[int, ...]]:
        common = "opcode", "flags", "note"
        return (value for name, value in vars(self).items() if name not in common)

    def _says(self) -> str:
        raise NotImplementedError


def _flat(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


@dataclass(frozen=True, kw_only=True)
class Copy(Command):
    """LOAD and STORE: planes of rows; strides from plane to plane and from row to row."""

    member = "copy"
    dram: int
    local: int
    count: tuple[int, int, int]
    dram_stride: tuple[int, int]
    local_stride: tuple[int, int]

    def _says(self) -> str:
        places = f"dram[{self.dram}]", f"local[{self.local}]"
        source, target = places if self.opcode is Opcode.LOAD else reversed(places)
        return f"{source} -> {target}, {_by(self.count)}"


@dataclass(frozen=True, kw_only=True)
class Window(Command):
    """CONV and POOL on dense tiles of the scratchpad."""

    member = "window"
    input: int
    weight: int = 0
    bias: int = 0
    output: int
    channels: int
    height: int
    width: int
    filters: int
    rows: int
    columns: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]

    def _says(self) -> str:
        source = f"local[{self.input}] {_by((self.channels, self.height, self.width))}"
        target = f"local[{self.output}] {_by((self.filters, self.rows, self.columns))}"
        return f"{source} -> {target}, {_by(self.kernel)}/{_by(self.stride)}"


@dataclass(frozen=True, kw_only=True)
class Sum(Command):
    """ADD: two rows of floats become one."""

    member = "sum"
    opcode: Opcode = Opcode.ADD
    a: int
    b: int
    output: int
    count: int

    def _says(self) -> str:
        return f"local[{self.a}] + local[{self.b}] -> local[{self.output}], {self.count}"
