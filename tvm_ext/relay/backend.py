"""``relay.backend``: which executor and runtime Relay was to build for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm_ext.errors import OptionError

__all__ = ["Executor", "Runtime"]


@dataclass(frozen=True)
class Executor:
    """``Executor("graph")`` or ``Executor("aot")``; both are the same here.

    Raises:
        OptionError: another name, or options.
    """

    name: str
    options: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        _check("executor", self.name, ("graph", "aot"), self.options)


@dataclass(frozen=True)
class Runtime:
    """``Runtime("cpp")``.

    Raises:
        OptionError: another name, or options.
    """

    name: str
    options: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        _check("runtime", self.name, ("cpp",), self.options)


def _check(
    what: str, name: str, known: tuple[str, ...], options: Mapping[str, object] | None
) -> None:
    if name not in known or options:
        raise OptionError(
            f"{what} {name!r} with options {dict(options or {})} is not offered: leave it out. "
            "Models of static shape are saved as native code without TVM in any case"
        )
