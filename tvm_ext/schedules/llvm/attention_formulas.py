"""The blocks of an attention, and their formulas for one element at a time."""

from __future__ import annotations

from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock

from ..statements import substituted
from .contraction import axis_kinds
from .matmul_rows import term_of
from .register_tiles import int64

__all__ = ["FLOAT", "Attention", "Formulas", "taken_apart"]

FLOAT = "float32"


def taken_apart(blocks: list[SBlock]) -> Attention | None:
    """The blocks by what they are for; None where they are others."""
    if len(blocks) != 7:
        return None
    rank = len(blocks[-1].iter_vars)
    map_, fold, product = "S" * rank, "S" * (rank - 1) + "R", "S" * rank + "R"
    scores, masked, peak, power, *sums, output = blocks
    total, mixed = sorted(sums, key=lambda block: len(block.iter_vars))  # a guard reads total first
    blocks = [scores, masked, peak, power, total, mixed, output]
    kinds = [axis_kinds(block) for block in blocks]
    if rank < 2 or kinds != [product, map_, fold, map_, fold, product, map_]:
        return None
    factors = term_of(scores)
    if not isinstance(factors, tirx.Mul):
        return None
    row, column = (axis.var for axis in scores.iter_vars[-3:-1])
    if not _reads(factors.a, row) or not _reads(factors.b, column):
        return None
    sizes = [block.iter_vars[axis].dom.extent for block, axis in ((scores, -1), (mixed, -2))]
    if not all(isinstance(size, tirx.IntImm) for size in sizes):
        return None
    if any(axis.dom.extent == 0 for axis in scores.iter_vars):  # formulas of nothing are folded
        return None
    return Attention(scores, masked, peak, power, total, mixed, output)


def _reads(factor: tirx.Expr, variable: tirx.Var) -> bool:
    return isinstance(factor, ir.TensorLoad) and any(
        v.same_as(variable) for i in factor.indices for v in tirx.analysis.undefined_vars(i, [])
    )


@dataclass(frozen=True)
class Attention:
    """The blocks, whose formulas are taken for one element at a time."""

    scores: SBlock
    masked: SBlock
    peak: SBlock
    power: SBlock
    total: SBlock
    mixed: SBlock
    output: SBlock

    @property
    def may_hide(self) -> bool:
        """Whether a mask is added to scores, or chooses among them, that is not one for all keys.

        It is then the score of a product of 0, and a score is as much above it as its product is
        above 0, times a scale.
        """
        value, column = self.masked.body.value, self.masked.iter_vars[-1].var
        scores = written(self.scores)
        return is_shifted(value, scores) and any(
            v.same_as(column)
            for v in tirx.analysis.undefined_vars(filled(value, {scores: tirx.const(0, FLOAT)}), [])
        )


class Formulas:
    """Single elements of an attention; ``names`` are the loops over the batch."""

    def __init__(self, attention: Attention, names: list[tirx.Var]):
        self.attention, self.names = attention, names

    def _at(self, block: SBlock, *place) -> dict:
        axes = (axis.var for axis in block.iter_vars)
        return dict(zip(axes, (*self.names, *place), strict=True))

    def query(self, row, d):
        scores = self.attention.scores
        return substituted(term_of(scores).a, self._at(scores, row, int64(0), d))

    def key(self, key, d):
        scores = self.attention.scores
        return substituted(term_of(scores).b, self._at(scores, int64(0), key, d))

    def score(self, value, row, key):
        """A score after scales and masks, of which ``value`` is the product."""
        masked = self.attention.masked
        known = {written(self.attention.scores): value}
        return substituted(filled(masked.body.value, known), self._at(masked, row, key))

    def power(self, score, high):
        power = self.attention.power
        known = {written(self.attention.masked): score, written(self.attention.peak): high}
        return filled(power.body.value, known)

    def weighted(self, weight, row, key, column):
        mixed = self.attention.mixed
        known = {written(self.attention.power): weight}
        return substituted(filled(term_of(mixed), known), self._at(mixed, row, column, key))

    def result(self, value, weight, row, column) -> tirx.Stmt:
        """The store of ``value``, a sum of values by weight, whose weights add up to ``weight``."""
        store, mixed = self.attention.output.body, written(self.attention.mixed)
        known = {mixed: value, written(self.attention.total): weight}
        (load,) = loads(store.value, mixed)[:1]
        axes = dict(zip(load.indices, (*self.names, row, column), strict=True))
        final = tirx.BufferStore(store.buffer, filled(store.value, known), store.indices)
        return substituted(final, axes)


def is_shifted(value: tirx.Expr, scores: tirx.Var) -> bool:
    """Whether ``value`` is that of ``scores``, scaled, with something added, or instead of it."""
    if isinstance(value, ir.TensorLoad) or not loads(value, scores):
        return True
    if isinstance(value, tirx.Add | tirx.Sub):
        return is_shifted(value.a, scores) and is_shifted(value.b, scores)
    if isinstance(value, tirx.Mul):
        factors = [f for f in (value.a, value.b) if loads(f, scores)]
        return len(factors) == 1 and is_shifted(factors[0], scores)
    if isinstance(value, tirx.Div):
        return not loads(value.b, scores) and is_shifted(value.a, scores)
    if isinstance(value, tirx.Select):
        branches = value.true_value, value.false_value
        chosen = all(is_shifted(branch, scores) for branch in branches)
        return chosen and not loads(value.condition, scores)
    return False


def written(block: SBlock) -> tirx.Var:
    return block.writes[0].source


def filled(value: tirx.Expr, known: dict) -> tirx.Expr:
    """``value`` with what is loaded from some buffers replaced."""

    def load(node: ir.TensorLoad) -> ir.Expr:
        return next((new for old, new in known.items() if node.source.same_as(old)), node)

    return tvm_ffi.structural_map(value, (ir.TensorLoad, load))


def loads(value: tirx.Expr, buffer: tirx.Var) -> list[ir.TensorLoad]:
    found: list[ir.TensorLoad] = []

    def note(load: ir.TensorLoad) -> None:
        if load.source.same_as(buffer):
            found.append(load)

    tvm_ffi.structural_walk(value, (ir.TensorLoad, note))
    return found
