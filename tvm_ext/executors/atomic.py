"""Files that are written whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["PARTS", "replaced"]

# What a process that was killed leaves behind.
PARTS = ".tvmx-" + "[0-9a-f]" * 16


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file in the same folder that takes the place of ``path`` when everything is written.

    Raises:
        OSError: it cannot be written; ``path`` is then what it was.
    """
    part = path.with_name(f".tvmx-{secrets.token_hex(8)}")
    with part.open("xb") as file:
        try:
            yield file
            file.close()
            part.replace(path)
        except BaseException:
            part.unlink()
            raise
