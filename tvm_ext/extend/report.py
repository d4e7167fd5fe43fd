"""What a check found, as data, as a table, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..display import Shown, table

__all__ = ["Finding", "Report"]


@dataclass(frozen=True)
class Finding:
    """One check of one case.

    Attributes:
        error: the largest, as a part of ``1 + |want|``; None where nothing was computed.
        seconds, generic: of a run with the plugin's schedule, and with the built-in ones.
    """

    check: str
    case: str
    passed: bool
    detail: str = ""
    error: float | None = None
    seconds: float | None = None
    generic: float | None = None
    operator: str = ""

    @property
    def remark(self) -> str:
        """Why it failed, or what was measured."""
        if self.detail:
            return self.detail
        if self.seconds is not None and self.generic is not None:
            return (
                f"{self.seconds * 1e6:.0f} us, generic {self.generic * 1e6:.0f} us "
                f"({self.generic / self.seconds:.2f}x)"
            )
        return "" if self.error is None else f"error {self.error:.1e}"


@dataclass(frozen=True)
class Report(Shown):
    """The findings on one plugin; prints as a table, failures in full."""

    plugin: str
    findings: tuple[Finding, ...]

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.passed]

    @property
    def passed(self) -> bool:
        """Whether every check passed, and there were any."""
        return bool(self.findings) and not self.failures

    def _derived(self) -> Mapping[str, object]:
        return {"passed": self.passed}

    def __rich__(self):
        from rich.text import Text

        counts = f"{len(self.findings) - len(self.failures)} of {len(self.findings)} checks pass"
        operators = dict.fromkeys(finding.operator for finding in self.findings)
        title = f"{', '.join(operators)}: {counts}" if operators else "nothing is declared"
        grid = table(("check", "case", "", "remark"), title=title, caption=self.plugin)
        for name in operators:
            for finding in (f for f in self.findings if f.operator == name):
                mark = Text("ok", "green") if finding.passed else Text("FAILED", "red")
                texts = (Text(finding.check), Text(finding.case), mark, Text(finding.remark))
                grid.add_row(*texts)
            grid.add_section()
        return grid
