"""Neighbouring axes that all blocks walk together are one axis, where one of them is symbolic.

Rows of an image of symbolic size may be short, and each would end in a tail of its own; as one
axis, its pixels have one. A convolution with a window of one pixel has no rows then at all.

Before: ``t[n, c, h, w] = x[n, c, h, w] + b[c]; y[n, c, h, w] = t[n, c, h, w] * 2``
After:  ``t[n, c, hw] = x[n, c, hw] + b[c]; y[n, c, hw] = t[n, c, hw] * 2``
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import mul

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir import Range, TensorLoad
from tvm.ir.expr import TensorRegion
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl
from tvm.sym import Analyzer

from ..statements import rescheduled, substituted
from .plain_blocks import accesses, is_number, plain_blocks, variables, with_buffers, with_parts
from .register_tiles import int64, nest, same, sequence, var

__all__ = ["MergedAxes"]

# Rows of whole vectors are left as they are.
_LANES = 16

#: Of each axis but the last, whether it is one with the next.
Joints = list[bool]


@dataclass(frozen=True)
class MergedAxes(dl.base.ScheduleRule):
    """A rule for kernels of which neighbouring axes were merged; parameters keep their shapes."""

    rule: dl.base.ScheduleRule

    def apply(self, func, target, tunable):
        merged = _merged(func)
        if merged is None:
            return None
        sch = self.rule.apply(merged.func, target, tunable)
        return None if sch is None else rescheduled(merged.restored(sch.mod["main"]))


class _Block:
    """A block with a loop for each of its axes, and which of these are one with the next."""

    def __init__(self, block: SBlock):
        self.block = block
        self.axes = {axis.var: at for at, axis in enumerate(block.iter_vars)}
        self.accesses = list(accesses(block))
        self.joints = [
            a.iter_type == b.iter_type and not _is_row(b.dom.extent)
            for a, b in pairwise(block.iter_vars)
        ]
        uses = Counter(variables([block.body, block.init]))
        plain = Counter(index for _, indices in self.accesses for index in indices)
        for axis, at in self.axes.items():
            if uses[axis] != plain[axis]:
                self.part(at)

    def extent(self, at: int) -> ir.Expr:
        return self.block.iter_vars[at].dom.extent

    def part(self, at: int) -> None:
        """Axis ``at`` is not one with another."""
        for joint in (at - 1, at):
            if 0 <= joint < len(self.joints):
                self.joints[joint] = False

    def follow(self, first: ir.Expr, second: ir.Expr) -> int | None:
        """The joint between two axes that are one; None where these are not."""
        at = self.axes.get(first)
        if at is None or self.axes.get(second) != at + 1 or not self.joints[at]:
            return None
        return at


def _is_row(extent: ir.Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) % _LANES == 0


@dataclass(frozen=True)
class _Merged:
    """The kernel with merged axes, and what its parameters were."""

    func: tirx.PrimFunc
    former: Mapping[tirx.Var, tuple[tirx.Var, Joints]]

    def restored(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """``func`` with the parameters of the original: a merged place counts along the last of
        its axes, beyond which rows are contiguous."""

        def spread(buffer: tirx.Var, parts: Sequence, none: object) -> list:
            return list(_spread(self.former[buffer][1], parts, none))

        def region(node: TensorRegion) -> TensorRegion:
            point = Range.from_min_extent(int64(0), int64(1))
            return tirx.BufferRegion(
                self.former[node.source][0], spread(node.source, node.region, point)
            )

        body = with_buffers(
            func.body,
            {merged: old for merged, (old, _) in self.former.items()},
            lambda buffer, indices: spread(buffer, indices, int64(0)),
            region,
        )
        params = [self.former[p][0] if p in self.former else p for p in func.params]
        return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


def _spread(joints: Joints, parts: Sequence, none: object) -> Iterable:
    """One part for each former axis: ``none`` for those that are one with the next."""
    left = iter(parts)
    for joined in [*joints, False]:
        yield none if joined else next(left)


def _merged(func: tirx.PrimFunc) -> _Merged | None:
    parameters = list(filter(tirx.is_buffer_var, func.params))
    if all(isinstance(dim, tirx.IntImm) for param in parameters for dim in param.ty.shape):
        return None
    plain = plain_blocks(func)
    if plain is None:
        return None
    blocks = [_Block(_without_units(block)) for block in plain]
    root = func.body.block
    buffers = [*parameters, *root.alloc_buffers]
    joints = _joints(blocks, buffers)
    if not any(_is_symbolic(block, at) for block in blocks for at in _joined(block.joints)):
        return None
    new = {
        buffer: _joined_buffer(buffer, joints[buffer]) for buffer in buffers if any(joints[buffer])
    }
    nests = [_rebuilt(block, new, joints) for block in blocks]
    allocated = [new.get(buffer, buffer) for buffer in root.alloc_buffers]
    body = SBlock([], [], [], root.name_hint, sequence(nests), None, allocated, [], {})
    params = [new.get(param, param) for param in func.params]
    realize = s_tir.SBlockRealize([], tirx.const(True), body)
    return _Merged(
        tirx.PrimFunc(params, realize, func.ret_type, func.attrs),
        {new[old]: (old, joints[old]) for old in func.params if old in new},
    )


def _joined(joints: Joints) -> list[int]:
    return [at for at, joined in enumerate(joints) if joined]


def _is_symbolic(block: _Block, at: int) -> bool:
    return not all(isinstance(block.extent(k), tirx.IntImm) for k in (at, at + 1))


def _joints(blocks: list[_Block], buffers: Sequence[tirx.Var]) -> dict[tirx.Var, Joints]:
    """Of each buffer, which axes are one with the next; of blocks, it is noted there."""
    joints = {buffer: [True] * (len(buffer.ty.shape) - 1) for buffer in buffers}
    before = -1
    while (count := sum(map(sum, joints.values())) + sum(sum(b.joints) for b in blocks)) != before:
        before = count
        for block in blocks:
            for buffer, indices in block.accesses:
                _part(block, joints[buffer], buffer.ty.shape, indices)
    return joints


def _part(block: _Block, joints: Joints, shape: Sequence, indices: Sequence) -> None:
    """Part what one access does not walk together."""
    for at, (pair, dims) in enumerate(zip(pairwise(indices), pairwise(shape), strict=True)):
        joint = block.follow(*pair)
        if joint is not None:
            extents = block.extent(joint), block.extent(joint + 1)
            joints[at] &= all(map(same, extents, dims))
        else:
            joints[at] &= all(is_number(index, 0) for index in pair) and all(
                is_number(dim, 1) for dim in dims
            )
    ends = [False, *joints, False]
    for at, index in enumerate(indices):
        if index in block.axes:
            axis = block.axes[index]
            for joint, joined in ((axis - 1, ends[at]), (axis, ends[at + 1])):
                if 0 <= joint < len(block.joints):
                    block.joints[joint] &= joined


def _groups(joints: Joints, parts: Sequence) -> list[list]:
    """``parts``, those that are one in one list."""
    groups = [[parts[0]]] if parts else []
    for joined, part in zip(joints, parts[1:], strict=True):
        if joined:
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def _joined_buffer(buffer: tirx.Var, joints: Joints) -> tirx.Var:
    shape = [reduce(mul, dims) for dims in _groups(joints, list(buffer.ty.shape))]
    return tirx.decl_buffer(shape, str(buffer.ty.dtype.dtype), buffer.name, scope=buffer.scope())


def _rebuilt(block: _Block, buffers: Mapping, joints: Mapping[tirx.Var, Joints]) -> tirx.Stmt:
    """The loops and the block, over merged axes."""
    axes: list[tirx.IterVar] = []
    own: dict[tirx.Var, tirx.Var] = {}
    for group in _groups(block.joints, list(block.block.iter_vars)):
        first, *others = group
        if others:
            extent = reduce(mul, [axis.dom.extent for axis in group])
            name = var("_".join(axis.var.name for axis in group))
            first = tirx.IterVar(Range(int64(0), extent), name, first.iter_type)
            own |= {axis.var: name for axis in group}
        axes.append(first)

    def indices(buffer: tirx.Var, former: Sequence[ir.Expr]) -> list[ir.Expr]:
        groups = _groups(joints[buffer], list(former))
        return [own.get(group[0], group[0]) if group[1:] else group[0] for group in groups]

    def region(node: TensorRegion) -> TensorRegion:
        groups = _groups(joints[node.source], list(node.region))
        shape = buffers[node.source].ty.shape
        parts = []
        for group, size in zip(groups, shape, strict=True):
            points = all(is_number(part.extent, 1) for part in group)
            first = own.get(group[0].min, group[0].min)
            whole = Range.from_min_extent(int64(0), size)
            merged = Range.from_min_extent(first, int64(1)) if points else whole
            parts.append(merged if group[1:] else group[0])
        return tirx.BufferRegion(buffers[node.source], parts)

    def moved(part):
        return with_buffers(part, buffers, indices, region)

    return nest(with_parts(block.block, axes, moved))


def _without_units(block: SBlock) -> SBlock:
    """``block``, at whose places axes of one summand are 0."""
    units = {
        axis.var: int64(0)
        for axis in block.iter_vars
        if axis.iter_type == tirx.IterVar.CommReduce and same(axis.dom.extent, int64(1))
    }
    if not units:
        return block
    analyzer = Analyzer()

    def load(node: TensorLoad) -> ir.Expr:
        return tirx.BufferLoad(node.source, list(map(analyzer.simplify, node.indices)))

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        return tirx.BufferStore(node.buffer, node.value, list(map(analyzer.simplify, node.indices)))

    def region(node: TensorRegion) -> TensorRegion:
        parts = [
            Range.from_min_extent(analyzer.simplify(part.min), part.extent) for part in node.region
        ]
        return tirx.BufferRegion(node.source, parts)

    def told(part):
        steps = [(TensorLoad, load), (tirx.BufferStore, store), (TensorRegion, region)]
        return tvm_ffi.structural_map(substituted(part, units), steps)

    return with_parts(block, list(block.iter_vars), told)
