"""Which CPU machine code was made for, and whether this one can run it.

Part of what loading a model needs: nothing here imports TVM.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..errors import TargetError

__all__ = ["CpuNeeds"]

_SYSTEMS = "linux", "darwin", "macos", "windows"
_SAME = {"amd64": "x86_64", "arm64": "aarch64"}

# LLVM's feature -> the flag by which Linux lists it, for those that every kernel of these years
# lists. Others are not checked: an older kernel may be silent about what the CPU has.
_SAME_NAME = """
    sse sse2 ssse3 sse4a avx avx2 fma fma4 f16c xop tbm bmi2 popcnt movbe gfni cmov avx512f avx512cd
    avx512bw avx512dq avx512vl avx512ifma avx512vbmi sve sve2 bf16 i8mm
"""
_FLAGS = {name: name for name in _SAME_NAME.split()} | {
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "avxvnni": "avx_vnni",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vp2intersect": "avx512_vp2intersect",
    "fp-armv8": "fp",
    "neon": "asimd",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
    "lse": "atomics",
}


@dataclass(frozen=True)
class CpuNeeds:
    """What machine code needs of a CPU: its kind and system, and optional instructions."""

    triple: str
    features: tuple[str, ...]

    @property
    def foreign(self) -> bool:
        """Whether the code is for another kind of machine than this."""
        return _machine(self.triple) != _machine(_this_machine())

    def check(self) -> None:
        """Raise where running the code would end this process.

        Raises:
            TargetError: this is another kind of machine, or its CPU lacks instructions.
        """
        if self.foreign:
            lacks = f"for {self.triple}; this machine is {_this_machine()}"
        else:
            missing = [name for name in self.features if not _host_features().get(name, True)]
            if not missing:
                return
            lacks = f"for a CPU with {', '.join(missing)}, which this one lacks"
        raise TargetError(
            f"the model was built {lacks}: build it for target='llvm' here, or run it there"
        )


@cache
def _host_features() -> Mapping[str, bool]:
    """Feature -> whether this CPU has it; features that the system does not list are left out."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    listed = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    flags = listed.partition(":")[2].split()
    return {name: flag in flags for name, flag in _FLAGS.items()} if flags else {}


def _this_machine() -> str:
    return f"{platform.machine().lower()}-{platform.system().lower()}"


def _machine(triple: str) -> tuple[str, str]:
    """Architecture and system of a triple; what it does not name is this machine's."""
    parts = triple.split("-")
    system = next((s for s in _SYSTEMS for part in parts if part.startswith(s)), "linux")
    return _SAME.get(parts[0], parts[0]), {"macos": "darwin"}.get(system, system)
