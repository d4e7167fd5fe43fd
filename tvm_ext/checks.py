"""What a run tells of values that are known only then, and that ONNX does not allow.

The frontend asserts them by a match_cast of a shape to a shape whose last dim is a number: that of
the texts, one for each other dim, among those that the module has as its attribute ``CHECKS``. In a
text ``{given}`` and ``{wanted}`` stand for the two sizes that differ.

Part of what loading a model needs: nothing here imports TVM.
"""

from collections.abc import Iterator
from string import Formatter

from .errors import RunError

__all__ = ["CHECKS", "failure", "parts", "quoted"]

CHECKS = "checks"


def quoted(text: str) -> str:
    """``text`` as a part of such a text that stands for itself."""
    return text.replace("{", "{{").replace("}", "}}")


def failure(text: str, given: int, wanted: int) -> RunError:
    """The error where a check fails."""
    return RunError(text.format(given=given, wanted=wanted))


def parts(text: str) -> Iterator[tuple[str, str | None]]:
    """What stands in ``text`` for itself, and which number, "given" or "wanted", follows."""
    return ((plain, name) for plain, name, *_ in Formatter().parse(text))
