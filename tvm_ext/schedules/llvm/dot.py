"""Instructions that sum products of 8-bit neighbours into lanes of int32.

``C[lane] += sum(A[k] * B[lane, k])`` over 4 neighbours (vpdpbusd: A is unsigned): the schedules of
integer products give TVM their innermost loops as such a step. Over 2 (vpmaddwd, on numbers widened
to 16 bits: vpmaddubsw would saturate) the schedules are those of floats, on words.
"""

# TVMScript's buffers are no types to mypy.
# mypy: disable-error-code="valid-type"

from dataclasses import dataclass
from functools import cache

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T
from tvm.target import Target, codegen

__all__ = ["DEPTH", "Dot"]

#: How many neighbours an instruction sums that is a step of schedules.
DEPTH = 4

# Lanes of int32 -> the instruction.
_FOUR = {lanes: f"llvm.x86.avx512.vpdpbusd.{32 * lanes}" for lanes in (4, 8, 16)}
# What a CPU has -> the most lanes that it sums products of two neighbours in.
_WIDEST = {"avx512bw": 16, "avx2": 8, "sse2": 4}


@dataclass(frozen=True)
class Dot:
    """What sums ``depth`` products in each of ``lanes``; ``depth`` 1: there is no instruction."""

    lanes: int
    depth: int

    @classmethod
    def of(cls, target: Target, lanes: int) -> "Dot":
        """The best of ``target`` for so many lanes."""
        features = {
            feature
            for feature in ("avx512vnni", "avx512bw", "avxvnni", "avx2", "sse2")
            if codegen.target_has_features(feature, target)
        }
        if "avx512vnni" in features and lanes in _FOUR:
            return cls(lanes, DEPTH)
        if "avxvnni" in features and lanes in (4, 8):
            return cls(lanes, DEPTH)
        widest = next((most for feature, most in _WIDEST.items() if feature in features), 0)
        if lanes in _FOUR and lanes <= widest:
            return cls(lanes, 2)
        return cls(lanes, 1)

    @property
    def unsigned(self) -> bool:
        """Whether the left side must be unsigned."""
        return self.depth == DEPTH

    def intrinsic(self, left: str) -> str:
        """The name of TVM's tensor intrinsic for a left side of type ``left``; of four."""
        assert self.depth == DEPTH
        return _registered(self.lanes, left)


@cache
def _registered(lanes: int, left: str) -> str:
    """The intrinsic's name, registered once."""
    name = f"tvm_ext.dot_{left}_{lanes}"
    TensorIntrin.register(name, _step(lanes, left), _instruction(lanes, left), True)
    return name


def _step(lanes: int, left: str):
    """What the instruction computes, as the kernels of ``ops.integer_products`` write it."""
    depth = DEPTH
    if left == "int8":

        @T.prim_func(s_tir=True)
        def moved(
            A: T.Buffer((depth,), left, offset_factor=1),
            B: T.Buffer((lanes, depth), "int8", offset_factor=1),
            C: T.Buffer((lanes,), "int32", offset_factor=1, scope="local"),
        ) -> None:
            with T.sblock("root"):
                T.reads(C[0:lanes], A[0:depth], B[0:lanes, 0:depth])
                T.writes(C[0:lanes])
                for i in T.serial(0, lanes):
                    for k in T.serial(0, depth):
                        with T.sblock("update"):
                            vi, vk = T.axis.remap("SR", [i, k])
                            C[vi] = C[vi] + (T.cast(A[vk], "int32") + 128) * T.cast(
                                B[vi, vk], "int32"
                            )

        return moved

    @T.prim_func(s_tir=True)
    def plain(
        A: T.Buffer((depth,), left, offset_factor=1),
        B: T.Buffer((lanes, depth), "int8", offset_factor=1),
        C: T.Buffer((lanes,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:depth], B[0:lanes, 0:depth])
            T.writes(C[0:lanes])
            for i in T.serial(0, lanes):
                for k in T.serial(0, depth):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + T.cast(A[vk], "int32") * T.cast(B[vi, vk], "int32")

    return plain


def _instruction(lanes: int, left: str):
    """vpdpbusd; 128 more than a signed byte is the byte with its first bit flipped."""
    sums, both, part = f"int32x{lanes}", f"int8x{4 * lanes}", f"{left}x4"
    flip = -0x7F7F7F80 if left == "int8" else 0

    @T.prim_func(s_tir=True)
    def four(
        A: T.Buffer((4,), left, offset_factor=1),
        B: T.Buffer((lanes, 4), "int8", offset_factor=1),
        C: T.Buffer((lanes,), "int32", offset_factor=1, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:4], B[0:lanes, 0:4])
            T.writes(C[0:lanes])
            C[T.ramp(T.int32(0), 1, lanes)] = T.call_llvm_pure_intrin(
                T.llvm_lookup_intrinsic_id(_FOUR[lanes]),
                C.vload([0], dtype=sums),
                T.reinterpret(
                    T.broadcast(
                        T.bitwise_xor(
                            T.reinterpret(A.vload([0], part), dtype="int32"), T.int32(flip)
                        ),
                        lanes,
                    ),
                    dtype=both,
                ),
                B.vload([0, 0], dtype=both),
                dtype=sums,
            )

    return four
