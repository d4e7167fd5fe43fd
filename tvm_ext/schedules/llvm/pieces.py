"""Rows of symbolic length in pieces, between the places where a condition on the column changes.

In each piece the condition is known, and its elements are those of a vector; LLVM would ask for
every element. LoopPartition, which does the same, writes beyond a row whose length is symbolic.

Before: ``y[i, j] = T.if_then_else(j >= 2 and j < w + 2, x[i, j - 2], 0)``
After::

    for j in range(0, 2): y[i, j] = 0
    for j in range(2, w + 2): y[i, j] = x[i, j - 2]     # in vectors, then one by one
    for j in range(w + 2, w + 4): y[i, j] = 0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, pairwise
from operator import itemgetter

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx.analysis import undefined_vars

from ..machine import Machine
from ..statements import reads_memory, substituted
from .access import Walk
from .loops import PARALLEL_WORK
from .matmul_loops import shared
from .register_tiles import int64, lanewise, loop, same, scheduled, sequence, var
from .turned import tasks

__all__ = ["comparisons", "in_parts", "in_pieces"]

_BRANCH = ir.Op.get("prim.if_then_else")
_ORDERS = tirx.LT, tirx.LE, tirx.GT, tirx.GE
_JOINS = tirx.And, tirx.Or
# Changes in a row: more would be many copies of a kernel's text.
_MOST = 3
# Any size of an image: changes are put into the order that they have there.
_TYPICAL = 1 << 10


def in_pieces(sch: Schedule, block: SBlockRV, machine: Machine) -> Schedule | None:
    """The kernel whose only block, in normal form, is ``block``; ``sch`` stays as it is.

    None where rows are of static length, or a condition on the column is no comparison with a
    number that the row does not change.
    """
    realize = get_sblockrealize(sch, block)
    nest = [sch.get(each) for each in sch.get_loops(block)]
    body = realize.block.body
    if not isinstance(body, tirx.BufferStore) or not nest:
        return None
    if isinstance(nest[-1].extent, tirx.IntImm):
        return None
    axes = (axis.var for axis in realize.block.iter_vars)
    store = substituted(body, dict(zip(axes, realize.iter_values, strict=True)))
    changes = _changes(store, nest[-1].loop_var)
    if not changes or not all(stmt.loop_var.ty.dtype == "int64" for stmt in nest):
        return None
    facts = Walk(realize.block)
    row = _Row(store, nest[-1], changes, machine.lanes(*facts.dtypes)).loops()
    outer = nest[:-1]
    count = tasks([stmt.extent for stmt in outer], machine) if outer else 0
    if facts.work < PARALLEL_WORK or machine.cores == 1:
        count = 0
    for stmt in reversed(outer[count:]):
        row = loop(stmt.loop_var, stmt.extent, row)
    extents = [stmt.extent for stmt in outer[:count]]
    variables = [stmt.loop_var for stmt in outer[:count]]
    return scheduled(sch.mod["main"], shared(extents, variables, row))


def in_parts(store: tirx.BufferStore, row: tirx.For, lanes: int) -> tirx.Stmt | None:
    """``store`` along the loop ``row``, in vectors of so many lanes between changes.

    It reads nothing that it stores: the last vector of a part may begin in the one before.
    None where a condition on the place is no comparison with a number that the row does not change.
    """
    changes = _changes(store, row.loop_var)
    return None if changes is None else _Row(store, row, changes, lanes, again=True).loops()


@dataclass(frozen=True)
class _Change:
    """A ``comparison`` that becomes ``value`` at column ``at``, and is the contrary before."""

    comparison: tirx.Expr
    at: tirx.Expr
    value: bool


def _changes(store: tirx.BufferStore, column: tirx.Var) -> list[_Change] | None:
    """Those of conditions in ``store``, in order; None where one is of another form."""
    conditions: list[tirx.Expr] = []

    def call(node: ir.Call) -> None:
        if node.op == _BRANCH:
            conditions.append(node.args[0])

    tvm_ffi.structural_walk(store.value, (ir.Call, call))
    found: list[tuple[int, _Change]] = []
    for comparison in chain.from_iterable(map(comparisons, conditions)):
        if column in undefined_vars(comparison):
            change = _change(comparison, column)
            typical = None if change is None else _at_typical_sizes(change.at)
            if change is None or typical is None:
                return None
            found.append((typical, change))
    return [change for _, change in sorted(found, key=itemgetter(0))]


def comparisons(condition: tirx.Expr) -> Iterator[tirx.Expr]:
    """What ``condition`` joins."""
    if isinstance(condition, _JOINS):
        yield from comparisons(condition.a)
        yield from comparisons(condition.b)
    elif isinstance(condition, tirx.Not):
        yield from comparisons(condition.a)
    else:
        yield condition


def _change(comparison: tirx.Expr, column: tirx.Var) -> _Change | None:
    if not isinstance(comparison, _ORDERS) or reads_memory(comparison):
        return None
    a, b = comparison.a, comparison.b
    if isinstance(comparison, tirx.GT | tirx.GE):
        a, b = b, a
    linear = sym.detect_linear_equation(a - b, [column])
    if not linear or not isinstance(linear[0], tirx.IntImm) or abs(int(linear[0])) != 1:
        return None
    # Of a < b, or a <= b, with a - b = rest + column or rest - column.
    equal = isinstance(comparison, tirx.LE | tirx.GE)
    rising, rest = int(linear[0]) == 1, linear[1]
    at = int(equal) - rest if rising else rest + int(not equal)
    return _Change(comparison, _ANALYZER.simplify(at.astype("int64")), not rising)


def _at_typical_sizes(value: tirx.Expr) -> int | None:
    sizes = {variable: tirx.const(_TYPICAL, variable.ty) for variable in undefined_vars(value)}
    number = _ANALYZER.simplify(substituted(value, sizes))
    return int(number) if isinstance(number, tirx.IntImm) else None


@dataclass(frozen=True)
class _Row:
    """The elements of ``store`` along the loop ``inner``, between ``changes``.

    ``again``: they may be stored twice.
    """

    store: tirx.BufferStore
    inner: tirx.For
    changes: Sequence[_Change]
    lanes: int
    again: bool = False

    def loops(self) -> tirx.Stmt:
        """The row; element by element where its changes have another order than at other sizes."""
        places: list[tirx.Expr] = []
        for change in self.changes:
            if not places or not same(places[-1], change.at):
                places.append(change.at)
        if len(places) > _MOST:
            return self._one_by_one(self.store, int64(0), self.inner.extent)
        ends, extent = [int64(0)], self.inner.extent
        for place in places:
            ends.append(_ANALYZER.simplify(tirx.max(ends[-1], tirx.min(place, extent))))
        pieces = [
            self._piece(number, start, _ANALYZER.simplify(end - start), places)
            for number, (start, end) in enumerate(zip(ends, [*ends[1:], extent], strict=True))
        ]
        unordered = [
            before <= after
            for before, after in pairwise(places)
            if not _ANALYZER.can_prove(before <= after)
        ]
        if not unordered:
            return sequence(pieces)
        whole = self._one_by_one(self.store, int64(0), extent)
        return tirx.IfThenElse(reduce(tirx.And, unordered), sequence(pieces), whole)

    def _piece(
        self, number: int, start: tirx.Expr, length: tirx.Expr, places: Sequence[tirx.Expr]
    ) -> tirx.Stmt:
        """The elements behind ``number`` of the ``places``."""
        passed = places[:number]
        store = self._decided(lambda change: any(same(change.at, place) for place in passed))
        short = isinstance(length, tirx.IntImm) and int(length) <= self.lanes
        # TVM cannot make a vector of one bfloat16.
        repeats = self.inner.loop_var not in undefined_vars(store.value)
        if short or (repeats and str(store.value.ty.dtype) == "bfloat16"):
            return self._one_by_one(store, start, length)
        turn, whole = var("turn"), length // self.lanes
        vectors = loop(turn, whole, self._vector(store, start + turn * self.lanes))
        done = whole * self.lanes
        rest = self._one_by_one(store, start + done, length - done)
        if self.again:
            last = self._vector(store, start + (length - self.lanes))
            rest = tirx.IfThenElse(length >= self.lanes, last, rest)
            rest = tirx.IfThenElse(length > done, rest, None)
        return sequence([vectors, rest])

    def _vector(self, store: tirx.BufferStore, first: tirx.Expr) -> tirx.Stmt:
        return lanewise(first, self.lanes, lambda column: self._at(store, column))

    def _one_by_one(
        self, store: tirx.BufferStore, start: tirx.Expr, length: tirx.Expr
    ) -> tirx.Stmt:
        place = var("place")
        return loop(place, length, self._at(store, start + place))

    def _at(self, store: tirx.BufferStore, column: tirx.Expr) -> tirx.Stmt:
        return substituted(store, {self.inner.loop_var: column})

    def _decided(self, is_passed) -> tirx.BufferStore:
        """The store where all changes are behind or ahead."""
        known = [(c.comparison, c.value == is_passed(c)) for c in self.changes]

        def comparison(node: tirx.Expr) -> tirx.Expr:
            for other, value in known:
                if tvm_ffi.structural_equal(node, other):
                    return tirx.const(value, "bool")
            return node

        def call(node: ir.Call) -> ir.Expr:
            if node.op != _BRANCH:
                return node
            condition, then, other = node.args
            condition = _ANALYZER.simplify(condition)
            if not isinstance(condition, tirx.IntImm):
                return tirx.if_then_else(condition, then, other)
            return then if int(condition) else other

        callbacks = [(_ORDERS, comparison), (ir.Call, call)]
        value = tvm_ffi.structural_map(self.store.value, callbacks)
        return tirx.BufferStore(self.store.buffer, value, self.store.indices)


_ANALYZER = sym.Analyzer()
