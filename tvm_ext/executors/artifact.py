"""A compiled model as one file: header, kernels as a shared library, aligned weights.

Layout: ``MAGIC``, the header's length as 8 bytes, the header as JSON, then the sections that it
lists, each at a multiple of ``ALIGNMENT``. Weights are mapped, not read: a page costs memory
when a kernel first touches it, and processes share it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import ml_dtypes  # noqa: F401  registers bfloat16 and float8 with numpy
import numpy as np
import tvm
from tvm import relax

from ..errors import BuildError, OutputPathError
from .native import NativeExecutor
from .plan import ALIGNMENT, Kernel, Plan, Slot, aligned
from .vm import VMExecutor

__all__ = ["read", "write"]

MAGIC = b"tvm_ext\x01"

Executor = NativeExecutor | VMExecutor


def write(path: str | os.PathLike, executor: Executor, interface: dict[str, object]) -> None:
    """Write ``executor`` and what the caller wants to know of it, all or nothing.

    Raises:
        OutputPathError: the file cannot be written.
        BuildError: the kernels cannot be linked.
    """
    path = Path(path)
    library = _linked(executor)
    weights: Sequence[np.ndarray] = ()
    header: dict[str, object] = {
        "interface": interface,
        "device": executor.device.dlpack_device_type(),
        "library": hashlib.sha256(library).hexdigest(),
    }
    if isinstance(executor, NativeExecutor):
        weights = executor.plan.weights
        header["plan"] = _plan_as_json(executor.plan)
    header["sections"] = _places([len(library), *(array.nbytes for array in weights)])
    try:
        with _replaced(path) as file:
            _write(file, header, [library, *weights])
    except OSError as error:
        raise OutputPathError(f"cannot write {path}: {error.strerror or error}") from error


def read(path: str | os.PathLike) -> tuple[Executor, dict[str, Any]]:
    """What :func:`write` wrote. The kernels are native code: load only files that you trust.

    Raises:
        OutputPathError: the file cannot be read, is not ours, or is damaged.
    """
    try:
        data = np.memmap(path, mode="r")
    except (OSError, ValueError) as error:
        raise OutputPathError(f"cannot read {os.fspath(path)}: {error}") from error
    sections, header = _parsed(path, data)
    library = sections[0].tobytes()
    if hashlib.sha256(library).hexdigest() != header["library"]:
        raise OutputPathError(f"{os.fspath(path)} is damaged")
    executor: Executor
    if "plan" in header:
        executor = NativeExecutor(library, _plan_from_json(header["plan"], sections[1:]))
    else:
        device = tvm.device(header["device"], 0)
        executor = VMExecutor(relax.VMExecutable(_loaded(library)), device)
    return executor, header["interface"]


def _linked(executor: Executor) -> bytes:
    """The kernels (and the VM's code and constants) as a shared library."""
    if isinstance(executor, NativeExecutor):
        return executor.library
    with tempfile.TemporaryDirectory(prefix="tvm_ext_") as folder:
        path = Path(folder, "library.so")
        try:
            executor.executable.export_library(str(path))
        except RuntimeError as error:
            raise BuildError(f"cannot link the kernels: {error}") from error
        return path.read_bytes()


def _loaded(library: bytes) -> tvm.runtime.Module:
    # A fresh name each time: the loader answers a known one with the library it already has.
    with tempfile.TemporaryDirectory(prefix="tvm_ext_") as folder:
        path = Path(folder, "library.so")
        path.write_bytes(library)
        return tvm.runtime.load_module(str(path))


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of ``path`` when everything is written."""
    file = tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False)
    try:
        with file:
            yield file
        os.replace(file.name, path)
    except BaseException:
        os.unlink(file.name)
        raise


def _places(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Offset (from the end of the header) and size of each section."""
    places, offset = [], 0
    for size in sizes:
        places.append((offset, size))
        offset += aligned(size)
    return places


def _start(header_bytes: int) -> int:
    """Where the sections begin."""
    return -(-(len(MAGIC) + 8 + header_bytes) // ALIGNMENT) * ALIGNMENT


def _write(file: IO[bytes], header: dict, sections: Sequence[bytes | np.ndarray]) -> None:
    text = json.dumps(header).encode()
    file.write(MAGIC + len(text).to_bytes(8, "little") + text)
    start = _start(len(text))
    for (offset, _), section in zip(header["sections"], sections, strict=True):
        file.seek(start + offset)
        file.write(section if isinstance(section, bytes) else section.tobytes())
    file.truncate(max(file.tell(), start))


def _parsed(path: str | os.PathLike, data: np.ndarray) -> tuple[list[np.ndarray], dict]:
    """The sections as byte arrays, and the header."""
    fixed = len(MAGIC) + 8
    if data[: len(MAGIC)].tobytes() != MAGIC:
        raise OutputPathError(f"{os.fspath(path)} is no model that this version of tvm_ext saved")
    size = int.from_bytes(data[len(MAGIC) : fixed].tobytes(), "little")
    start = _start(size)
    try:
        header = json.loads(data[fixed : fixed + size].tobytes())
        places = header["sections"]
    except (ValueError, KeyError, OverflowError) as error:
        raise OutputPathError(f"{os.fspath(path)} is damaged") from error
    if start + max(offset + length for offset, length in places) > len(data):
        raise OutputPathError(f"{os.fspath(path)} is truncated")
    return [data[start + o : start + o + length] for o, length in places], header


@dataclass
class _Slots:
    """Slots by number, each after the slot that it is a view of."""

    rows: list[dict]
    numbers: dict[int, int]

    def number(self, slot: Slot) -> int:
        if id(slot) not in self.numbers:
            base = None if slot.base is None else self.number(slot.base)
            row = {"shape": slot.shape, "dtype": slot.dtype, "kind": slot.kind, "base": base}
            self.rows.append(row | {"index": slot.index, "offset": slot.offset})
            self.numbers[id(slot)] = len(self.rows) - 1
        return self.numbers[id(slot)]


def _plan_as_json(plan: Plan) -> dict:
    slots = _Slots([], {})

    def many(of: Sequence[Slot]) -> list[int]:
        return [slots.number(slot) for slot in of]

    return {
        "kernels": [[k.symbol, many(k.reads), many(k.writes), k.variable] for k in plan.kernels],
        "inputs": many(plan.inputs),
        "outputs": many(plan.outputs),
        "weights": [[array.shape, array.dtype.name] for array in plan.weights],
        "arena_bytes": plan.arena_bytes,
        "live_bytes": plan.live_bytes,
        "slots": slots.rows,
    }


def _plan_from_json(saved: dict, weights: Sequence[np.ndarray]) -> Plan:
    slots: list[Slot] = []
    for row in saved["slots"]:
        base = None if row["base"] is None else slots[row["base"]]
        shape = tuple(row["shape"])
        slots.append(Slot(shape, row["dtype"], row["kind"], row["index"], row["offset"], base=base))

    def many(numbers: Sequence[int]) -> tuple[Slot, ...]:
        return tuple(slots[number] for number in numbers)

    return Plan(
        kernels=tuple(Kernel(s, many(r), many(w), v) for s, r, w, v in saved["kernels"]),
        inputs=many(saved["inputs"]),
        outputs=many(saved["outputs"]),
        weights=tuple(
            array.view(dtype).reshape(shape)
            for array, (shape, dtype) in zip(weights, saved["weights"], strict=True)
        ),
        arena_bytes=saved["arena_bytes"],
        live_bytes=saved["live_bytes"],
    )
