"""What rich draws, as plain text and as HTML for notebooks."""

import io

__all__ = ["as_html", "as_text"]


def as_text(renderable: object, width: int = 100) -> str:
    """``renderable`` without colour, at most ``width`` characters wide."""
    return _recorded(renderable, width).export_text().rstrip()


def as_html(renderable: object, width: int = 140) -> str:
    """``renderable`` as an HTML fragment."""
    styled = {"code_format": "<pre>{code}</pre>", "inline_styles": True}
    return _recorded(renderable, width).export_html(**styled)


def _recorded(renderable: object, width: int):
    from rich.console import Console  # slow to import, and not every caller prints

    # Not Jupyter's console, which would show what is only being recorded.
    console = Console(file=io.StringIO(), record=True, width=width, force_jupyter=False)
    console.print(renderable)
    return console
