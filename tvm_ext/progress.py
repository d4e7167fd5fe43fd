"""A progress bar on a terminal, nothing elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Advance", "progress", "silent"]

Advance = Callable[[str], None]


def silent(_step: str) -> None:
    """Advance no bar."""


@contextmanager
def progress(total: int) -> Iterator[Advance]:
    """Yields a function to call with the name of each of ``total`` steps as it begins."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("load", total=total)

        def advance(step: str) -> None:
            bar.update(task, advance=1, description=step)

        yield advance
