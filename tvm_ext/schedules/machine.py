"""What schedules need to know of a CPU, as data read from the target's features."""

from dataclasses import dataclass
from functools import lru_cache

from tvm import DataType
from tvm.target import Target, codegen

__all__ = ["Machine"]

# Feature -> (vector bits, vector registers, L2 bytes per core); first match wins.
# Cache sizes are the smallest of the cores that have the feature. Scalable vectors (sve, v) are
# used as if they had the 128 bits that all of them have.
_FEATURES = {
    "avx512f": (512, 32, 1 << 20),
    "avx2": (256, 16, 256 << 10),
    "avx": (256, 16, 256 << 10),
    "sve": (128, 32, 512 << 10),
    "fp-armv8": (128, 32, 512 << 10),
    "neon": (128, 16, 256 << 10),  # of 32-bit ARM
    "sse2": (128, 16, 256 << 10),
    "simd128": (128, 16, 256 << 10),
    "v": (128, 32, 256 << 10),
}
# No vectors: LLVM makes one of four of the 32 scalar registers.
_UNKNOWN = (128, 8, 256 << 10)

_BFLOAT16 = "avx512bf16"
_TILES, _INTEGER_TILES = "amx-bf16", "amx-int8"


@dataclass(frozen=True)
class Machine:
    """Vector registers, caches and cores of an llvm target.

    ``bfloat16``: it has products of bfloat16 that are summed in float32; ``tiles``: also of whole
    tiles of them; ``integer_tiles``: of such of bytes.
    """

    vector_bits: int
    registers: int
    l2_bytes: int
    cores: int
    bfloat16: bool
    tiles: bool
    integer_tiles: bool

    @classmethod
    @lru_cache(maxsize=16)  # each rule asks, of each kernel
    def of(cls, target: Target) -> "Machine":
        """The machine that ``target`` describes; one core unless it has ``num-cores``."""
        facts = next(
            (
                facts
                for feature, facts in _FEATURES.items()
                if codegen.target_has_features(feature, target)
            ),
            _UNKNOWN,
        )
        cores = max(int(target.attrs.get("num-cores", 1)), 1)
        asked = _BFLOAT16, _TILES, _INTEGER_TILES
        return cls(*facts, cores, *(codegen.target_has_features(f, target) for f in asked))

    def lanes(self, *dtypes: str) -> int:
        """Elements of the widest of ``dtypes`` in one vector register, at most 64."""
        widest = max(DataType(dtype).bits for dtype in dtypes)
        return min(max(self.vector_bits // max(widest, 8), 1), 64)
