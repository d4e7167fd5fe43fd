"""Time per kernel, traced back to ONNX nodes and held against the machine's peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .counts import Count, counted
from .display import Shown, table

__all__ = ["KernelFacts", "KernelTime", "Peak", "Profile", "Work", "summarise"]


@dataclass(frozen=True)
class Peak:
    """GFLOP/s of float32 multiply-add in registers, GB/s read from memory.

    ``rates``: GB/s by the bytes that are read again and again; few stay in caches. ``dots``: 10^9
    operations per second of kinds of :attr:`Work.dots`, those that were asked for.
    """

    gflops: float
    gbytes: float
    threads: int
    rates: tuple[tuple[int, float], ...]
    dots: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, work: Work, all_weights: int) -> float:
        """What a kernel takes at least: of arithmetic and transfers that which takes longer.

        Weights are where a run leaves them that reads ``all_weights`` bytes; activations where
        the kernel before left them.
        """
        activations = (work.bytes or 0) - work.weights
        transfer = work.weights / self._rate(all_weights) + activations / self._rate(activations)
        return max(self.arithmetic(work), transfer / 1e9)

    def arithmetic(self, work: Work) -> float:
        """The seconds of the operations of a kernel."""
        dots = sum(count / self.dots.get(kind, self.gflops) for kind, count in work.dots.items())
        return ((work.flops or 0) / self.gflops + dots) / 1e9

    def _rate(self, size: int) -> float:
        sizes, rates = zip(*self.rates, strict=True)
        return float(np.interp(np.log(max(size, 1)), np.log(sizes), rates))


@dataclass(frozen=True)
class Work:
    """What a call of a kernel does: its arithmetic, bytes in and out; of these, those of constants.

    ``dots``: the operations of sums of products of narrow numbers, for which CPUs have
    instructions, by their type, "bfloat16", "int16" or "int8". ``flops``: all others on floats.
    """

    flops: int | None
    bytes: int | None
    weights: int = 0
    dots: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelFacts:
    """A kernel: the ONNX nodes that it computes, the counts of its :class:`Work`, and the compound
    operators in it, with their attributes.
    """

    nodes: tuple[str, ...]
    flops: Count | None
    bytes: Count | None
    compounds: tuple[str, ...] = ()
    weights: int = 0
    dots: Mapping[str, Count] = field(default_factory=dict)

    def work(self, shapes: Sequence[Sequence[int]]) -> Work:
        """What it does for inputs of such ``shapes``."""
        flops, transferred = (
            None if count is None else counted(count, shapes) for count in (self.flops, self.bytes)
        )
        dots = {kind: counted(count, shapes) for kind, count in self.dots.items()}
        return Work(flops, transferred, self.weights, dots)


@dataclass(frozen=True)
class KernelTime:
    """One kernel call of a run: seconds (median), operations, bytes read and written once.

    ``predicted``: the seconds that this machine needs at least, by its measured peak;
    ``arithmetic``: those of the operations alone.
    """

    kernel: str
    nodes: tuple[str, ...]
    seconds: float
    flops: int | None
    bytes: int | None
    compounds: tuple[str, ...] = ()
    dots: Mapping[str, int] = field(default_factory=dict)
    predicted: float | None = None
    arithmetic: float | None = None

    @property
    def gops(self) -> float | None:
        """10^9 operations per second, of all kinds."""
        if self.flops is None:
            return None
        return (self.flops + sum(self.dots.values())) / self.seconds / 1e9

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
                f"{self.peak.gflops:.0f} GFLOP/s, {_listed(self.peak.dots)}"
                f"{self.peak.gbytes:.0f} GB/s; by these the kernels take "
                f"{self.predicted * 1e3:.4g} ms at least"
            )
        numbers = "us", "%", "least us", "Gop/s", "of peak", "GB/s"
        ordered = sorted(self.kernels, key=lambda k: -k.seconds)
        columns = [*numbers, "kernel", "ONNX nodes"]
        rows = [[*self._row(k), k.kernel, ", ".join(k.nodes)] for k in ordered]
        if any(kernel.compounds for kernel in ordered):
            columns.append("compound")
            rows = [[*row, ", ".join(k.compounds)] for row, k in zip(rows, ordered, strict=True)]
        return table(columns, rows, numbers=numbers, title=title, caption=caption)

    def _row(self, kernel: KernelTime) -> list[str]:
        of_peak = ""
        if kernel.arithmetic is not None:
            of_peak = f"{kernel.arithmetic / kernel.seconds:.0%}"
        return [
            f"{kernel.seconds * 1e6:.1f}",
            f"{kernel.seconds / self.seconds:.1%}",
            "" if kernel.predicted is None else f"{kernel.predicted * 1e6:.1f}",
            _number(kernel.gops),
            of_peak,
            _number(kernel.gbytes),
        ]


def _listed(dots: Mapping[str, float]) -> str:
    return "".join(f"{rate:.0f} Gop/s of {kind}, " for kind, rate in dots.items())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def summarise(
    calls: Sequence[tuple[str, str]],
    facts: Mapping[str, KernelFacts],
    shapes: Sequence[Sequence[int]],
    seconds: np.ndarray,
    peak: Peak | None,
) -> Profile:
    """The profile of ``calls`` (symbol, variable) timed as ``seconds[repeat, call]``, for inputs of
    such ``shapes``."""
    unknown = KernelFacts((), None, None)
    all_weights = sum(fact.weights for fact in facts.values())
    rows = []
    for (symbol, variable), median in zip(calls, np.median(seconds, axis=0), strict=True):
        fact = facts.get(variable, unknown)
        work = fact.work(shapes)
        own = fact.nodes, float(median), work.flops, work.bytes, fact.compounds, work.dots
        predicted = None if peak is None or work.bytes is None else peak.seconds(work, all_weights)
        arithmetic = None if peak is None or work.flops is None else peak.arithmetic(work)
        rows.append(KernelTime(symbol, *own, predicted, arithmetic))
    return Profile(tuple(rows), len(seconds), peak)
