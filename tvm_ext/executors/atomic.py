"""Files and folders that appear whole or not at all.

They are written under another name beside their place, locked for as long as that lasts. What has
such a name and no lock is of a process that was killed: the next writer beside it removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

__all__ = ["appearing", "filling", "remove_abandoned", "replaced"]

_PREFIX = ".tvmx-"
_PARTS = _PREFIX + "[0-9a-f]" * 16


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file in the same folder that takes the place of ``path`` when everything is written.

    Raises:
        OSError: it cannot be written; ``path`` is then what it was.
    """
    with _claimed(path, _new_file) as part:
        try:
            with part.open("wb") as file:
                yield file
            part.replace(path)
        except BaseException:
            part.unlink()
            raise


@contextmanager
def appearing(place: Path) -> Iterator[Path]:
    """A folder beside ``place`` that gets its name when everything is written.

    Raises:
        OSError: it cannot be written, or there is something of that name; nothing is left then.
    """
    with _claimed(place, _new_folder) as part:
        try:
            yield part
            part.replace(place)
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def filling(place: Path) -> Iterator[Path]:
    """A folder whose files get into ``place``, which is made if missing, when all are written.

    Those of the same names are replaced, others stay.

    Raises:
        OSError: they cannot be written, or a folder stands where a file belongs; ``place`` is then
            what it was.
    """
    if not place.exists():
        with appearing(place) as part:
            yield part
        return
    with _claimed(place / _PREFIX, _new_folder) as part:
        try:
            yield part
            _move(part, place)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _move(part: Path, place: Path) -> None:
    """Move the files below ``part`` into ``place``, after a look at what is there."""
    found = [(each, place / each.relative_to(part)) for each in sorted(part.rglob("*"))]
    for each, target in found:
        if target.exists() and target.is_dir() != each.is_dir():
            code = errno.EISDIR if target.is_dir() else errno.ENOTDIR
            raise OSError(code, os.strerror(code), str(target))
    for each, target in found:
        if each.is_dir():
            target.mkdir(exist_ok=True)
        else:
            each.replace(target)


def remove_abandoned(folder: Path) -> None:
    """Remove from ``folder`` what killed writers left there; what cannot be removed stays."""
    for part in folder.glob(_PARTS):
        with suppress(OSError):  # another writer's, another user's, or gone by now
            descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(part) if part.is_dir() else part.unlink()
            finally:
                os.close(descriptor)


@contextmanager
def _claimed(place: Path, make: Callable[[Path], int]) -> Iterator[Path]:
    """Something new beside ``place``, locked; ``make`` makes it and returns a descriptor."""
    remove_abandoned(place.parent)
    while True:
        part = place.with_name(f"{_PREFIX}{secrets.token_hex(8)}")
        descriptor = make(part)
        try:
            with suppress(OSError):  # of file systems without locks: nobody can take it there
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if part.exists():  # else another writer was quicker than the lock, and removed it
                yield part
                return
        finally:
            os.close(descriptor)


def _new_file(part: Path) -> int:
    return os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def _new_folder(part: Path) -> int:
    part.mkdir()
    return os.open(part, os.O_RDONLY)
