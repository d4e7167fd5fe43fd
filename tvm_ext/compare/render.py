"""A comparison as a table and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..display import table
from ..errors import OutputPathError
from .optional import require

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from .result import Comparison, Side

__all__ = ["format_bytes", "plot", "tables"]

MEGABYTE = 1e6


def format_bytes(count: int | None) -> str:
    """Decimal megabytes; a dash where the number is not known."""
    return "-" if count is None else f"{count / MEGABYTE:.1f} MB"


def tables(comparison: Comparison) -> Group:
    """Two tables, performance and accuracy, under one heading; for rich to print."""
    from rich.console import Group
    from rich.text import Text

    head = (
        f"{comparison.model}  {', '.join(comparison.inputs)}\n"
        f"{comparison.machine.cpu}, {comparison.threads} of {comparison.machine.cpus} CPUs, "
        f"target {comparison.target}, opt_level {comparison.opt_level}, {comparison.precision}, "
        f"{comparison.date}"
    )
    notes = map(Text, _notes(comparison))
    return Group(Text(head), _performance(comparison), _accuracy(comparison), *notes)


def _performance(comparison: Comparison) -> Table:
    sides = comparison.ours, comparison.theirs
    rows = [
        (name, ours, theirs) for (name, ours), (_, theirs) in zip(*map(_column, sides), strict=True)
    ]
    rows.append(("speed", f"{comparison.speedup:.2f}x", "1.00x"))
    return table(("", *(f"{side.engine} {side.version}" for side in sides)), rows)


def _column(side: Side) -> list[tuple[str, str]]:
    latency = side.latency
    build = "-" if side.build_seconds is None else f"{side.build_seconds:.2f} s"
    return [
        ("latency, median", f"{latency.median * 1e3:.3f} ms"),
        ("latency, p10 to p90", f"{latency.p10 * 1e3:.3f} to {latency.p90 * 1e3:.3f} ms"),
        ("resident memory added", format_bytes(side.resident_bytes)),
        ("whole process, packages too", format_bytes(side.process_bytes)),
        ("planned arena", format_bytes(side.arena_bytes)),
        ("weights", format_bytes(side.weight_bytes)),
        ("build", build),
        ("load", f"{side.load_seconds:.3f} s"),
    ]


def _accuracy(comparison: Comparison) -> Table:
    columns = "output", "type", "max abs", "max rel", "tolerance that passes", "NaN, inf"
    rows = (
        (
            output.name,
            f"{output.dtype}{list(output.shape)}",
            f"{output.max_abs:.2e}",
            f"{output.max_rel:.2e}",
            f"{output.tolerance:.2e}",
            str(output.non_finite),
        )
        for output in comparison.outputs
    )
    return table(columns, rows)


def _notes(comparison: Comparison) -> list[str]:
    sides = comparison.ours, comparison.theirs
    notes = [f"{side.engine}: {side.threading}; {side.latency.runs} runs" for side in sides]
    noisy = [side.engine for side in sides if not side.latency.quiet]
    if noisy:
        notes.append(f"other processes were busy in every block of {', '.join(noisy)}")
    return notes


def plot(comparison: Comparison, path: Path) -> Path:
    """Bars of latency (whiskers: p10 to p90) and of memory, written to ``path``.

    Raises:
        MissingPackageError: matplotlib is not installed.
        OutputPathError: the file cannot be written.
    """
    figure = require("matplotlib.figure").Figure(figsize=(8, 3.5), layout="constrained")
    sides = comparison.ours, comparison.theirs
    names, colours = [side.engine for side in sides], ["tab:blue", "tab:gray"]
    latency, memory = figure.subplots(1, 2)
    medians = [side.latency.median * 1e3 for side in sides]
    whiskers = [
        [(side.latency.median - side.latency.p10) * 1e3 for side in sides],
        [(side.latency.p90 - side.latency.median) * 1e3 for side in sides],
    ]
    bars = latency.bar(names, medians, yerr=whiskers, capsize=6, color=colours)
    latency.bar_label(bars, fmt="%.3g", label_type="center", color="white")
    latency.set_ylabel("ms per run (median, p10 to p90)")
    bars = memory.bar(names, [side.resident_bytes / MEGABYTE for side in sides], color=colours)
    memory.bar_label(bars, fmt="%.3g", label_type="center", color="white")
    memory.set_ylabel("resident MB added by load and run")
    figure.suptitle(f"{comparison.model}, {comparison.threads} threads, {comparison.machine.cpu}")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:  # ValueError: no image format has this suffix
        reason = getattr(error, "strerror", None) or error
        raise OutputPathError(f"cannot write {path}: {reason}") from error
    return path
