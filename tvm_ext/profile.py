"""Time per kernel, traced back to ONNX nodes and held against the machine's peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .display import Shown, table

__all__ = ["KernelFacts", "KernelTime", "Peak", "Profile", "summarise"]


@dataclass(frozen=True)
class Peak:
    """GFLOP/s of float32 multiply-add in registers, GB/s read from and written to memory."""

    gflops: float
    gbytes: float
    threads: int


@dataclass(frozen=True)
class KernelFacts:
    """What a kernel does: the ONNX nodes that it computes, its arithmetic, bytes in and out, and
    the compound operators in it, with their attributes."""

    nodes: tuple[str, ...]
    flops: int | None
    bytes: int | None
    compounds: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelTime:
    """One kernel call of a run: seconds (median), operations, bytes read and written once."""

    kernel: str
    nodes: tuple[str, ...]
    seconds: float
    flops: int | None
    bytes: int | None
    compounds: tuple[str, ...] = ()

    @property
    def gflops(self) -> float | None:
        return None if self.flops is None else self.flops / self.seconds / 1e9

    @property
    def gbytes(self) -> float | None:
        return None if self.bytes is None else self.bytes / self.seconds / 1e9


@dataclass(frozen=True)
class Profile(Shown):
    """The kernels of a run in order; prints as a table, slowest first."""

    kernels: tuple[KernelTime, ...]
    repeat: int
    peak: Peak | None

    @property
    def seconds(self) -> float:
        return sum(kernel.seconds for kernel in self.kernels)

    def _derived(self) -> Mapping[str, object]:
        return {"seconds": self.seconds}

    def __rich__(self):
        title = f"{len(self.kernels)} kernels, {self.seconds * 1e3:.4g} ms, median of {self.repeat}"
        caption = None
        if self.peak is not None:
            caption = (
                f"peak of this machine, {self.peak.threads} threads, measured: "
                f"{self.peak.gflops:.0f} GFLOP/s, {self.peak.gbytes:.0f} GB/s"
            )
        numbers = "us", "%", "GFLOP/s", "of peak", "GB/s"
        ordered = sorted(self.kernels, key=lambda k: -k.seconds)
        columns = [*numbers, "kernel", "ONNX nodes"]
        rows = [[*self._row(k), k.kernel, ", ".join(k.nodes)] for k in ordered]
        if any(kernel.compounds for kernel in ordered):
            columns.append("compound")
            rows = [[*row, ", ".join(k.compounds)] for row, k in zip(rows, ordered, strict=True)]
        return table(columns, rows, numbers=numbers, title=title, caption=caption)

    def _row(self, kernel: KernelTime) -> list[str]:
        of_peak = ""
        if kernel.gflops is not None and self.peak is not None:
            of_peak = f"{kernel.gflops / self.peak.gflops:.0%}"
        return [
            f"{kernel.seconds * 1e6:.1f}",
            f"{kernel.seconds / self.seconds:.1%}",
            _number(kernel.gflops),
            of_peak,
            _number(kernel.gbytes),
        ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def summarise(
    calls: Sequence[tuple[str, str]],
    facts: Mapping[str, KernelFacts],
    seconds: np.ndarray,
    peak: Peak | None,
) -> Profile:
    """The profile of ``calls`` (symbol, variable) timed as ``seconds[repeat, call]``."""
    unknown = KernelFacts((), None, None)
    rows = (
        KernelTime(
            symbol,
            (fact := facts.get(variable, unknown)).nodes,
            float(median),
            fact.flops,
            fact.bytes,
            fact.compounds,
        )
        for (symbol, variable), median in zip(calls, np.median(seconds, axis=0), strict=True)
    )
    return Profile(tuple(rows), len(seconds), peak)
