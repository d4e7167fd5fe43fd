"""What the library of a static model is linked from: object code, and C.

Part of what loading a model needs: nothing here imports TVM.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path

from .cpu import CpuNeeds
from .emit import ENTRY, entry_source
from .plan import Plan

__all__ = ["Parts", "packed", "unpacked"]


@dataclass(frozen=True, eq=False)
class Parts:
    """A plan, the compiled kernels as an object file, and the C files of the others.

    ``tag`` is in the names of its kernels.
    """

    plan: Plan
    tag: str
    needs: CpuNeeds
    kernels: bytes
    code: tuple[str, ...]

    def write(self, folder: Path, entry: str = ENTRY) -> tuple[list[Path], list[Path]]:
        """Write what is linked into ``folder``: object files, and C files.

        The function that runs the plan is called ``entry``.
        """
        compiled = folder / "kernels.o"
        compiled.write_bytes(self.kernels)
        texts = []
        for number, text in enumerate([entry_source(self.plan, self.tag, entry), *self.code]):
            texts.append(folder / f"source{number}.c")
            texts[-1].write_text(text)
        return [compiled], texts


def packed(parts: Parts) -> bytes:
    """All of ``parts`` but the plan and the needs, compressed."""
    head = json.dumps({"tag": parts.tag, "code": parts.code})
    return zlib.compress(head.encode() + b"\0" + parts.kernels)


def unpacked(data: bytes, plan: Plan, needs: CpuNeeds) -> Parts:
    """What :func:`packed` packed."""
    head, _, kernels = zlib.decompress(data).partition(b"\0")
    rest = json.loads(head)
    return Parts(plan, rest["tag"], needs, kernels, tuple(rest["code"]))
