"""Tiles of a symbolic number of columns: the last one overlaps the one before it.

No tile has a tail, a guard or a pad, so that schedules see loops of static extents under symbolic
ones. What overlaps is computed twice, to the same values. Rows shorter than a tile take one of a
smaller width: a kernel holds several, and chooses when it runs.

Before: ``t[n, h, w] += ..; y[n, h, w] = f(t[n, h, w])``
After, where ``w >= 14`` and tiles of 14 waste least (7 and 3 follow, then 1)::

    t[n, h, tile, j] += ..            # of column min(tile * 14, w - 14) + j
    y[n, h, min(tile * 14, w - 14) + j] = f(t[n, h, tile, j])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir import Range, TensorLoad
from tvm.ir.expr import TensorRegion
from tvm.s_tir import SBlock

from ..statements import if_any, substituted, unseen
from .register_tiles import int64, nest, same, scheduled, sequence, var

__all__ = ["Choice", "Spread", "choose", "in_tiles"]

# Costs are compared as integers, so many of which are one column at the full rate.
_UNIT = 64


@dataclass(frozen=True)
class Choice:
    """Tiles of ``columns``, their multiply-adds relative to the peak, and the kernel with them."""

    columns: int
    rate: float
    sch: s_tir.Schedule


@dataclass(frozen=True)
class Spread:
    """Where the elements of a tile lie in the last block, if not side by side along an axis.

    Attributes:
        axes: of the block then.
        values: what its former axes are, in terms of ``axes``.
        guard: what holds for elements that there are.
        indices: where the elements of the block before it are, given its former indices.
    """

    axes: Sequence[tirx.IterVar]
    values: Mapping[tirx.Var, ir.Expr]
    guard: ir.Expr
    indices: Callable[[Sequence[ir.Expr]], list[ir.Expr]]


#: Given the last block, the tile, the place in it and the element that the two are.
Spreading = Callable[[SBlock, tirx.IterVar, tirx.IterVar, ir.Expr], Spread]


def in_tiles(
    func: tirx.PrimFunc, axes: Sequence[int], columns: int, spread: Spreading | None = None
) -> tirx.PrimFunc | None:
    """``func`` with tiles of so many columns along the ``axes``, one for each of its last blocks.

    Each reads what one before it writes at its own place along the axis; None where one does not.
    With ``spread``, one more block, the last, places the elements by itself.
    """
    root = func.body.block
    stmts = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    start = len(stmts) - len(axes) - (spread is not None)
    blocks = list(map(_block, stmts[start:]))
    extent = blocks[0].iter_vars[axes[0]].dom.extent
    moved: dict[tirx.Var, tuple[int, tirx.Var]] = {}
    nests = []
    for k, (block, axis) in enumerate(zip(blocks, axes, strict=False)):
        own = block.iter_vars[axis].dom.extent
        if not same(own, extent) or not _is_aligned(block, axis, moved):
            return None
        if k < len(blocks) - 1:
            old = block.writes[0].source
            moved[old] = axis, _in_parts(old, axis, extent, columns)
        nests.append(nest(_tiled(block, axis, columns, extent, moved)))
    if spread is not None:
        nests.append(nest(_spread(blocks[-1], columns, extent, moved, spread)))
    buffers = [moved[buffer][1] if buffer in moved else buffer for buffer in root.alloc_buffers]
    body = _root(sequence([*stmts[:start], *nests]), buffers, "root")
    return tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)


def choose(width: ir.Expr, choices: Sequence[Choice]) -> s_tir.Schedule:
    """One kernel of all ``choices``, from the widest tiles to those of one column.

    It takes tiles that are no wider than ``width``, in which the least is computed.
    """

    def cost(choice: Choice) -> ir.Expr:
        return _tiles(width, choice.columns) * round(choice.columns * _UNIT / choice.rate)

    func = choices[0].sch.mod["main"]
    *wider, narrowest = choices
    body = _body(narrowest, func)
    for k, choice in reversed(list(enumerate(wider))):
        least = if_any(tirx.all(*(cost(choice) <= cost(other) for other in choices[k + 1 :])))
        # Not for TVM to draw conclusions from in each index beneath: see executors.named_sizes.
        known = least if isinstance(least, tirx.IntImm) else unseen(least)
        fits = if_any(tirx.all(width >= choice.columns, known))
        if not isinstance(fits, tirx.IntImm):
            # Nor that a size is none where a multiple of it is less than a tile.
            others = tirx.IfThenElse(unseen(tirx.Not(fits)), body, None)
            body = tirx.SeqStmt([tirx.IfThenElse(fits, _body(choice, func), None), others])
        elif int(fits):
            body = _body(choice, func)
    return scheduled(func, body)


def _body(choice: Choice, func: tirx.PrimFunc) -> tirx.Stmt:
    """The statements of one choice, in terms of the parameters of ``func``, with own variables."""
    own = choice.sch.mod["main"]
    root = own.body.block
    copies: dict[tirx.Var, tirx.Var] = dict(zip(own.params, func.params, strict=True))

    def define(old: tirx.Var) -> None:
        copies[old] = tirx.Var(old.name, old.ty)

    def block(node: SBlock) -> None:
        for variable in (*(axis.var for axis in node.iter_vars), *node.alloc_buffers):
            define(variable)

    definitions = [
        (tirx.For, lambda node: define(node.loop_var)),
        ((tirx.Bind, tirx.Let), lambda node: define(node.var)),
        (SBlock, block),
    ]
    tvm_ffi.structural_walk(root, definitions)
    named = _root(root.body, list(root.alloc_buffers), f"columns_{choice.columns}")
    return tvm_ffi.structural_map(named, (tirx.Var, lambda old: copies.get(old, old)))


def _root(body: tirx.Stmt, buffers: list[tirx.Var], name: str) -> s_tir.SBlockRealize:
    block = SBlock([], [], [], name, body, None, buffers, [], {})
    return s_tir.SBlockRealize([], tirx.const(True), block)


def _tiles(width: ir.Expr, columns: int) -> ir.Expr:
    return tirx.floordiv(width + (columns - 1), columns)


def _block(stmt: tirx.Stmt) -> SBlock:
    """The block in a nest of loops."""
    while isinstance(stmt, tirx.For):
        stmt = stmt.body
    return stmt.block


def _in_parts(buffer: tirx.Var, axis: int, extent: ir.Expr, columns: int) -> tirx.Var:
    shape = list(buffer.ty.shape)
    parts = [_tiles(extent, columns), int64(columns)]
    dtype = str(buffer.ty.dtype.dtype)
    return tirx.decl_buffer([*shape[:axis], *parts, *shape[axis + 1 :]], dtype, buffer.name)


Moved = Mapping[tirx.Var, tuple[int, tirx.Var]]


def _is_aligned(block: SBlock, axis: int, moved: Moved) -> bool:
    """Whether ``block`` reads what is ``moved`` at its own place along the axis."""
    places: list[bool] = []

    def load(node: TensorLoad) -> None:
        if node.source in moved:
            place = node.indices[moved[node.source][0]]
            places.append(place.same_as(block.iter_vars[axis].var))

    tvm_ffi.structural_walk(block.body, (TensorLoad, load))
    return all(places)


def _tiled(block: SBlock, axis: int, columns: int, extent: ir.Expr, moved: Moved) -> SBlock:
    """``block`` with a tile and a place in it for ``axis``."""
    tile, place = var("tile"), var("place")
    old = block.iter_vars[axis].var
    axes = [*block.iter_vars[:axis], *_axes(tile, place, columns, extent)]

    def indices(at: int, former: Sequence) -> list:
        return [*former[:at], tile, place, *former[at + 1 :]]

    values = {old: _element(tile, place, columns, extent)}
    return _moved(block, [*axes, *block.iter_vars[axis + 1 :]], values, moved, indices)


def _spread(
    block: SBlock, columns: int, extent: ir.Expr, moved: Moved, spread: Spreading
) -> SBlock:
    """``block`` over tiles, as ``spread`` says."""
    tile, place = var("tile"), var("place")
    axes = _axes(tile, place, columns, extent)
    told = spread(block, *axes, _element(tile, place, columns, extent))

    def indices(_at: int, former: Sequence) -> list:
        return told.indices(former)

    made = _moved(block, list(told.axes), told.values, moved, indices)
    body = tirx.IfThenElse(told.guard, made.body, None)
    reads, writes, name = made.reads, made.writes, made.name_hint
    return SBlock(made.iter_vars, reads, writes, name, body, None, [], [], made.annotations)


def _axes(
    tile: tirx.Var, place: tirx.Var, columns: int, extent: ir.Expr
) -> tuple[tirx.IterVar, tirx.IterVar]:
    def axis(variable: tirx.Var, count: ir.Expr) -> tirx.IterVar:
        return tirx.IterVar(Range(int64(0), count), variable, tirx.IterVar.DataPar)

    return axis(tile, _tiles(extent, columns)), axis(place, int64(columns))


def _element(tile: tirx.Var, place: tirx.Var, columns: int, extent: ir.Expr) -> ir.Expr:
    return tirx.min(tile * columns, extent - columns) + place


def _moved(
    block: SBlock,
    axes: list[tirx.IterVar],
    values: Mapping[tirx.Var, ir.Expr],
    moved: Moved,
    indices: Callable[[int, Sequence], list],
) -> SBlock:
    """``block`` over other ``axes``, of which its former ones have ``values``."""

    def load(node: TensorLoad) -> ir.Expr:
        if node.source not in moved:
            return node
        at, new = moved[node.source]
        return tirx.BufferLoad(new, indices(at, node.indices))

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        if node.buffer not in moved:
            return node
        at, new = moved[node.buffer]
        return tirx.BufferStore(new, node.value, indices(at, node.indices))

    def region(node: TensorRegion) -> TensorRegion:
        if node.source not in moved:
            return node
        at, new = moved[node.source]
        # What is put in the place of an axis is a point.
        firsts = indices(at, [part.min for part in node.region])
        extents = indices(at, [part.extent for part in node.region])
        ranges = [
            Range.from_min_extent(first, int64(1) if first.same_as(size) else size)
            for first, size in zip(firsts, extents, strict=True)
        ]
        return tirx.BufferRegion(new, ranges)

    def rewritten(node):
        if node is None:
            return None
        mapped = tvm_ffi.structural_map(
            node, ((TensorLoad, load), (tirx.BufferStore, store), (TensorRegion, region))
        )
        return substituted(mapped, values)

    return SBlock(
        axes,
        [rewritten(r if r.source in moved else _wide(r, values)) for r in block.reads],
        [rewritten(r) for r in block.writes],
        block.name_hint,
        rewritten(block.body),
        rewritten(block.init),
        [],
        [],
        block.annotations,
    )


def _wide(node: TensorRegion, values: Mapping[tirx.Var, ir.Expr]) -> TensorRegion:
    """All of a dim that is read by an axis of ``values``: TVM must see that what is written covers
    it, and of the formula for the last tile it does not, behind a stride, say."""

    def whole(part: Range, size: ir.Expr) -> Range:
        used = tirx.analysis.undefined_vars(part.min, [])
        return Range(int64(0), size) if any(var in values for var in used) else part

    shape = node.source.ty.shape
    return tirx.BufferRegion(node.source, list(map(whole, node.region, shape)))
