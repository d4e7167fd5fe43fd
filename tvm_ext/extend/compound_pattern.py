"""What finds the matches of a compound: a pattern, or a function of the plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType

from tvm import relax
from tvm.relax.dpl import DFPattern

from ..errors import BuildError, PluginError
from ..passes.graph import Graph
from ..passes.match import Match, Pattern
from ..places import place

__all__ = ["Finder", "finder"]

Finder = Callable[[Graph, relax.Var], Match | None]


def finder(
    name: str,
    pattern: DFPattern | Finder,
    parts: Mapping[str, DFPattern] | Sequence[str],
    shared: bool,
    results: Sequence[str],
) -> Finder:
    """A pattern, or a function, as what finds matches.

    Raises:
        PluginError: it is neither, or the options contradict it.
    """
    if isinstance(pattern, DFPattern):
        named = dict(parts) if isinstance(parts, Mapping) else {}
        if len(named) != len(parts) or not all(isinstance(p, DFPattern) for p in named.values()):
            raise PluginError(f"compound {name!r}: parts are names and patterns, not {parts!r}")
        unknown = [part for part in results if part not in named]
        if unknown:
            raise PluginError(
                f"compound {name!r}: results {unknown} are no parts; {list(named)} are"
            )
        return Pattern(pattern, named, shared, results)
    if callable(pattern):
        if shared or results:
            raise PluginError(
                f"compound {name!r}: a function that finds matches says itself what is a result"
            )
        return partial(_found, name, pattern)
    raise PluginError(f"compound {name!r}: {pattern!r} is no pattern")


def _found(name: str, find: Finder, graph: Graph, var: relax.Var) -> Match | None:
    try:
        match = find(graph, var)
    except Exception as error:
        raise _failure(name, find, f"{type(error).__name__}: {error}") from error
    if not isinstance(match, Match | None):
        raise _failure(name, find, f"gives {match!r}, not a Match or None")
    return match


def _failure(name: str, find: Finder, reason: str) -> BuildError:
    at = f", {place(find.__code__)}" if isinstance(find, FunctionType) else ""
    return BuildError(f"pattern of compound {name!r}{at}: {reason}")
