"""Taps that meet nothing but padding are left out: their products are zero, and no maximum.

Dilated windows reach far beyond small images: of a 3x3 window of dilation 12 on 20 x 20 pixels two
thirds of the rows of taps lie outside, and of the columns as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize

from ..statements import map_children, rescheduled, substituted

__all__ = [
    "PADDED",
    "copies",
    "guarded",
    "guards",
    "is_padded",
    "pads_rows_alone",
    "rows_seen",
    "sees_image",
    "sees_zeros",
    "without_zeros",
]

#: The annotation of a block that sums, or compares, over an image between pads: size, pads before,
#: stride and dilation of each axis.
PADDED = "padded"
# The same where the size is symbolic: pads before and after, stride and dilation of each axis.
_PADS = "pads"
# A test in each turn is worth it where it leaves out this part of the products.
_WORTH = 1 / 32


@dataclass(frozen=True)
class _Axis:
    """One axis of the image: its size without pads, and how taps move along it."""

    size: int
    before: int
    stride: int
    dilation: int

    def place(self, position, tap):
        """Where on the image a ``tap`` lies that an output at ``position`` sees."""
        return position * self.stride + tap * self.dilation - self.before

    def outside(self, positions: int, taps: int, width: int) -> float:
        """The part of all pairs of a tap and ``width`` neighbouring outputs that see only pads."""
        tiles = [(i, min(i + width, positions) - 1) for i in range(0, positions, width)]
        dead = [
            self.place(last, tap) < 0 or self.place(first, tap) >= self.size
            for first, last in tiles
            for tap in range(taps)
        ]
        return sum(dead) / len(dead)


def _axes(block: s_tir.SBlock) -> list[_Axis]:
    return [_Axis(*map(int, axis)) for axis in block.annotations[PADDED]]


def is_padded(sch: s_tir.Schedule, contraction) -> bool:
    """Whether ``contraction`` sums an image between zeros."""
    return PADDED in sch.get(contraction).annotations


def pads_rows_alone(sch: s_tir.Schedule, contraction, pads: Sequence) -> bool:
    """Whether ``pads`` are zeros above and below an image that ``contraction`` sums."""
    block = sch.get(contraction)
    if not pads or PADDED not in block.annotations or not all(copies(sch, pad) for pad in pads):
        return False
    return _axes(block)[-1].size == int(block.reads[0].source.ty.shape[-2])


def rows_seen(sch: s_tir.Schedule, contraction, rows: int) -> float:
    """The rows of the image between pads that so many neighbouring ``rows`` of outputs see.

    Relative to those that they see once; infinite where the image has no pads.
    """
    block = sch.get(contraction)
    if PADDED not in block.annotations:
        return inf
    axes = _axes(block)
    axis, window = axes[0], block.iter_vars[-len(axes)].dom.extent
    seen = axis.place(rows - 1, int(window) - 1) - axis.place(0, 0) + 1
    return seen / (rows * axis.stride)


def sees_image(sch: s_tir.Schedule, reduction) -> bool:
    """Whether at each output of ``reduction``, [n, o, *place, lane], some tap meets the image."""
    block = sch.get(reduction)
    axes = _axes(block)
    places, taps = block.iter_vars[2:], block.iter_vars[-len(axes) :]
    return all(
        any(0 <= axis.place(i, tap) < axis.size for tap in range(int(window.dom.extent)))
        for axis, place, window in zip(axes, places, taps, strict=False)
        for i in range(int(place.dom.extent))
    )


def guards(
    sch: s_tir.Schedule, contraction, taps: Sequence, least: float = _WORTH
) -> dict[tirx.Var, tirx.Expr]:
    """Variables of the loops over ``taps``, one for each axis, and when a turn sees the image.

    ``contraction`` sums an image padded with zeros. Its outputs are [n, o, *rows, tile, column in
    the tile, lane]. A test must leave out at least the part ``least`` of the products.
    """
    realize = get_sblockrealize(sch, contraction)
    # Of the axes after images and channels, of which the images may be symbolic.
    extents = [int(axis.dom.extent) for axis in realize.block.iter_vars[2:]]
    axes = _axes(realize.block)
    found = {}
    for k, (axis, loop) in enumerate(zip(axes, map(sch.get, taps), strict=False)):
        width = extents[len(axes)] if k == len(axes) - 1 else 1
        if axis.outside(extents[k] * width, int(loop.extent), width) >= least:
            first = realize.iter_values[2 + k] * width
            found[loop.loop_var] = tirx.all(
                axis.place(first + width - 1, loop.loop_var) >= 0,
                axis.place(first, loop.loop_var) < axis.size,
            )
    return found


def guarded(sch: s_tir.Schedule, guards: Mapping[tirx.Var, tirx.Expr]) -> s_tir.Schedule:
    """``sch`` with the bodies of the loops over the variables of ``guards`` run under them."""
    return rescheduled(_guarded(sch.mod["main"], guards)) if guards else sch


def _guarded(func: tirx.PrimFunc, guards: Mapping[tirx.Var, tirx.Expr]) -> tirx.PrimFunc:
    def rewrite(stmt: tirx.Stmt) -> tirx.Stmt:
        stmt = map_children(stmt, rewrite)
        if isinstance(stmt, tirx.For) and stmt.loop_var in guards:
            guard = guards[stmt.loop_var]
            return map_children(stmt, lambda body: tirx.IfThenElse(guard, body, None))
        return stmt

    return tirx.PrimFunc(func.params, rewrite(func.body), func.ret_type, func.attrs)


def copies(sch: s_tir.Schedule, pad) -> bool:
    """Whether ``pad`` puts elements of its operand, as they are, between pads."""
    return _is_between_pads(sch.get(pad).body.value)


def _is_between_pads(value: tirx.Expr) -> bool:
    return (
        isinstance(value, Call)
        and value.op.name.endswith("if_then_else")
        and isinstance(value.args[1], TensorLoad)
    )


def sees_zeros(sch: s_tir.Schedule, contraction, pad) -> bool:
    """Whether ``contraction`` sums an image of symbolic size that ``pad`` copies between zeros."""
    return _PADS in sch.get(contraction).annotations and copies(sch, pad)


def without_zeros(sch: s_tir.Schedule, contraction, rows_of_taps: Sequence) -> s_tir.Schedule:
    """``sch`` where the padding of an image of symbolic size was inlined into ``contraction``.

    Its outputs are [n, o, *rows, tile, place in the tile, lane], tiles overlap and lie in the
    image. Rows of taps run where they see it; only taps at the edges of a tile may be beyond its
    columns, and which these are is known for each place.
    """
    realize = get_sblockrealize(sch, contraction)
    block = realize.block
    axes = [tuple(map(int, axis)) for axis in block.annotations[_PADS]]
    place, taps = block.iter_vars[len(axes) + 2], block.iter_vars[-len(axes) :]
    before, after, stride, dilation = axes[-1]
    first = place.var * stride + taps[-1].var * dilation  # from the first tap of the tile
    last = (int(place.dom.extent) - 1) * stride + (int(taps[-1].dom.extent) - 1) * dilation
    inside: list[tuple] = []

    def columns(call: Call) -> tirx.Expr:
        if not _is_between_pads(call):
            return call
        _, element, zero = call.args
        *places, column = element.indices[2:-1]
        *sizes, width = element.source.ty.shape[2:-1]
        inside[:] = zip(places, sizes, strict=True)
        sees = tirx.all(
            tirx.any(first >= before, column >= 0),
            tirx.any(last - first >= after, column < width),
        )
        return tirx.if_then_else(sees, element, zero)

    def told(node: s_tir.SBlock) -> s_tir.SBlock:
        if node.name_hint != block.name_hint:
            return node
        body = tvm_ffi.structural_map(node.body, (Call, columns))
        return s_tir.SBlock(
            node.iter_vars, node.reads, node.writes, node.name_hint, body, node.init,
            node.alloc_buffers, node.match_buffers, node.annotations,
        )  # fmt: skip

    func = sch.mod["main"]
    outer = dict(zip((axis.var for axis in block.iter_vars), realize.iter_values, strict=True))
    body = tvm_ffi.structural_map(func.body, (s_tir.SBlock, told))
    rows = {
        sch.get(loop).loop_var: substituted(tirx.all(index >= 0, index < size), outer)
        for loop, (index, size) in zip(rows_of_taps, inside, strict=True)
    }
    func = tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)
    return rescheduled(_guarded(func, rows))
