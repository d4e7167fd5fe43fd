"""What code for a target needs of a CPU, as LLVM knows it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import tvm
from tvm import IRModule
from tvm.target import Target, codegen

from .cpu import TILES, CpuNeeds, tiles_granted
from .tiles import uses_tiles

__all__ = ["masked_features", "needs_of", "triple_of"]

# What LLVM emits without being asked by an intrinsic. Others (movdiri, pku) stand in the list of a
# CPU too, and virtual machines hide them; code does without.
_EMITTED = re.compile(
    r"s?sse|avx|fma|f16c|xop|tbm|bmi|lzcnt|popcnt|movbe|gfni|cmov|egpr|ndd|ccmp|zu$|nf$"
    r"|neon|sve|dotprod|fullfp16|bf16|i8mm|lse|fp-armv8|vfp[34]$|d32$|[acdfmv]$"
)


# What only kernels use that ask for it.
_OF_TILES = TILES, "amx-bf16", "amx-int8"


def needs_of(target: Target, module: IRModule | None = None) -> CpuNeeds:
    """The needs of code for ``target``, of its host where that is a GPU, and of the kernels of
    ``module``."""
    target = target.host if target.kind.name != "llvm" and target.host else target
    features = sorted(filter(_EMITTED.match, codegen.llvm_get_cpu_features(target)))
    if module is not None and uses_tiles(module):
        features = sorted([*features, *_OF_TILES])
    return CpuNeeds(triple_of(target), tuple(features))


def triple_of(target: Target) -> str:
    """The machine of an LLVM target as LLVM writes it: ``x86_64-linux-gnu``."""
    return str(target.attrs.get("mtriple", codegen.llvm_get_system_triple()))


def masked_features(target: Target) -> list[str]:
    """What a CPU of that name has and this one hides, as virtual machines make them do.

    So are tiles that the system does not grant.
    """
    tiles = [f for f in _OF_TILES if codegen.target_has_features(f, target)]
    hidden = [f for f in (*needs_of(target).features, *tiles) if not _host_features().get(f, True)]
    if tiles and not tiles_granted():
        hidden += [f for f in tiles if f not in hidden]
    return hidden


@cache
def _host_features() -> Mapping[str, bool]:
    """Feature -> whether this CPU has it; features that LLVM cannot see here are left out."""
    found = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    return {str(name): bool(there) for name, there in found.items()}
