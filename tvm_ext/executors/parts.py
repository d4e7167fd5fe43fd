"""What the library of a static model is linked from: object code, and C.

Part of what loading a model needs: nothing here imports TVM.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .cpu import CpuNeeds
from .emit import ENTRY, entry_source
from .plan import Plan

__all__ = ["Parts", "packed", "unpacked", "write_objects"]


@dataclass(frozen=True, eq=False)
class Parts:
    """A plan, the compiled kernels as object files, and the C files of the others.

    ``tag`` is in the names of its kernels.
    """

    plan: Plan
    tag: str
    needs: CpuNeeds
    kernels: tuple[bytes, ...]
    code: tuple[str, ...]

    def write(self, folder: Path, entry: str = ENTRY) -> tuple[list[Path], list[Path]]:
        """Write what is linked into ``folder``: object files, and C files.

        The function that runs the plan is called ``entry``.
        """
        compiled, texts = write_objects(folder, self.kernels), []
        for number, text in enumerate([entry_source(self.plan, self.tag, entry), *self.code]):
            texts.append(folder / f"source{number}.c")
            texts[-1].write_text(text)
        return compiled, texts


def write_objects(folder: Path, kernels: Sequence[bytes]) -> list[Path]:
    """The object files of compiled kernels, written into ``folder``."""
    files = [folder / f"kernels{number}.o" for number in range(len(kernels))]
    for file, code in zip(files, kernels, strict=True):
        file.write_bytes(code)
    return files


def packed(parts: Parts) -> bytes:
    """All of ``parts`` but the plan and the needs, compressed."""
    sizes = [len(code) for code in parts.kernels]
    head = json.dumps({"tag": parts.tag, "code": parts.code, "sizes": sizes})
    return zlib.compress(b"".join([head.encode(), b"\0", *parts.kernels]))


def unpacked(data: bytes, plan: Plan, needs: CpuNeeds) -> Parts:
    """What :func:`packed` packed."""
    head, _, rest = zlib.decompress(data).partition(b"\0")
    known, kernels = json.loads(head), []
    for size in known["sizes"]:
        kernels.append(rest[:size])
        rest = rest[size:]
    return Parts(plan, known["tag"], needs, tuple(kernels), tuple(known["code"]))
