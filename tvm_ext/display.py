"""What rich draws, as plain text and as HTML for notebooks; and data as JSON."""

from __future__ import annotations

import io
import json
import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["Shown", "as_html", "as_json", "as_text", "table"]

# Numbers in narrower tables would be cut.
_NARROWEST = 72


class Shown(ABC):
    """A dataclass of results: prints as a table, in notebooks too, and is written as JSON."""

    @abstractmethod
    def __rich__(self) -> RenderableType: ...

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def _repr_html_(self) -> str:
        return as_html(self.__rich__())

    def to_json(self) -> str:
        """Every field, as strict JSON: NaN and infinities are the strings that protobuf writes."""
        return as_json(asdict(self) | self._derived())  # type: ignore[call-overload]

    def _derived(self) -> Mapping[str, object]:
        """What JSON has beside the fields."""
        return {}


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]] = (),
    *,
    numbers: Sequence[str] = (),
    title: str | None = None,
    caption: str | None = None,
) -> Table:
    """A table whose strings are shown as they are; rich would read ``[b]`` in them as markup.

    ``numbers`` are the columns to align on the right, in one line.
    """
    from rich.table import Table  # slow to import, and not every caller prints
    from rich.text import Text

    def plain(cell: Any) -> Any:
        return Text(cell) if isinstance(cell, str) else cell

    grid = Table(title=plain(title), caption=plain(caption))
    for name in columns:
        if name in numbers:
            grid.add_column(name, justify="right", no_wrap=True)
        else:
            grid.add_column(name, overflow="fold")
    for row in rows:
        grid.add_row(*map(plain, row))
    return grid


def as_text(renderable: object, width: int = 140) -> str:
    """``renderable`` without colour, at most ``width`` and the terminal's columns wide."""
    columns = shutil.get_terminal_size((width, 1)).columns
    return _recorded(renderable, max(_NARROWEST, min(width, columns))).export_text().rstrip()


def as_html(renderable: object, width: int = 140) -> str:
    """``renderable`` as an HTML fragment."""
    styled = {"code_format": "<pre>{code}</pre>", "inline_styles": True}
    return _recorded(renderable, width).export_html(**styled)


def as_json(value: object) -> str:
    """``value`` as strict JSON: NaN and infinities are strings, as in protobuf's JSON."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _recorded(renderable: object, width: int):
    from rich.console import Console

    # Not Jupyter's console, which would show what is only being recorded.
    console = Console(
        file=io.StringIO(), record=True, width=width, force_jupyter=False, markup=False, emoji=False
    )
    console.print(renderable)
    return console
