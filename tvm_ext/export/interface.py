"""What the texts of a package are written from: names, tensors, sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..executors.cpu import CpuNeeds
from ..executors.emit import ENTRY
from ..executors.parts import Parts
from ..executors.plan import Plan, Slot
from ..model import CompiledModel
from ..ops.float8 import FORMATS
from .identifiers import identifier, identifiers

__all__ = ["C_TYPES", "Built", "Dim", "Interface", "Tensor", "Variant", "checksum"]

# What holds an element in C; of types that C lacks, its bits.
C_TYPES = {
    "float32": "float",
    "float64": "double",
    "bool": "uint8_t",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    **dict.fromkeys(FORMATS, "uint8_t"),
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
        return C_TYPES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Built:
    """A model that was built for one choice of sizes and one ``level`` of CPUs; ``parts`` run it.

    ``witness`` gives the same answers on this machine, where ``model`` is for another.
    """

    sizes: tuple[int, ...]
    level: str
    model: CompiledModel
    parts: Parts
    witness: CompiledModel


@dataclass(frozen=True)
class Variant:
    """A model at one choice of sizes of its symbolic dims; the function ``entry`` runs it."""

    entry: str
    sizes: tuple[int, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    constants: tuple[Tensor, ...]
    arena_bytes: int
    live_bytes: int
    scratch_bytes: int
    checks: tuple[str, ...]

    @classmethod
    def of(cls, number: int, built: Built) -> Variant:
        """What C needs to know of ``built``, which is variant ``number`` of its package."""
        model, plan = built.model, built.parts.plan
        return cls(
            f"{ENTRY}_{built.parts.tag}_{number}",
            built.sizes,
            _tensors([info.name for info in model.inputs], plan.inputs),
            _tensors([info.name for info in model.outputs], plan.outputs),
            _constants(model, plan),
            plan.arena_bytes,
            plan.live_bytes,
            plan.scratch_bytes,
            tuple(check.text for check in plan.checks),
        )


@dataclass(frozen=True)
class Dim:
    """A symbolic dim that a package has several sizes of."""

    name: str
    id: str


@dataclass(frozen=True)
class Level:
    """What CPUs with these features run: a variant for each choice of sizes."""

    features: tuple[str, ...]
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class Interface:
    """A model as C sees it.

    Attributes:
        id: the prefix of its functions and the name of its files.
        dims: what its users choose a size of; without any there is one variant.
        levels: what CPUs it has code for, the best first.
        embedded: whether its library holds the weights.
        checksum: of these: bytes, sum of their 64-bit words, sum of those sums.
        tag: what keeps internal names apart from those of other models.
        single_thread: whether it does without pthreads.
    """

    name: str
    id: str
    dims: tuple[Dim, ...]
    levels: tuple[Level, ...]
    checksum: tuple[int, int, int]
    embedded: bool
    triple: str
    tag: str
    single_thread: bool

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Those of the best level."""
        return self.levels[0].variants

    @property
    def programs(self) -> list[Variant]:
        """Those of all levels, one after the other."""
        return [variant for level in self.levels for variant in level.variants]

    @property
    def weights_symbol(self) -> str:
        """The embedded weights."""
        return f"tvmx_weights_{self.tag}"

    @property
    def macro(self) -> str:
        return self.id.upper()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Those of the first variant: names and dtypes are those of all."""
        return self.variants[0].inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Those of the first variant."""
        return self.variants[0].outputs

    @classmethod
    def of(
        cls,
        name: str,
        dims: Sequence[str],
        built: Sequence[Built],
        weights: np.ndarray,
        embedded: bool,
        single_thread: bool,
    ) -> Interface:
        """The interface of a model that was built for one or more sizes of ``dims``, and that on
        one or more levels."""
        first = built[0].parts
        programs: dict[CpuNeeds, list[Variant]] = {}
        for number, one in enumerate(built):
            programs.setdefault(one.parts.needs, []).append(Variant.of(number, one))
        return cls(
            name,
            identifier(name),
            tuple(map(Dim, dims, identifiers(dims))),
            tuple(Level(needs.features, tuple(of)) for needs, of in programs.items()),
            checksum(weights),
            embedded,
            first.needs.triple,
            first.tag,
            single_thread,
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
