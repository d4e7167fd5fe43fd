"""What a compound operator replaces: matches, and the patterns that find them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.relax.dpl import DFPattern
from tvm.relax.dpl.pattern import (
    CallPattern,
    TupleGetItemPattern,
    TuplePattern,
    UnorderedTuplePattern,
    is_call_tir,
)
from tvm.target import Target

from .facts import dtype_of, static_dims, tensors_of
from .graph import WHOLE_NODE, Graph, variables

__all__ = ["Match", "Pattern", "onnx_op"]


@dataclass(frozen=True, eq=False)
class Match:
    """Operators that a compound replaces.

    ``match["name"]`` is the call that a named part matched, or the operand (a variable or a
    constant); ``"name" in match`` tells whether an alternative with that part matched.

    Attributes:
        graph: the function around.
        root: the variable of the result.
        inner: the variables of all operators that are replaced, in order; ``root`` is the last.
        parts: what the names stand for.
        detail: what a function that finds matches tells the one that makes kernels.
        others: further results: inner variables that are read from outside.
        target: what the program is built for.
    """

    graph: Graph
    root: relax.Var
    inner: tuple[relax.Var, ...]
    parts: Mapping[str, relax.Expr] = field(default_factory=dict)
    detail: Any = None
    others: tuple[relax.Var, ...] = ()
    target: Target | None = None

    def __getitem__(self, name: str) -> relax.Expr:
        return self.parts[name]

    def __contains__(self, name: str) -> bool:
        return name in self.parts

    def dims(self, name: str | None = None) -> list[int] | None:
        """The dims of a part, or of the result; None where one is symbolic."""
        return static_dims(self.root if name is None else self[name])

    def dtype(self, name: str | None = None) -> str:
        """The element type of a part, or of the result."""
        return dtype_of(self.root if name is None else self[name])

    @property
    def results(self) -> tuple[relax.Var, ...]:
        """What the kernel gives: ``root`` first."""
        return (self.root, *self.others)

    @property
    def inputs(self) -> list[relax.Expr]:
        """The operands of all operators that are replaced: the named ones first."""
        found = [part for part in self.parts.values() if not isinstance(part, relax.Call)]
        for var in self.inner:
            found += [leaf for leaf in _leaves(self.graph.values[var]) if leaf not in self.inner]
        return list(dict.fromkeys(found))

    @property
    def static(self) -> bool:
        """Whether all shapes are known."""
        exprs = *self.inputs, *self.inner
        return all(dims is not None for x in exprs for dims in tensors_of(x.ty))


class Pattern:
    """Finds what a ``relax.dpl`` pattern matches.

    Args:
        pattern: of the result.
        parts: names for parts of it.
        shared: what the operators inside compute may be read from outside, too: it is then
            computed twice. By default such a match does not count.
        results: the names of operators inside that are results, too, beside the pattern's own.
    """

    def __init__(
        self,
        pattern: DFPattern,
        parts: Mapping[str, DFPattern],
        shared: bool = False,
        results: Sequence[str] = (),
    ):
        self.pattern = pattern
        self.parts = dict(parts)
        self.shared = shared
        self.results = tuple(results)

    def __call__(self, graph: Graph, var: relax.Var) -> Match | None:
        found = self.pattern.extract_matched_expr(var, graph.var2val)
        if found is None:
            return None
        operators = (expr for p, expr in found.items() if isinstance(p, _OPERATORS))
        inside = {graph.owner[expr] for expr in operators if expr in graph.owner}
        if var not in inside:
            return None
        inner = tuple(v for v in graph.values if v in inside)
        named = {
            name: graph.owner.get(expr, expr)
            for name, pattern in self.parts.items()
            if (expr := found.get(pattern)) is not None
        }
        results = (named[name] for name in self.results if named.get(name) in inside)
        others = tuple(v for v in dict.fromkeys(results) if not v.same_as(var))
        free = {var, *others}
        if not self.shared and not all(v in free or _private(graph, v, inside) for v in inner):
            return None
        parts = {name: graph.values[e] if e in inside else e for name, e in named.items()}
        return Match(graph, var, inner, parts, others=others)


def onnx_op(op_type: str, *operands: DFPattern) -> DFPattern:
    """The pattern of an ONNX operator that is imported as one kernel, as LayerNormalization is.

    Operands are the tensors among its inputs, in their order. What it is given beside tensors
    (attributes with their defaults, and by name the inputs known at compile time, as axes) is in
    ``match[part].attrs``. Operators of other domains are named with theirs: "com.acme.Twice".
    Those that Relax has are matched by ``is_op``.
    """
    return is_call_tir(WHOLE_NODE + op_type, list(operands))


_OPERATORS = (CallPattern, TuplePattern, UnorderedTuplePattern, TupleGetItemPattern)


def _private(graph: Graph, var: relax.Var, inside: set[relax.Var]) -> bool:
    """Whether nothing outside of the match reads ``var``, the function's result included."""
    readers = graph.readers.get(var, [])
    return graph.uses[var] == len(readers) and inside.issuperset(readers)


def _leaves(value: relax.Expr) -> Iterator[relax.Expr]:
    """The variables and constants that a value reads."""
    if isinstance(value, relax.Var | GenericConst):
        yield value
    elif isinstance(value, relax.Call):
        for part in value.args:
            yield from _leaves(part)
    elif isinstance(value, relax.Tuple):
        for part in value.fields:
            yield from _leaves(part)
    else:
        yield from variables(value)
