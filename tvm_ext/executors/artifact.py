"""A compiled model as one file: a shared library, and behind it all that is no code.

Layout: the library; the weights, at a multiple of ``ALIGNMENT``; compressed, what the library was
linked from, and the texts of the program; the header as JSON, which says where these are; a footer
of fixed size, which ends with ``MAGIC``. The library of a static model is opened as it lies there,
and weights are mapped, not read: a page costs memory when a kernel first touches it, and processes
share it.

Part of what loading a model needs: nothing here imports TVM but for models that run on it.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from .._version import __version__
from ..errors import OutputPathError, TvmExtError
from .atomic import replaced
from .cpu import CpuNeeds
from .library import Kind, Library, fresh_name
from .parts import Parts, packed, unpacked
from .plan import ALIGNMENT, Plan
from .saved_plan import plan_as_json, plan_from_json
from .static import StaticExecutor
from .symbolic import SymbolicExecutor, SymbolicLibrary, SymbolicPlan
from .work_folder import work_folder

if TYPE_CHECKING:
    from .vm import VMExecutor

__all__ = ["Saved", "describe", "dumps", "is_artifact", "loads", "read", "write"]

MAGIC = b"tvm_ext"
FORMAT = 14
# The header's SHA-256 and its length, the format, the magic.
_FOOTER = hashlib.sha256().digest_size + 8 + 1 + len(MAGIC)

Section = Any  # bytes, or an array of uint8: what the buffer protocol serves


@dataclass(frozen=True)
class Saved:
    """What a file holds: ``sources`` gives the program's texts, ``interface`` is the caller's."""

    executor: StaticExecutor | SymbolicExecutor | VMExecutor
    interface: dict[str, Any]
    sources: Callable[[], dict[str, str]]


@dataclass(frozen=True, eq=False)
class _Linked:
    """The library in a file, and its texts."""

    library: Section
    texts: Section

    def linked(self) -> Section:
        return self.library

    def sources(self) -> dict[str, str]:
        return _texts(self.texts)


@dataclass(frozen=True, eq=False)
class _Kept(_Linked):
    """With them, compressed, what the library was made from."""

    plan: Plan
    needs: CpuNeeds
    packed: Section

    def parts(self) -> Parts:
        return unpacked(self.packed, self.plan, self.needs)


def _texts(section: Section) -> dict[str, str]:
    return json.loads(zlib.decompress(section))


def write(
    path: str | os.PathLike,
    executor: StaticExecutor | SymbolicExecutor | VMExecutor,
    interface: Mapping[str, object],
    sources: Mapping[str, str],
) -> None:
    """Write ``executor`` and what the caller wants to know of it, all or nothing.

    Raises:
        OutputPathError: the file cannot be written.
        BuildError: the kernels cannot be linked.
    """
    place = _destination(path)
    parts = list(_parts(executor, interface, sources))
    try:
        with replaced(place) as file:
            _write(file, parts)
    except OSError as error:
        raise OutputPathError(f"cannot write {path}: {error.strerror or error}") from error


def dumps(
    executor: StaticExecutor | SymbolicExecutor | VMExecutor,
    interface: Mapping[str, object],
    sources: Mapping[str, str],
) -> bytes:
    """The bytes of the file that :func:`write` writes."""
    return b"".join(_parts(executor, interface, sources))


def read(path: str | os.PathLike, verify: bool = False) -> Saved:
    """What :func:`write` wrote. The kernels are native code: load only files that you trust.

    Everything but the weights is always checked against its checksum; ``verify`` reads them too.

    Raises:
        OutputPathError: the file cannot be read, is not ours, or is damaged.
        TargetError: it is for another kind of machine, or needs instructions that this one lacks.
    """
    with _opening(path) as (file, name):
        return _read(file, name, verify)


@contextmanager
def _opening(path: str | os.PathLike) -> Iterator[tuple[IO[bytes], str]]:
    """The file at ``path`` and its name, for what may raise as :func:`read` does."""
    if not isinstance(path, str | os.PathLike):
        raise OutputPathError(f"cannot load from {type(path).__name__}: give the path of a file")
    name = os.fspath(path)
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise OutputPathError(f"cannot read {name}: it is no regular file")
        with open(path, "rb") as file:
            yield file, name
    except (OSError, ValueError) as error:
        if isinstance(error, TvmExtError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise OutputPathError(f"cannot read {name}: {reason}") from error


def describe(path: str | os.PathLike) -> tuple[dict[str, Any], CpuNeeds, Plan | None]:
    """The header of what :func:`write` wrote, what its code needs of a CPU, and, of a static
    model, its plan. No code is loaded.

    Raises:
        OutputPathError: the file cannot be read, is not ours, or its header is damaged.
    """
    with _opening(path) as (file, name):
        header = _header(name, _mapped(file))
        plan = plan_from_json(header["plan"]) if "plan" in header else None
        return header, _needs(header), plan


def loads(data: bytes) -> Saved:
    """What :func:`dumps` gave. It raises what :func:`read` does."""
    with work_folder() as folder:
        file = folder / "model.so"
        file.write_bytes(data)
        return read(file)


def is_artifact(path: str | os.PathLike) -> bool:
    """Whether ``path`` is a library, whole or not, or what earlier versions wrote."""
    try:
        if not Path(path).is_file():  # first: who opens a named pipe waits for its other end
            return False
        with open(path, "rb") as file:
            return file.read(len(MAGIC)).startswith((MAGIC, b"\x7fELF"))
    except OSError:
        return False


def _parts(
    executor: StaticExecutor | SymbolicExecutor | VMExecutor,
    interface: Mapping[str, object],
    sources: Mapping[str, str],
) -> Iterator[Section]:
    """The parts of the file, in order."""
    header: dict[str, object] = {
        "tvm_ext": __version__,
        "interface": interface,
        "needs": asdict(executor.needs),
    }
    sections = {"library": executor.linked()}
    if isinstance(executor, StaticExecutor):
        header["plan"] = plan_as_json(executor.plan)
        sections |= {"weights": executor.weights, "parts": packed(executor.parts())}
    elif isinstance(executor, SymbolicExecutor):
        header["symbolic"] = asdict(executor.plan)
        sections["weights"] = executor.weights
    else:
        header |= executor.requirements()
    sections["texts"] = zlib.compress(json.dumps(sources).encode())

    places, offset = {}, 0
    for name, section in sections.items():
        size = len(section)
        padding = -size % ALIGNMENT
        places[name] = offset, size, zlib.crc32(section)
        offset += size + padding
        yield section
        yield bytes(padding)
    text = json.dumps(header | {"sections": places}).encode()
    yield text
    yield hashlib.sha256(text).digest() + len(text).to_bytes(8, "little") + bytes([FORMAT]) + MAGIC


def _read(file: IO[bytes], name: str, verify: bool) -> Saved:
    data = _mapped(file)
    header = _header(name, data)
    sections: dict[str, Section] = {}
    for key, (offset, size, checksum) in header["sections"].items():
        sections[key] = data[offset : offset + size]
        if (verify or key != "weights") and zlib.crc32(sections[key]) != checksum:
            raise OutputPathError(f"{name} is damaged")
    needs = _needs(header)
    needs.check()
    executor: StaticExecutor | SymbolicExecutor | VMExecutor
    library, texts = sections["library"], sections["texts"]
    if "plan" in header:
        plan = plan_from_json(header["plan"])
        kept = _Kept(library, texts, plan, needs, sections["parts"])
        weights = sections["weights"]
        executor = StaticExecutor(plan, needs, weights, kept, _opened(file, Library))
    elif "symbolic" in header:
        symbolic, weights = SymbolicPlan.of(header["symbolic"]), sections["weights"]
        opened = _opened(file, SymbolicLibrary)
        executor = SymbolicExecutor(symbolic, needs, weights, _Linked(library, texts), opened)
    else:
        from .vm import VMExecutor

        executor = VMExecutor.open(library, name, needs, header)
    return Saved(executor, header["interface"], partial(_texts, texts))


def _needs(header: Mapping[str, Any]) -> CpuNeeds:
    return CpuNeeds(header["needs"]["triple"], tuple(header["needs"]["features"]))


def _mapped(file: IO[bytes]) -> np.ndarray:
    if os.fstat(file.fileno()).st_size == 0:  # cannot be mapped
        return np.empty(0, np.uint8)
    return np.memmap(file, mode="r")


def _opened(file: IO[bytes], kind: type[Kind]) -> Kind:
    """The library in ``file``: in this very file, also where its name is another's by now."""
    by_descriptor = Path(f"/proc/self/fd/{file.fileno()}")
    path = by_descriptor if by_descriptor.exists() else Path(file.name).resolve()
    with fresh_name(path) as name:
        return kind(name)


def _header(name: str, data: np.ndarray) -> dict[str, Any]:
    if data[: len(MAGIC)].tobytes() == MAGIC and len(data) > len(MAGIC):
        raise OutputPathError(_of_other_format(name, int(data[len(MAGIC)])))
    footer = data[-_FOOTER:].tobytes()
    if len(footer) < _FOOTER or not footer.endswith(MAGIC):
        raise OutputPathError(f"{name} is truncated, or no model that tvm_ext saved")
    digest, size, form = footer[:32], int.from_bytes(footer[32:40], "little"), footer[40]
    if form != FORMAT:
        raise OutputPathError(_of_other_format(name, form))
    end = len(data) - _FOOTER
    text = data[max(0, end - size) : end].tobytes()
    if hashlib.sha256(text).digest() != digest:
        raise OutputPathError(f"{name} is damaged")
    return json.loads(text)


def _of_other_format(name: str, form: int) -> str:
    return (
        f"{name} has format {form}, tvm_ext {__version__} reads format {FORMAT}: "
        "build the model again"
    )


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


def _write(file: IO[bytes], parts: Iterable[Section]) -> None:
    for part in parts:
        file.write(part)
