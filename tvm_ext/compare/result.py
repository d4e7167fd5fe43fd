"""What a comparison found, as data."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from ..display import Shown
from .render import plot, tables
from .statistics import Accuracy, Latency

__all__ = ["Comparison", "Machine", "Side", "this_machine"]


@dataclass(frozen=True)
class Machine:
    """Where a comparison ran."""

    cpu: str
    cpus: int
    system: str
    python: str


def this_machine() -> Machine:
    """The machine of this process."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    return Machine(cpu, os.cpu_count() or 1, platform.platform(), platform.python_version())


@dataclass(frozen=True)
class Side:
    """One engine's part.

    Attributes:
        engine: its name in ``tvm_ext.compare.engines.ENGINES``.
        version: of its package.
        threading: what its threads do between runs.
        build_seconds: ahead-of-time compilation; None where loading does it all.
        load_seconds: from the file to the first possible run, packages imported before.
        resident_bytes: resident memory that loading and two runs added to a fresh process.
        process_bytes: resident memory of that process, the engine's packages included.
        arena_bytes: planned for activations; None where the engine does not say.
        weight_bytes: constants as stored for running; None likewise.
        latency: of one run, numpy arrays in, numpy arrays out.
    """

    engine: str
    version: str
    threading: str
    build_seconds: float | None
    load_seconds: float
    resident_bytes: int
    process_bytes: int
    arena_bytes: int | None
    weight_bytes: int | None
    latency: Latency


@dataclass(frozen=True)
class Comparison(Shown):
    """Ours against another engine, on one model and one set of inputs.

    ``inputs`` are written as ``name: dtype[shape]``; ``outputs`` hold how far ours is from theirs.
    """

    model: str
    inputs: tuple[str, ...]
    outputs: tuple[Accuracy, ...]
    ours: Side
    theirs: Side
    threads: int
    target: str
    opt_level: int
    precision: str
    machine: Machine
    date: str

    @property
    def speedup(self) -> float:
        """Their median latency over ours."""
        return self.theirs.latency.median / self.ours.latency.median

    @property
    def tolerance(self) -> float:
        """The smallest tolerance, relative and absolute, at which every output agrees."""
        return max(output.tolerance for output in self.outputs)

    def agrees(self, tolerance: float = 1e-3) -> bool:
        """Whether ``|ours - theirs| <= tolerance * (1 + |theirs|)`` holds everywhere."""
        return self.tolerance <= tolerance

    def plot(self, path: str | os.PathLike) -> Path:
        """Draw latency and memory side by side into an image file."""
        return plot(self, Path(path))

    def __rich__(self):
        return tables(self)
