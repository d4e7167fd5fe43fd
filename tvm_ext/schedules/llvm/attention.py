"""Attention by row tiles: scores in registers, softmax in L1, values in registers.

A task is a tile of query rows of one head. Its scores are the only intermediate that is stored;
keys and values are packed once per head, by the thread that uses them where heads are enough to
share among the cores.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.s_tir import dlight as dl
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ..machine import Machine
from .access import Walk
from .contraction import axis_kinds, divisors, is_static
from .loops import vectorize
from .matmul import register_tile

__all__ = ["AttentionTile", "AttentionTiled", "choose_attention_tile"]

# The blocks in front of the last: packs, products, masks and powers, folds; two each. Weights that
# are rounded are one more.
_MAP = "SSSSS"
_KINDS = sorted(2 * ["SSSS", "SSSSSR", _MAP, "SSSRR"])
_ROUNDED = sorted([*_KINDS, _MAP])


@dataclass(frozen=True)
class AttentionTile:
    """``rows`` queries by ``columns`` keys, or by ``value_columns`` of the result."""

    rows: int
    columns: int
    value_columns: int


def choose_attention_tile(target: Target, rows: int, keys: int, width: int) -> AttentionTile:
    """The tile for so many queries, keys, and elements of a value, in float32."""
    machine = Machine.of(target)
    lanes = machine.lanes("float32")
    columns, value_columns = (lanes * (2 if extent > lanes else 1) for extent in (keys, width))
    vectors = max(columns, value_columns) // lanes
    most = min(rows, (machine.registers - vectors - 1) // vectors)
    height = min(range(1, most + 1), key=lambda r: (-(-rows // r) * (r + vectors), -r))
    return AttentionTile(height, columns, value_columns)


class AttentionTiled(dl.base.ScheduleRule):
    """Scores in register tiles, their softmax, the product with the values in register tiles."""

    def apply(self, func, target, _tunable):
        if not isinstance(func, tirx.PrimFunc) or not is_static(func):
            return None
        sch = s_tir.Schedule(func)
        blocks = _take_apart(sch)
        return None if blocks is None else _schedule(sch, blocks, Machine.of(target))


@dataclass(frozen=True)
class _Blocks:
    keys: SBlockRV
    values: SBlockRV
    scores: SBlockRV
    mixed: SBlockRV
    masked: SBlockRV
    power: SBlockRV
    peak: SBlockRV
    total: SBlockRV
    weights: list[SBlockRV]
    output: SBlockRV


def _take_apart(sch: s_tir.Schedule) -> _Blocks | None:
    """The blocks by what they are for; None where they are others."""
    *inner, last = sch.get_child_blocks(sch.get_sblock("root"))
    kinds = [axis_kinds(sch.get(block)) for block in inner]
    if sorted(kinds) not in (_KINDS, _ROUNDED) or "R" in axis_kinds(sch.get(last)):
        return None

    def both(kind: str) -> list[SBlockRV]:
        return [block for block, own in zip(inner, kinds, strict=True) if own == kind]

    packs, products, maps, folds = (both(kind) for kind in ("SSSS", "SSSSSR", _MAP, "SSSRR"))
    keys, values = packs
    scores, mixed = products
    masked, power, *weights = maps
    peak, total = folds
    return _Blocks(keys, values, scores, mixed, masked, power, peak, total, weights, last)


def _schedule(sch: s_tir.Schedule, blocks: _Blocks, machine: Machine) -> s_tir.Schedule:
    heads, _, _, rows, columns, _ = _extents(sch, blocks.scores)
    *_, value_columns, _ = _extents(sch, blocks.mixed)
    lanes = divisors(columns, machine.lanes("float32"))[-1]
    peaks, totals = (_lane_partials(sch, fold, lanes) for fold in (blocks.peak, blocks.total))

    head, row, column = _loops(sch, blocks)
    tile, row = sch.split(row, [None, rows])
    value_tile, column = sch.split(column, [None, value_columns])
    sch.reorder(head, tile, value_tile, row, column)
    packed_heads = {_extents(sch, pack)[0] for pack in (blocks.keys, blocks.values)}
    by_head = packed_heads == {heads} and (heads % machine.cores == 0 or heads >= 8 * machine.cores)
    if not by_head:
        head = tile = sch.fuse(head, tile)
    if machine.cores > 1:
        sch.parallel(head)

    register_tile(sch, blocks.mixed, value_tile, lanes)
    vectorize(sch, column, lanes)
    maps = [blocks.masked, blocks.power, *blocks.weights]
    for block in [*blocks.weights, *totals[::-1], blocks.power, *peaks[::-1], blocks.masked]:
        sch.set_scope(block, 0, "local")
        sch.compute_at(block, tile, preserve_unit_loops=True)
    key_tile = _by_key_tiles(sch, blocks.masked)
    register_tile(sch, blocks.scores, key_tile, lanes)
    for block in (*peaks[:-1], *totals[:-1]):
        _lanes_last(sch, block, lanes)
    for block in maps:
        vectorize(sch, sch.get_loops(block)[-1], lanes)
    for pack in (blocks.keys, blocks.values):
        if by_head:
            sch.compute_at(pack, head, preserve_unit_loops=True)
        elif machine.cores > 1:
            sch.parallel(sch.get_loops(pack)[0])
        vectorize(sch, sch.get_loops(pack)[-1], lanes)
    return sch


def _extents(sch: s_tir.Schedule, block: SBlockRV) -> list[int]:
    return [int(axis.dom.extent) for axis in sch.get(block).iter_vars]


def _loops(sch: s_tir.Schedule, blocks: _Blocks) -> tuple[LoopRV, LoopRV, LoopRV]:
    """(heads, rows, columns) of the block that writes the result, whatever their order there."""
    facts = Walk(sch.get(blocks.output))
    (written,) = sch.get(blocks.mixed).writes
    read = next(a for a in facts.inputs if a.buffer.same_as(written.source))
    at = next((k for index in read.indices[1:4:2] for k in facts.used(index)), None)
    *loops, column = sch.get_loops(blocks.output)
    row = loops.pop(at) if at is not None else sch.add_unit_loop(column)
    sch.reorder(*loops, row, column)
    head = sch.fuse(*loops) if loops else sch.add_unit_loop(row)
    return head, row, column


def _lane_partials(sch: s_tir.Schedule, fold: SBlockRV, lanes: int) -> list[SBlockRV]:
    """Fold keys in vector lanes, and these by a tree: the blocks in order, ``fold`` the last."""
    blocks = [sch.rfactor(sch.get_loops(fold)[-1], -1)]
    width = int(sch.get(sch.get_loops(fold)[-1]).extent)
    while width > 2:
        width //= 2
        _, lane = sch.split(sch.get_loops(fold)[-1], [None, width])
        blocks.append(sch.rfactor(lane, -1))
    return [*blocks, fold]


def _by_key_tiles(sch: s_tir.Schedule, masked: SBlockRV) -> LoopRV:
    """The loop over key tiles, now around the one over rows."""
    row, key_tile, _ = sch.get_loops(masked)[-3:]
    sch.reorder(key_tile, row)
    return key_tile


def _lanes_last(sch: s_tir.Schedule, partial: SBlockRV, lanes: int) -> None:
    """Vectorise a partial fold along its own axis, the first, inside of what it folds."""
    kinds = axis_kinds(sch.get(partial))
    lane, *others = sch.get_loops(partial)[-len(kinds) :]
    folded = others.pop(kinds.index("R") - 1)
    sch.reorder(*others, folded, lane)
    vectorize(sch, lane, lanes)
    init = sch.decompose_reduction(partial, folded)
    vectorize(sch, sch.get_loops(init)[-1], lanes)
