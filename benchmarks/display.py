"""Where the tables go."""

import sys

from rich.console import Console

__all__ = ["console"]

# Columns of a file, in which no table is cut.
_WIDTH = 150


def console() -> Console:
    """As wide as the terminal, or wide enough."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH)
