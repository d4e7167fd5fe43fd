"""Which CPU machine code was made for, and whether this one can run it.

Part of what loading a model needs: nothing here imports TVM.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..errors import TargetError

__all__ = ["TILES", "TILE_REQUEST", "CpuNeeds", "tiles_granted"]

#: The feature whose registers a process has to ask for.
TILES = "amx-tile"

#: The system call for that: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) of Linux.
TILE_REQUEST = 158, 0x1023, 18

_SYSTEMS = "linux", "darwin", "macos", "windows"
_SAME = {"amd64": "x86_64", "arm64": "aarch64"}

# LLVM's feature -> the flag by which Linux lists it, for those that every kernel of these years
# lists. Others are not checked: an older kernel may be silent about what the CPU has.
_SAME_NAME = """
    sse sse2 ssse3 sse4a avx avx2 fma fma4 f16c xop tbm bmi2 popcnt movbe gfni cmov avx512f avx512cd
    avx512bw avx512dq avx512vl avx512ifma avx512vbmi
"""
_X86 = {name: name for name in _SAME_NAME.split()} | {
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
    "amx-tile": "amx_tile",
    "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8",
}
_AARCH64 = {name: name for name in ("sve", "sve2", "bf16", "i8mm")} | {
    "fp-armv8": "fp",
    "neon": "asimd",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
    "lse": "atomics",
}
_ARM = {"neon": "neon", "vfp3": "vfpv3", "vfp4": "vfpv4", "d32": "vfpd32"}
_RISCV = {name: name for name in "acdfmv"}  # letters of what Linux calls the ISA
_FLAGS = {"x86_64": _X86, "aarch64": _AARCH64, "arm": _ARM, "riscv64": _RISCV}


@dataclass(frozen=True)
class CpuNeeds:
    """What machine code needs of a CPU: its kind and system, and optional instructions."""

    triple: str
    features: tuple[str, ...]

    @property
    def foreign(self) -> bool:
        """Whether the code is for another kind of machine than this."""
        return _machine(self.triple) != _machine(_this_machine())

    def lacking(self) -> str | None:
        """Why running the code would end this process; None where it would not."""
        if self.foreign:
            return f"for {self.triple}; this machine is {_this_machine()}"
        missing = [name for name in self.features if not _host_features().get(name, True)]
        if missing:
            return f"for a CPU with {', '.join(missing)}, which this one lacks"
        if TILES in self.features and not tiles_granted():
            return f"for a CPU with {TILES}, whose registers this system does not grant"
        return None

    def check(self) -> None:
        """Raise where running the code would end this process.

        Raises:
            TargetError: this is another kind of machine, or its CPU lacks instructions.
        """
        lacking = self.lacking()
        if lacking is not None:
            raise TargetError(
                f"the model was built {lacking}: build it for target='llvm' here, or run it there"
            )


@cache
def tiles_granted() -> bool:
    """Whether Linux gives this process, all of its threads, the registers of AMX's tiles."""
    if platform.machine().lower() not in ("x86_64", "amd64") or platform.system() != "Linux":
        return False
    return ctypes.CDLL(None).syscall(*TILE_REQUEST) == 0


@cache
def _host_features() -> Mapping[str, bool]:
    """Feature -> whether this CPU has it; features that the system does not list are left out."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    return _listed(text, _machine(_this_machine())[0])


def _listed(cpuinfo: str, machine: str) -> dict[str, bool]:
    """What ``_host_features`` finds in the text that Linux gives on such a machine."""
    rows = (line.partition(":") for line in cpuinfo.splitlines())
    found = {name.strip(): value.strip() for name, _, value in rows}
    isa = found.get("isa", "").partition("_")[0]  # rv64imafdcv_zicsr
    flags = found.get("flags", found.get("Features", " ".join(isa[len("rv64") :]))).split()
    names = _FLAGS.get(machine, {}) if flags else {}
    return {name: flag in flags for name, flag in names.items()}


def _this_machine() -> str:
    return f"{platform.machine().lower()}-{platform.system().lower()}"


def _machine(triple: str) -> tuple[str, str]:
    """Architecture and system of a triple; what it does not name is this machine's."""
    first, *rest = triple.split("-")
    system = next((s for s in _SYSTEMS for part in rest if part.startswith(s)), "linux")
    machine = "arm" if first.startswith("armv") else _SAME.get(first, first)
    return machine, {"macos": "darwin"}.get(system, system)
