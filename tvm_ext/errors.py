"""Every failure that a user can meet, one class per cause.

All derive from :class:`TvmExtError`; each also derives from the Python class that a caller
would expect (``ValueError`` for bad input, ``OSError`` for files).
"""

__all__ = [
    "BuildError",
    "ComparisonError",
    "ConversionError",
    "InputError",
    "InputRankError",
    "MissingPackageError",
    "ModelError",
    "ModelLimitError",
    "OptionError",
    "OutputPathError",
    "PluginError",
    "RemovedError",
    "RemovedModuleError",
    "RunError",
    "TargetError",
    "TvmExtError",
    "UnsupportedNode",
    "unknown",
]

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches


class TvmExtError(Exception):
    """Base of all errors that tvm_ext raises on purpose."""


class ModelError(TvmExtError, ValueError):
    """The model file cannot be read, is not valid ONNX, or contradicts itself."""


class ModelLimitError(ModelError):
    """The model exceeds one of the limits that guard against hostile files."""


class InputRankError(ModelError):
    """An input has no shape, and none is given by ``shapes``."""


@dataclass(frozen=True, order=True)
class UnsupportedNode:
    """One node that cannot be converted, and why; ``needs_rank``: a rank was not known."""

    domain: str
    op_type: str
    since_version: int
    opset: int
    node: str
    reason: str
    needs_rank: bool = field(default=False, repr=False)

    def __str__(self) -> str:
        operator = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        return f"{operator}-{self.since_version} {self.node!r} (opset {self.opset}): {self.reason}"


class ConversionError(TvmExtError, NotImplementedError):
    """Nodes that the frontend cannot convert; ``nodes`` lists all of them, sorted."""

    def __init__(self, nodes: "list[UnsupportedNode]"):
        self.nodes = sorted(nodes)
        lines = [str(node) for node in self.nodes]
        head = "cannot convert " + (lines[0] if len(lines) == 1 else f"{len(lines)} nodes:")
        super().__init__("\n  ".join([head, *lines] if len(lines) > 1 else [head]))


class InputError(TvmExtError, ValueError):
    """Wrong number, name, dtype, rank or shape of the arrays given to a model."""


class TargetError(TvmExtError, ValueError):
    """An unknown target, or one that this machine cannot run."""


class BuildError(TvmExtError, RuntimeError):
    """The compiler failed on a converted model; the message names the phase."""


class RunError(TvmExtError, RuntimeError):
    """A run is given values that an operator does not allow, or sizes that do not fit each other:
    the message names the node, its operator and opset, and the reason; or there is no memory for
    the sizes, or a kernel gave up: the message has its code."""


class PluginError(TvmExtError, ValueError):
    """A plugin that raises or contradicts what is registered; the message has file and line."""


class OptionError(TvmExtError, ValueError):
    """An option has a value that it cannot take, such as an opt_level of 4."""


class OutputPathError(TvmExtError, OSError):
    """A file cannot be written or read at the place asked for."""


class ComparisonError(TvmExtError, ValueError):
    """Nothing to compare, or answers that cannot be compared; the message says which."""


class MissingPackageError(TvmExtError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


class RemovedError(TvmExtError, AttributeError):
    """A name of the Relay era that is not offered here; the message says what to use instead."""


class RemovedModuleError(TvmExtError, ImportError):
    """The same, met in an import."""


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """The message about a name that is none of the known ones, with the one that may be meant."""
    names = list(known)
    folded = {each.casefold(): each for each in names}
    close = get_close_matches(str(name).casefold(), folded, 1)
    guess = f" (is {folded[close[0]]!r} meant?)" if close else ""
    return f"no {what} {name!r}{guess}; there are {', '.join(names)}"
