"""What the texts of a package are written from: names, tensors, sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..executors.parts import Parts
from ..executors.plan import Plan, Slot
from ..model import CompiledModel
from .identifiers import identifier, identifiers

__all__ = ["C_TYPES", "Interface", "Tensor", "checksum"]

# What holds an element in C; of types that C lacks, its bits.
C_TYPES = {
    "float32": "float",
    "float64": "double",
    "bool": "uint8_t",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
} | {f"{u}int{bits}": f"{u}int{bits}_t" for u in ("", "u") for bits in (8, 16, 32, 64)}


@dataclass(frozen=True)
class Tensor:
    """A tensor of the C interface: ``id`` is its name as an identifier."""

    name: str
    id: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def element(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.element

    @property
    def c_type(self) -> str:
        return C_TYPES.get(self.dtype, "uint8_t")

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Interface:
    """A model as C sees it.

    Attributes:
        id: the prefix of its functions and the name of its files.
        embedded: whether its library holds the weights.
        checksum: of these: bytes, sum of their 64-bit words, sum of those sums.
    """

    name: str
    id: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    constants: tuple[Tensor, ...]
    arena_bytes: int
    scratch_bytes: int
    checksum: tuple[int, int, int]
    embedded: bool
    triple: str
    features: tuple[str, ...]

    @property
    def macro(self) -> str:
        return self.id.upper()

    @classmethod
    def of(
        cls,
        name: str,
        model: CompiledModel,
        parts: Parts,
        weights: np.ndarray,
        embedded: bool,
    ) -> Interface:
        """The interface of ``model``, which ``parts`` run."""
        plan = parts.plan
        return cls(
            name,
            identifier(name),
            _tensors([info.name for info in model.inputs], plan.inputs),
            _tensors([info.name for info in model.outputs], plan.outputs),
            _constants(model, plan),
            plan.arena_bytes,
            parts.scratch_bytes,
            checksum(weights),
            embedded,
            parts.needs.triple,
            parts.needs.features,
        )


def _tensors(names: Sequence[str], slots: Sequence[Slot]) -> tuple[Tensor, ...]:
    ids = identifiers(names)
    rows = zip(names, ids, slots, strict=True)
    return tuple(Tensor(name, id, slot.dtype, slot.shape) for name, id, slot in rows)


def _constants(model: CompiledModel, plan: Plan) -> tuple[Tensor, ...]:
    """The constants as kernels read them, named after the ONNX nodes that do."""
    found: dict[int, Tensor] = {}
    for kernel in plan.kernels:
        for position, slot in enumerate(kernel.reads):
            root = slot.root
            if root.kind == "weight" and root.index not in found:
                nodes = ", ".join(model.nodes_of(kernel.variable)) or kernel.symbol
                name = f"{nodes} [{position}]"
                found[root.index] = Tensor(name, "", root.dtype, root.shape)
    return tuple(found[index] for index in sorted(found))


def checksum(weights: np.ndarray) -> tuple[int, int, int]:
    """Bytes, sum of their 64-bit words, sum of the sums so far; modulo 2^64."""
    words, total, sum_of_sums = weights.view(np.uint64), 0, 0
    for start in range(0, words.size, 1 << 20):
        part = words[start : start + (1 << 20)]
        times = np.arange(part.size, 0, -1, dtype=np.uint64)  # each word is in so many sums
        sum_of_sums += total * part.size + int(np.dot(times, part))
        total += int(part.sum(dtype=np.uint64))
    return weights.size, total % (1 << 64), sum_of_sums % (1 << 64)
