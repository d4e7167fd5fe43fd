"""What a check found, as data, as a table, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ..display import as_html, as_text

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
class Report:
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

    def to_json(self) -> str:
        """Every finding, as JSON."""
        return json.dumps(asdict(self) | {"passed": self.passed}, indent=2)

    def _table(self):
        from rich.table import Table
        from rich.text import Text

        counts = f"{len(self.findings) - len(self.failures)} of {len(self.findings)} checks pass"
        operators = dict.fromkeys(finding.operator for finding in self.findings)
        table = Table(
            title=f"{', '.join(operators)}: {counts}" if operators else "no operator is declared",
            caption=self.plugin,
        )
        for column in ("check", "case", "", "remark"):
            table.add_column(column, overflow="fold")
        for name in operators:
            for finding in (f for f in self.findings if f.operator == name):
                mark = Text("ok", "green") if finding.passed else Text("FAILED", "red")
                texts = (Text(finding.check), Text(finding.case), mark, Text(finding.remark))
                table.add_row(*texts)
            table.add_section()
        return table

    def __rich__(self):
        return self._table()

    def __str__(self) -> str:
        return as_text(self._table(), width=140)

    def _repr_html_(self) -> str:
        return as_html(self._table())
