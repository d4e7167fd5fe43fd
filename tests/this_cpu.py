"""What this CPU has, and other CPUs that it can stand for."""

import pytest
from tvm.target import codegen

from tvm_ext import targets
from tvm_ext.schedules.machine import Machine

__all__ = ["WITHOUT_TILES", "needs_avx512_vnni", "needs_bfloat16", "needs_tiles"]

_HERE = targets.host_target()
_MACHINE = Machine.of(_HERE)

_OFF = ["-amx-bf16", "-amx-int8"] if _MACHINE.tiles else []

#: This CPU, as one that has no AMX.
WITHOUT_TILES = {
    "kind": "llvm",
    "num-cores": int(_HERE.attrs["num-cores"]),
    **({"mcpu": str(_HERE.attrs["mcpu"])} if "mcpu" in _HERE.attrs else {}),
    "mattr": [*map(str, _HERE.attrs.get("mattr", [])), *_OFF],
}

needs_bfloat16 = pytest.mark.skipif(not _MACHINE.bfloat16, reason="this CPU has no AVX512_BF16")
needs_tiles = pytest.mark.skipif(not _MACHINE.tiles, reason="this CPU has no AMX")
needs_avx512_vnni = pytest.mark.skipif(
    not codegen.target_has_features("avx512vnni", _HERE), reason="this CPU has no AVX512_VNNI"
)
