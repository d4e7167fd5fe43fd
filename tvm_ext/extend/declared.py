"""What every declaration is asked, so that a slip is met where it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from types import FunctionType
from typing import cast

from tvm.target import Target

from ..errors import PluginError, unknown

__all__ = ["check_converter", "check_kind", "check_parameters"]


def check_converter(function: object, what: str) -> None:
    """Raise PluginError unless it is a function of a builder, inputs, and named attributes."""
    if not isinstance(function, FunctionType):
        raise PluginError(f"{what}: its converter is {function!r}, no function")
    parameters = list(signature(function).parameters.values())
    positional = Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD
    if not parameters or parameters[0].kind not in positional:
        raise PluginError(f"{what}: its converter takes the builder first, then the inputs")
    if parameters[-1].kind is Parameter.VAR_KEYWORD:
        raise PluginError(f"{what}: name each attribute instead of **{parameters[-1].name}")


def check_kind(kind: object, what: str) -> None:
    """Raise PluginError unless ``kind`` is a kind of target."""
    if not isinstance(kind, str):
        raise PluginError(f'{what}: a target kind is a name such as "llvm", not {kind!r}')
    if kind not in (kinds := Target.list_kinds()):
        raise PluginError(f"{what}: {unknown('target kind', kind, sorted(kinds))}")


def check_parameters(function: object, given: Sequence[str], what: str) -> None:
    """Raise PluginError unless ``function`` can be called with what it will be given."""
    if not callable(function):
        raise PluginError(f"{what}: {function!r} is no function")
    try:
        signature(cast(Callable[..., object], function)).bind(*given)
    except TypeError as error:
        raise PluginError(f"{what}: it is called with {' and '.join(given)}: {error}") from error
