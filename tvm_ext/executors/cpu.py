"""Which CPU machine code was made for, and whether this one can run it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import tvm
from tvm.target import Target, codegen

from ..errors import TargetError

__all__ = ["CpuNeeds", "masked_features", "triple_of"]

# What LLVM emits without being asked by an intrinsic. Others (movdiri, pku, amx-tile) stand in the
# list of a CPU too, and virtual machines hide them; code does without.
_EMITTED = re.compile(
    r"s?sse|avx|fma|f16c|xop|tbm|bmi|lzcnt|popcnt|movbe|gfni|cmov|egpr|ndd|ccmp|zu$|nf$"
    r"|neon|sve|dotprod|fullfp16|bf16|i8mm|lse|fp-armv8"
)
_SYSTEMS = "linux", "darwin", "macos", "windows"
_SAME = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class CpuNeeds:
    """What machine code needs of a CPU: its kind and system, and optional instructions."""

    triple: str
    features: tuple[str, ...]

    @classmethod
    def of(cls, target: Target) -> CpuNeeds:
        """The needs of code for ``target``; of its host where that is a GPU."""
        target = target.host if target.kind.name != "llvm" and target.host else target
        features = sorted(filter(_EMITTED.match, codegen.llvm_get_cpu_features(target)))
        return cls(triple_of(target), tuple(features))

    @property
    def foreign(self) -> bool:
        """Whether the code is for another kind of machine than this."""
        return _machine(self.triple) != _machine(str(codegen.llvm_get_system_triple()))

    def check(self) -> None:
        """Raise where running the code would end this process.

        Raises:
            TargetError: this is another kind of machine, or its CPU lacks instructions.
        """
        if self.foreign:
            lacks = f"for {self.triple}; this machine is {codegen.llvm_get_system_triple()}"
        else:
            missing = [name for name in self.features if not _host_features().get(name, True)]
            if not missing:
                return
            lacks = f"for a CPU with {', '.join(missing)}, which this one lacks"
        raise TargetError(
            f"the model was built {lacks}: build it for target='llvm' here, or run it there"
        )


def triple_of(target: Target) -> str:
    """The machine of an LLVM target as LLVM writes it: ``x86_64-linux-gnu``."""
    return str(target.attrs.get("mtriple", codegen.llvm_get_system_triple()))


def masked_features(target: Target) -> list[str]:
    """What a CPU of that name has and this one hides, as virtual machines make them do."""
    return [f for f in CpuNeeds.of(target).features if not _host_features().get(f, True)]


@cache
def _host_features() -> Mapping[str, bool]:
    """Feature -> whether this CPU has it; features that LLVM cannot see here are left out."""
    found = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    return {str(name): bool(there) for name, there in found.items()}


def _machine(triple: str) -> tuple[str, str]:
    """Architecture and system of a triple; what it does not name is this machine's."""
    parts = triple.split("-")
    system = next((s for s in _SYSTEMS for part in parts if part.startswith(s)), "linux")
    return _SAME.get(parts[0], parts[0]), system
