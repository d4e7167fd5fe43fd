"""A compiled model as one file: header, kernels as a shared library, texts, aligned weights.

Layout: ``MAGIC``, the format's number as one byte, the header's SHA-256 and its length as 8 bytes,
the header as JSON, then the sections that it lists, each at a multiple of ``ALIGNMENT``: the
library, the compressed texts of the program, the weights. Weights are mapped, not read: a page
costs memory when a kernel first touches it, and processes share it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import tvm
from tvm import relax

from ..errors import BuildError, OutputPathError, TargetError
from .cpu import CpuNeeds
from .plan import ALIGNMENT
from .saved_plan import plan_as_json, plan_from_json
from .static import StaticExecutor
from .toolchain import compiler
from .vm import VMExecutor

__all__ = ["Saved", "is_artifact", "read", "write"]

MAGIC = b"tvm_ext"
FORMAT = 2
_FIXED = len(MAGIC) + 1 + hashlib.sha256().digest_size + 8

Executor = StaticExecutor | VMExecutor
Section = Any  # bytes, or an array of uint8: what the buffer protocol serves


@dataclass(frozen=True)
class Saved:
    """What a file holds: ``sources`` gives the program's texts, ``interface`` is the caller's."""

    executor: Executor
    interface: dict[str, Any]
    sources: Callable[[], dict[str, str]]


def write(
    path: str | os.PathLike,
    executor: Executor,
    interface: Mapping[str, object],
    sources: Mapping[str, str],
) -> None:
    """Write ``executor`` and what the caller wants to know of it, all or nothing.

    Raises:
        OutputPathError: the file cannot be written.
        BuildError: the kernels cannot be linked.
    """
    place = _destination(path)
    sections: list[Section] = [_linked(executor), zlib.compress(json.dumps(sources).encode())]
    header: dict[str, object] = {
        "interface": interface,
        "device": executor.device.dlpack_device_type(),
        "needs": asdict(executor.needs),
        "tvm": tvm.__version__,
    }
    if isinstance(executor, StaticExecutor):
        sections += [array.reshape(-1).view(np.uint8) for array in executor.plan.weights]
        header["plan"] = plan_as_json(executor.plan)
    header["sections"] = _places([len(section) for section in sections])
    header["checksums"] = [zlib.crc32(section) for section in sections]
    try:
        with _replaced(place) as file:
            _write(file, header, sections)
    except OSError as error:
        raise OutputPathError(f"cannot write {path}: {error.strerror or error}") from error


def read(path: str | os.PathLike, verify: bool = False) -> Saved:
    """What :func:`write` wrote. The kernels are native code: load only files that you trust.

    Everything but the weights is always checked against its checksum; ``verify`` reads them too.

    Raises:
        OutputPathError: the file cannot be read, is not ours, or is damaged.
        TargetError: it is for another kind of machine, or needs instructions that this one lacks.
    """
    name, data = _mapped(path)
    header, sections = _parsed(name, data)
    checked = sections if verify else sections[:2]
    if [zlib.crc32(section) for section in checked] != header["checksums"][: len(checked)]:
        raise OutputPathError(f"{name} is damaged")
    if header["tvm"] != tvm.__version__:
        raise OutputPathError(
            f"{name} was built with TVM {header['tvm']}, this is {tvm.__version__}: build it again"
        )
    library, texts, *weights = sections
    needs = CpuNeeds(header["needs"]["triple"], tuple(header["needs"]["features"]))
    needs.check()
    executor: Executor
    if "plan" in header:
        executor = StaticExecutor(plan_from_json(header["plan"], weights), needs, linked=library)
    else:
        module = _loaded(name, library, header["device"])
        device = tvm.device(header["device"], 0)
        executor = VMExecutor(relax.VMExecutable(module), device, needs)
        executor.linked = library

    def sources() -> dict[str, str]:
        return json.loads(zlib.decompress(texts))

    return Saved(executor, header["interface"], sources)


def is_artifact(path: str | os.PathLike) -> bool:
    """Whether ``path`` is a file that begins as those of :func:`write`, of any format."""
    try:
        with open(path, "rb") as file:
            return Path(path).is_file() and file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _linked(executor: Executor) -> Section:
    """The kernels (and the VM's code and constants) as a shared library."""
    if isinstance(executor, StaticExecutor):
        return executor.linked()
    if executor.linked is not None:
        return executor.linked
    options = {}
    if executor.needs.foreign:
        options["cc"] = compiler(executor.needs.triple)
    with tempfile.TemporaryDirectory(prefix="tvm_ext_") as folder:
        path = Path(folder, "library.so")
        try:
            executor.executable.export_library(str(path), **options)
        except (RuntimeError, ValueError, OSError) as error:
            raise BuildError(f"cannot link the kernels: {error}") from error
        return path.read_bytes()


def _loaded(name: str, library: Section, device: int) -> tvm.runtime.Module:
    # A fresh name each time: the loader answers a known one with the library it already has.
    with tempfile.TemporaryDirectory(prefix="tvm_ext_") as folder:
        path = Path(folder, "library.so")
        path.write_bytes(library)
        try:
            return tvm.runtime.load_module(str(path))
        except (RuntimeError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            if device != tvm.cpu().dlpack_device_type():
                kind = tvm.device(device, 0).type
                raise TargetError(
                    f"{name} was built for {kind}, which TVM cannot load on this machine: {reason}"
                ) from error
            raise OutputPathError(f"cannot load the kernels of {name}: {reason}") from error


def _mapped(path: str | os.PathLike) -> tuple[str, np.ndarray]:
    """The file's name and its bytes."""
    if not isinstance(path, str | os.PathLike):
        raise OutputPathError(f"cannot load from {type(path).__name__}: give the path of a file")
    name = os.fspath(path)
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise OutputPathError(f"cannot read {name}: it is no regular file")
        return name, np.memmap(path, mode="r")
    except (OSError, ValueError) as error:
        if isinstance(error, OutputPathError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise OutputPathError(f"cannot read {name}: {reason}") from error


def _destination(path: str | os.PathLike) -> Path:
    """Where the file goes: a link keeps pointing at it."""
    try:
        place = Path(os.path.realpath(path))
        if place.exists() and not place.is_file():
            raise OutputPathError(f"cannot write {path}: it is no regular file")
    except (TypeError, ValueError, OSError) as error:
        if isinstance(error, OutputPathError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise OutputPathError(f"cannot write {path}: {reason}") from error
    return place


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of ``path`` when everything is written."""
    part = path.with_name(f".tvmx-{secrets.token_hex(8)}")
    with part.open("xb") as file:
        try:
            yield file
            file.close()
            part.replace(path)
        except BaseException:
            part.unlink()
            raise


def _places(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Offset (from the end of the header) and size of each section."""
    places, offset = [], 0
    for size in sizes:
        places.append((offset, size))
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return places


def _start(header_bytes: int) -> int:
    """Where the sections begin."""
    return -(-(_FIXED + header_bytes) // ALIGNMENT) * ALIGNMENT


def _write(file: IO[bytes], header: Mapping[str, Any], sections: Sequence[Section]) -> None:
    text = json.dumps(header).encode()
    file.write(MAGIC + bytes([FORMAT]))
    file.write(hashlib.sha256(text).digest() + len(text).to_bytes(8, "little") + text)
    start = _start(len(text))
    for (offset, _), section in zip(header["sections"], sections, strict=True):
        file.seek(start + offset)
        file.write(section)
    file.truncate(max(file.tell(), start))


def _parsed(name: str, data: np.ndarray) -> tuple[dict[str, Any], list[Section]]:
    """The header, and the sections as byte arrays."""
    if data[: len(MAGIC)].tobytes() != MAGIC:
        raise OutputPathError(f"{name} is no model that tvm_ext saved")
    if len(data) < _FIXED:
        raise OutputPathError(f"{name} is truncated")
    if data[len(MAGIC)] != FORMAT:
        raise OutputPathError(
            f"{name} has format {data[len(MAGIC)]}, this version of tvm_ext reads format {FORMAT}: "
            "build the model again"
        )
    size = int.from_bytes(data[_FIXED - 8 : _FIXED].tobytes(), "little")
    text = data[_FIXED : _FIXED + size].tobytes()
    if len(text) != size:
        raise OutputPathError(f"{name} is truncated")
    if hashlib.sha256(text).digest() != data[len(MAGIC) + 1 : _FIXED - 8].tobytes():
        raise OutputPathError(f"{name} is damaged")
    header = json.loads(text)
    places, start = header["sections"], _start(size)
    if start + max(offset + length for offset, length in places) > len(data):
        raise OutputPathError(f"{name} is truncated")
    return header, [data[start + o : start + o + length] for o, length in places]
