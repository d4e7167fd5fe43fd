"""What tuning has measured: a folder with a file per kernel, and the report of a build."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from ..display import Shown, table
from ..errors import OptionError, OutputPathError
from ..executors.atomic import replaced
from ..schedules.numbers import NEVER
from .contest import Recipe

__all__ = ["Record", "Records", "TunedKernel", "TuningReport"]

_NAME = re.compile(r"[0-9a-f]{64}\.json")

# What two measurements of one kernel differ by must not decide.
_CLEARLY = 0.95


@dataclass(frozen=True)
class Record:
    """A kernel on one target, measured.

    Attributes:
        kernel: its name in the model that it was tuned for.
        rules: least seconds as the rules schedule it; each call finds weights in memory.
        tuned: the same of the best candidate, measured in turns with it; None: none was faster.
        trials: candidates that were measured.
        recipe: of the best candidate.
        program: the digest of what the recipe makes.
    """

    kernel: str
    rules: float
    tuned: float | None
    trials: int
    recipe: Recipe | None
    program: str | None

    def __post_init__(self) -> None:
        numbers = [self.rules] + ([] if self.tuned is None else [self.tuned])
        if not all(isinstance(n, float) and 0 < n < math.inf for n in numbers):
            raise ValueError("seconds are numbers above 0")
        if (self.tuned is None) != (self.recipe is None):
            raise ValueError("tuned seconds and a recipe belong together")
        if self.recipe is not None and "trace" not in self.recipe:
            rule = isinstance(self.recipe.get("rule"), str)
            if not rule or not isinstance(self.recipe.get("numbers"), dict):
                raise ValueError("a recipe has a trace, or a rule and its numbers")

    @property
    def faster(self) -> bool:
        """Whether builds take the candidate."""
        return self.tuned is not None and self.tuned < _CLEARLY * self.rules

    @property
    def by(self) -> str:
        """What schedules the candidate, as a report names it."""
        if self.recipe is None:
            return ""
        if "trace" in self.recipe:
            return "meta_schedule"
        given = self.recipe["numbers"].items()
        numbers = ", ".join(f"{k}={'NEVER' if v == NEVER else repr(v)}" for k, v in given)
        return f"{self.recipe['rule']}({numbers})"


class Records:
    """The records of ``folder``, by a digest of target, versions and kernel.

    Raises:
        OptionError: it is no folder, or holds something else than records.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        try:
            names = [path.name for path in self.folder.iterdir()] if self.folder.exists() else []
        except OSError as error:
            raise OptionError(f"cannot read the folder {self.folder}: {error.strerror}") from error
        foreign = sorted(n for n in names if not (_NAME.fullmatch(n) or n.startswith(".")))
        if foreign:
            raise OptionError(
                f"{self.folder} is no folder of tuning records: it has {foreign[0]!r}"
            )
        self._keys = {name.removesuffix(".json") for name in names if _NAME.fullmatch(name)}

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: str) -> Record | None:
        """The record under ``key``; None where there is none.

        Raises:
            OptionError: its file is damaged.
        """
        if key not in self._keys:
            return None
        file = self._file(key)
        try:
            return Record(**json.loads(file.read_text()))
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise OptionError(f"{file} is no tuning record, remove it: {error}") from error

    def keep(self, key: str, record: Record) -> None:
        """Write ``record`` at once, whole or not at all: a search may be ended at any time.

        Raises:
            OutputPathError: it cannot be written.
        """
        file = self._file(key)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replaced(file) as part:
                part.write(json.dumps(asdict(record), indent=1).encode())
        except OSError as error:
            raise OutputPathError(f"cannot write {file}: {error.strerror}") from error
        self._keys.add(key)

    def damaged(self, key: str, reason: object) -> OptionError:
        """The error of a record that does not fit its kernel."""
        return OptionError(f"{self._file(key)} is no tuning record, remove it: {reason}")

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.json"


@dataclass(frozen=True)
class TunedKernel:
    """A kernel of a model, and how the build schedules it.

    Attributes:
        calls: how often the program calls it.
        rules, tuned: seconds, see :class:`Record`; None: not measured.
        by: what schedules the best candidate.
        taken: whether the build took it.
        note: why it was not measured.
    """

    kernel: str
    calls: int
    rules: float | None = None
    tuned: float | None = None
    trials: int = 0
    by: str = ""
    taken: bool = False
    note: str = ""

    @property
    def saved(self) -> float:
        """Seconds that tuning takes off each run of the model."""
        if not self.taken or self.rules is None or self.tuned is None:
            return 0.0
        return self.calls * (self.rules - self.tuned)


@dataclass(frozen=True)
class TuningReport(Shown):
    """What tuning adds to the rules, kernel by kernel; prints as a table, slowest first."""

    kernels: tuple[TunedKernel, ...]

    def __rich__(self):
        numbers = "calls", "rules us", "tuned us", "speed", "trials"
        ordered = sorted(self.kernels, key=lambda k: -(k.rules or 0.0) * k.calls)
        columns = [*numbers, "build takes", "best candidate", "kernel"]
        return table(columns, map(_row, ordered), numbers=numbers, caption=self._caption())

    def _caption(self) -> str:
        whole = sum(k.calls * k.rules for k in self.kernels if k.rules is not None)
        saved = sum(k.saved for k in self.kernels)
        taken = sum(k.taken for k in self.kernels)
        return (
            f"{taken} of {len(self.kernels)} kernels as they were tuned: {whole * 1e3:.4g} ms by "
            f"the rules, {(whole - saved) * 1e3:.4g} ms with these"
        )


def _row(kernel: TunedKernel) -> list[str]:
    def microseconds(value: float | None) -> str:
        return "" if value is None else f"{value * 1e6:.1f}"

    speed = f"{kernel.rules / kernel.tuned:.2f}x" if kernel.rules and kernel.tuned else ""
    return [
        str(kernel.calls),
        microseconds(kernel.rules),
        microseconds(kernel.tuned),
        speed,
        str(kernel.trials),
        "tuned" if kernel.taken else "rules",
        kernel.by or kernel.note,
        kernel.kernel,
    ]
