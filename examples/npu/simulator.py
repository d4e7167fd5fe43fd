"""The simulator of ``device/npu.c`` from Python: to try commands, and to see what they cost."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from tvm_ext.executors.toolchain import compiler

from .commands import Command, Opcode

__all__ = ["DEVICE", "DeviceError", "Simulator", "Statistics"]

#: The C sources of the device and of its driver.
DEVICE = Path(__file__).parent / "device"


class DeviceError(RuntimeError):
    """The device refused something; the text is its own."""


@dataclass(frozen=True)
class Statistics:
    """What commands did, or would do: per opcode, and bytes over the bus to the DRAM."""

    commands: dict[str, int]
    cycles: dict[str, int]
    bytes_loaded: int
    bytes_stored: int
    multiply_adds: int

    def __str__(self) -> str:
        total = sum(self.cycles.values())
        units = ", ".join(f"{name} {count}" for name, count in self.cycles.items() if count)
        return (
            f"{total} cycles ({units}), {sum(self.commands.values())} commands, "
            f"{self.multiply_adds} multiply-adds, {self.bytes_loaded} bytes loaded, "
            f"{self.bytes_stored} stored"
        )


class _Counters(ctypes.Structure):
    _fields_ = [
        ("commands", ctypes.c_uint64 * len(Opcode)),
        ("cycles", ctypes.c_uint64 * len(Opcode)),
        ("loaded", ctypes.c_uint64),
        ("stored", ctypes.c_uint64),
        ("multiply_adds", ctypes.c_uint64),
    ]

    def as_statistics(self) -> Statistics:
        names = [opcode.name for opcode in Opcode]
        return Statistics(
            dict(zip(names, self.commands, strict=True)),
            dict(zip(names, self.cycles, strict=True)),
            4 * self.loaded,
            4 * self.stored,
            self.multiply_adds,
        )


class Simulator:
    """A device with ``dram`` and ``scratchpad`` floats of memory."""

    def __init__(self, dram: int, scratchpad: int):
        self._library = _library()
        self._device = self._library.npu_open(dram, scratchpad)
        if not self._device:
            raise MemoryError(f"no memory for a device with {dram} + {scratchpad} floats")

    def __del__(self) -> None:
        if getattr(self, "_device", None):
            self._library.npu_close(self._device)

    def write(self, address: int, array: np.ndarray) -> None:
        """Copy ``array`` into the DRAM.

        Raises:
            DeviceError: it does not fit.
        """
        flat = np.ascontiguousarray(array, "float32")
        self._checked(self._library.npu_write(self._device, address, flat.ctypes.data, flat.size))

    def read(self, address: int, shape: Sequence[int]) -> np.ndarray:
        """An array out of the DRAM.

        Raises:
            DeviceError: it leaves the DRAM.
        """
        out = np.empty(shape, "float32")
        self._checked(self._library.npu_read(self._device, address, out.ctypes.data, out.size))
        return out

    def submit(self, commands: Sequence[Command]) -> None:
        """Run ``commands``.

        Raises:
            DeviceError: one is illegal; none has run. It says which, and why.
        """
        table = _table(commands)
        self._checked(self._library.npu_submit(self._device, table.ctypes.data, len(table)))

    def cost(self, commands: Sequence[Command]) -> Statistics:
        """What ``commands`` would cost: nothing in it depends on the data, and nothing runs.

        Raises:
            DeviceError: one is illegal. It says which, and why.
        """
        table, found = _table(commands), _Counters()
        place = ctypes.byref(found)
        self._checked(self._library.npu_check(self._device, table.ctypes.data, len(table), place))
        return found.as_statistics()

    @property
    def statistics(self) -> Statistics:
        """What the device did since it was opened."""
        return self._library.npu_get_statistics(self._device).contents.as_statistics()

    def _checked(self, code: int) -> None:
        if code:
            raise DeviceError(self._library.npu_error(self._device).decode())


def _table(commands: Sequence[Command]) -> np.ndarray:
    return np.array([command.words() for command in commands], "uint32")


@cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="npu_") as folder:
        path = Path(folder, "npu.so")
        command = [*compiler(), "-std=c11", "-O2", "-fPIC", "-shared", "-o", str(path)]
        subprocess.run([*command, str(DEVICE / "npu.c"), "-lm"], check=True)
        library = ctypes.CDLL(str(path))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.npu_open.restype, library.npu_open.argtypes = pointer, [size, size]
    library.npu_close.argtypes = [pointer]
    library.npu_write.argtypes = library.npu_read.argtypes = [pointer, size, pointer, size]
    library.npu_submit.argtypes = [pointer, pointer, size]
    library.npu_check.argtypes = [pointer, pointer, size, pointer]
    library.npu_error.restype, library.npu_error.argtypes = ctypes.c_char_p, [pointer]
    library.npu_get_statistics.restype = ctypes.POINTER(_Counters)
    library.npu_get_statistics.argtypes = [pointer]
    return library
