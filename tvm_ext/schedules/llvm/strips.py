"""Kernels that treat the parts of a batch apart, cut to one of these parts.

Before: ``y[n, c, h, w] = x[n, c, h, w] + b[c]``, where ``n`` is one of 8
After:  the same, where ``n`` is one of 2: four calls of it do what one did
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm import ir, s_tir, tirx
from tvm.ir import Range
from tvm.ir.expr import TensorRegion
from tvm.s_tir import SBlock
from tvm.sym import Analyzer, ConstIntBound

from ..statements import substituted
from .plain_blocks import accesses, is_number, plain_blocks, variables, with_buffers, with_parts
from .register_tiles import int64, nest, same, sequence

__all__ = ["Count", "Rows", "Strip", "multiple", "outer_axis", "part_shape", "strip_of"]

_ANALYZER = Analyzer()


@dataclass(frozen=True)
class Rows:
    """Parts of so many rows each, where ``var`` is how many rows all have."""

    var: tirx.Var
    rows: int


#: How many parts, or what each has.
Count = int | Rows


@dataclass(frozen=True, eq=False)
class Strip:
    """A kernel for one of ``count`` parts of a batch.

    Attributes:
        whole: the kernel for all of them.
        blocks: each with the axis whose parts it treats apart, and what a part has of it.
        cut: the buffers that are cut, too, and along which axes.
    """

    whole: tirx.PrimFunc
    count: Count
    blocks: Sequence[tuple[SBlock, tirx.IterVar, int]]
    cut: Mapping[tirx.Var, int]

    @property
    def reads(self) -> list[bool]:
        """Of each parameter but the results, whether it is cut."""
        written = {buffer for block, *_ in self.blocks for buffer in _written(block)}
        return [param in self.cut for param in self.whole.params if param not in written]

    @property
    def told(self) -> int | None:
        """The number of the parameter of ``whole`` that tells how many there are, if there is."""
        if isinstance(self.count, int):
            return None
        var = self.count.var
        return next((at for at, p in enumerate(self.whole.params) if p.same_as(var)), None)

    @cached_property
    def func(self) -> tirx.PrimFunc:
        """The kernel for one part."""
        new = {buffer: _cut(buffer, at, self.count) for buffer, at in self.cut.items()}

        def region(node: TensorRegion) -> TensorRegion:
            return tirx.BufferRegion(new[node.source], node.region)

        def told(part):
            return with_buffers(part, new, lambda _, indices: indices, region)

        nests = []
        for block, axis, extent in self.blocks:
            fewer = tirx.IterVar(Range(int64(0), int64(extent)), axis.var, axis.iter_type)
            axes = [fewer if other.same_as(axis) else other for other in block.iter_vars]
            nests.append(nest(with_parts(block, axes, told)))
        root = self.whole.body.block
        allocated = [new[buffer] for buffer in root.alloc_buffers]
        body = SBlock([], [], [], root.name_hint, sequence(nests), None, allocated, [], {})
        params = [new.get(param, param) for param in self.whole.params]
        if self.told is not None:
            del params[self.told]
        realize = s_tir.SBlockRealize([], tirx.const(True), body)
        return tirx.PrimFunc(params, realize, self.whole.ret_type, self.whole.attrs)


def outer_axis(dims: Sequence[ir.Expr | int]) -> int | None:
    """The first axis along which there is more than one element; None of a scalar."""
    return next((at for at, d in enumerate(dims) if not is_number(tirx.convert(d), 1)), None)


def strip_of(func: tirx.PrimFunc, count: Count) -> Strip | None:
    """``func`` for one of ``count`` parts, along the outer axis of all its results; None where it
    does not treat these apart."""
    blocks = plain_blocks(func)
    if not blocks:
        return None
    params = {p: outer_axis(p.ty.shape) for p in func.params if tirx.is_buffer_var(p)}
    # The axis that is cut; None: none is. Of what is allocated that is up to those who read it.
    results = {buffer for block in blocks for buffer in _written(block)} & params.keys()
    along = {result: params[result] for result in results}
    found: list[tuple[SBlock, tirx.IterVar, int]] = []
    for block in reversed(blocks):
        axis = _written_along(block, along)
        extent = None if axis is None else _share(axis.dom.extent, count)
        if axis is None or extent is None:
            return None
        places = _Places(block, axis.var, extent, count)
        for buffer, indices in accesses(block):
            at = places.cut_along(buffer, indices, params.get(buffer, along.get(buffer)))
            if along.setdefault(buffer, at) != at:
                return None
        if not places.told_all:
            return None
        found.insert(0, (block, axis, extent))
    cut = {buffer: at for buffer, at in along.items() if at is not None}
    if not cut.keys() >= {*func.body.block.alloc_buffers}:
        return None
    strip = Strip(func, count, found, cut)
    if isinstance(count, Rows) and any(map(count.var.same_as, variables([strip.func]))):
        return None  # something else depends on how many there are
    return strip


class _Places:
    """What the places that a block accesses are in one of ``count`` parts of its axis.

    The axis is ``part * extent + axis`` where parts are counted. What is so of the outer index of a
    buffer, and does not show in the others, is of that part alone.
    """

    def __init__(self, block: SBlock, axis: tirx.Var, extent: int, count: Count):
        self._axis, self._extent, self._count = axis, extent, count
        self._uses = sum(var.same_as(axis) for var in variables([block.body, block.init]))
        self._part = tirx.Var("part", "int64")
        self._analyzer: Analyzer | None = None
        self._block = block

    @property
    def told_all(self) -> bool:
        """Whether the axis is used in the places alone that were asked for."""
        return self._uses == 0

    def cut_along(
        self, buffer: tirx.Var, indices: Sequence[ir.Expr], known: int | None
    ) -> int | None:
        """Along which axis ``buffer`` is cut, that which is ``known`` or the first that may be;
        None where it is not."""
        uses = [sum(map(self._axis.same_as, variables([index]))) for index in indices]
        if not any(uses):
            return None
        tried = [at for at, used in enumerate(uses) if used] if known is None else [known]
        found = next((at for at in tried if self._is_of_part(buffer, indices, at, uses)), None)
        if found is not None or self._is_alike(indices):
            self._uses -= sum(uses)
        return found

    def _is_of_part(
        self, buffer: tirx.Var, indices: Sequence[ir.Expr], at: int, uses: Sequence[int]
    ) -> bool:
        """Whether a place is of this part alone, if ``buffer`` is cut along axis ``at``."""
        extent = _share(buffer.ty.shape[at], self._count)
        if extent is None:
            return False
        if sum(uses) == 1 and self._axis.same_as(indices[at]) and extent == self._extent:
            return True
        own = self._bounds.simplify(self._in_part(indices[at]) - self._part * int64(extent))
        bound = self._bounds.const_int_bound(own)
        inside = bound.min_value >= 0 and bound.max_value < extent
        others = [index for other, index in enumerate(indices) if other != at]
        return inside and not self._tells_part([own]) and self._is_alike(others)

    def _is_alike(self, indices: Sequence[ir.Expr]) -> bool:
        """Whether these are the same in each part."""
        return not self._tells_part([self._bounds.simplify(self._in_part(i)) for i in indices])

    def _tells_part(self, indices: Sequence[ir.Expr]) -> bool:
        return any(map(self._part.same_as, variables(indices)))

    def _in_part(self, index: ir.Expr) -> ir.Expr:
        return substituted(index, {self._axis: self._part * int64(self._extent) + self._axis})

    @property
    def _bounds(self) -> Analyzer:
        if self._analyzer is None:
            self._analyzer = Analyzer()
            self._analyzer.update(self._part, ConstIntBound(0, ConstIntBound.POS_INF))
            for axis in self._block.iter_vars:
                own = axis.var.same_as(self._axis)
                dom = Range(int64(0), int64(self._extent)) if own else axis.dom
                self._analyzer.bind(axis.var, dom)
        return self._analyzer


def _written(block: SBlock) -> list[tirx.Var]:
    return [region.source for region in block.writes]


def _written_along(block: SBlock, along: Mapping[tirx.Var, int | None]) -> tirx.IterVar | None:
    """The axis that walks all that ``block`` writes ``along`` what is cut of it."""
    places = [(region, along.get(region.source)) for region in block.writes]
    found = [region.region[at].min for region, at in places if at is not None]
    axes = [a for a in block.iter_vars if found and all(a.var.same_as(index) for index in found)]
    if len(found) < len(places) or len(axes) != 1:
        return None
    (axis,) = axes
    plain = axis.iter_type == axis.DataPar and is_number(axis.dom.min, 0)
    return axis if plain else None


def _share(extent: ir.Expr, count: Count) -> int | None:
    """What one of ``count`` parts has of ``extent``; None where they differ."""
    if isinstance(count, int):
        whole = int(extent) if isinstance(extent, tirx.IntImm) else 1
        return whole // count if whole % count == 0 else None
    times = multiple(extent, count.var)
    return None if times is None else times * count.rows


def multiple(extent: ir.Expr, var: tirx.Var) -> int | None:
    """How many times ``var`` an extent is; None where it is something else."""
    times = _ANALYZER.simplify(substituted(extent, {var: int64(1)}))
    return int(times) if isinstance(times, tirx.IntImm) and same(extent, var * times) else None


def _cut(buffer: tirx.Var, at: int, count: Count) -> tirx.Var:
    shape = list(buffer.ty.shape)
    part = _share(shape[at], count)
    assert part is not None
    shape[at] = int64(part)
    return tirx.decl_buffer(shape, str(buffer.ty.dtype.dtype), buffer.name, scope=buffer.scope())


def part_shape(
    given: Sequence[ir.Expr | int], wanted: Sequence[ir.Expr | int]
) -> tuple[list[ir.Expr | int], ir.Expr | int]:
    """The shape of what a kernel that takes the dims ``wanted`` takes of a tensor of the dims
    ``given``, and how many such parts the tensor has."""
    at = outer_axis(given)
    if at is None or not isinstance(wanted[at], int | tirx.IntImm) or same(given[at], wanted[at]):
        return list(given), 1
    part = int(wanted[at])
    whole = given[at]
    if isinstance(whole, int | tirx.IntImm):
        count: ir.Expr | int = int(whole) // part
    else:
        count = _ANALYZER.simplify(tirx.floordiv(whole, int64(part)))
    return [*given[:at], part, *given[at + 1 :]], count
