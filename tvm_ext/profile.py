"""Time per kernel, traced back to ONNX nodes and held against the machine's peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .display import Shown, table

__all__ = ["KernelFacts", "KernelTime", "Peak", "Profile", "summarise"]


@dataclass(frozen=True)
class Peak:
    """GFLOP/s of float32 multiply-add in registers, GB/s read from memory.

    ``rates``: GB/s by the bytes that are read again and again; few stay in caches.
    """

    gflops: float
    gbytes: float
    threads: int
    rates: tuple[tuple[int, float], ...]

    def seconds(self, flops: int, weights: int, activations: int, all_weights: int) -> float:
        """What a kernel takes at least: of arithmetic and transfers that which takes longer.

        Weights are where a run leaves them that reads ``all_weights`` bytes; activations where
        the kernel before left them.
        """
        transfer = weights / self._rate(all_weights) + activations / self._rate(activations)
        return max(flops / self.gflops, transfer) / 1e9

    def _rate(self, size: int) -> float:
        sizes, rates = zip(*self.rates, strict=True)
        return float(np.interp(np.log(max(size, 1)), np.log(sizes), rates))


@dataclass(frozen=True)
class KernelFacts:
    """What a kernel does: the ONNX nodes that it computes, its arithmetic, bytes in and out, and
    the compound operators in it, with their attributes; of the bytes, those of constants."""

    nodes: tuple[str, ...]
    flops: int | None
    bytes: int | None
    compounds: tuple[str, ...] = ()
    weights: int = 0


@dataclass(frozen=True)
class KernelTime:
    """One kernel call of a run: seconds (median), operations, bytes read and written once.

    ``predicted``: the seconds that this machine needs at least, by its measured peak.
    """

    kernel: str
    nodes: tuple[str, ...]
    seconds: float
    flops: int | None
    bytes: int | None
    compounds: tuple[str, ...] = ()
    predicted: float | None = None

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

    @property
    def predicted(self) -> float:
        """What this machine needs at least, in seconds, for the kernels whose work is known."""
        return sum(kernel.predicted or 0.0 for kernel in self.kernels)

    def _derived(self) -> Mapping[str, object]:
        return {"seconds": self.seconds}

    def __rich__(self):
        title = f"{len(self.kernels)} kernels, {self.seconds * 1e3:.4g} ms, median of {self.repeat}"
        caption = None
        if self.peak is not None:
            caption = (
                f"peak of this machine, {self.peak.threads} threads, measured: "
                f"{self.peak.gflops:.0f} GFLOP/s, {self.peak.gbytes:.0f} GB/s; by these the "
                f"kernels take {self.predicted * 1e3:.4g} ms at least"
            )
        numbers = "us", "%", "least us", "GFLOP/s", "of peak", "GB/s"
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
            "" if kernel.predicted is None else f"{kernel.predicted * 1e6:.1f}",
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
    all_weights = sum(fact.weights for fact in facts.values())
    rows = (
        KernelTime(
            symbol,
            (fact := facts.get(variable, unknown)).nodes,
            float(median),
            fact.flops,
            fact.bytes,
            fact.compounds,
            _predicted(fact, peak, all_weights),
        )
        for (symbol, variable), median in zip(calls, np.median(seconds, axis=0), strict=True)
    )
    return Profile(tuple(rows), len(seconds), peak)


def _predicted(fact: KernelFacts, peak: Peak | None, all_weights: int) -> float | None:
    if peak is None or fact.bytes is None:
        return None
    return peak.seconds(fact.flops or 0, fact.weights, fact.bytes - fact.weights, all_weights)
