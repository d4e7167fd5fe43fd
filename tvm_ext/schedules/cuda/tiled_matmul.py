"""Matrix products and convolutions: a block per tile of the result, operands in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Range, TensorLoad
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule
from tvm.s_tir.dlight.gpu.matmul import (
    auto_inline_consumer_chain,
    auto_inline_producers,
    get_index_map,
    get_reduction_blocks,
)
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import Analyzer
from tvm.target import Target
from tvm.tirx.analysis import undefined_vars

from .blocks import extent

__all__ = ["Tile", "TiledMatmul"]

# A multiprocessor of any GPU since sm_70 keeps a few such blocks; an A100 has 108 of them.
MULTIPROCESSORS = 108
UNKNOWN_EXTENT = 1024

DEPTHS = 8, 16, 32, 64
# Loads of a thread that wait for memory together, and the wait in steps along the depth.
LOADS = 16
WAIT = 64

_CONSTANT = tirx.IntImm | tirx.FloatImm


@dataclass(frozen=True)
class Tile:
    """``rows`` x ``columns`` of the result; a thread holds every 16th row of every 16th column."""

    rows: int
    columns: int

    @property
    def threads(self) -> tuple[int, int]:
        """Threads along rows and along columns."""
        return min(16, self.rows), min(16, self.columns)

    def depth(self, reduced: int) -> int:
        """The depth of its operands in shared memory, of a product that is ``reduced`` deep."""
        most = LOADS * prod(self.threads) // (self.rows + self.columns)
        fitting = [depth for depth in DEPTHS if depth <= max(most, DEPTHS[0])]
        return min(fitting, key=lambda depth: -(-reduced // depth) * (depth + WAIT))

    def cost(self, batch: int, rows: int, columns: int) -> float:
        """Relative time: waves of blocks, each of its multiply-adds and its loads."""
        blocks = batch * -(-rows // self.rows) * -(-columns // self.columns)
        waves = -(-blocks // MULTIPROCESSORS)
        return waves * (self.rows * self.columns + 32 * (self.rows + self.columns))


class TiledMatmul(GPUScheduleRule):
    """Takes ``C[s, i, j] += A[s, i, k] * B[s, j, k]`` where each letter stands for any axes.

    So matrix products (batched, transposed, symbolic) and, as implicit matrix products,
    convolutions (strided, dilated, grouped, transposed); what stands before is computed where a
    tile is loaded, what stands behind where it is stored. Tiles that reach beyond a matrix are
    guarded, and hold zeros there: other terms than products need not vanish on them.
    """

    def __init__(self, *, sizes: tuple[int, ...] = (8, 16, 32, 64, 128)):
        self.tiles = [Tile(rows, columns) for rows, columns in product(sizes, sizes)]

    def apply(self, func: tirx.PrimFunc, target: Target, _tunable: bool) -> s_tir.Schedule | None:
        """The schedule, or None where ``func`` has another structure."""
        if not self.is_target_available(target):
            return None
        sch = s_tir.Schedule(func)
        root = sch.get_sblock(func.body.block.name_hint)
        found = get_reduction_blocks(sch, sch.get_child_blocks(root))
        if not found:
            return None
        (main,) = found
        condition = _condition(sch.get(main))
        if condition is None:
            return None
        sch, main = _split_groups(sch, main)
        if get_index_map(sch.get(main)) is None:
            return None
        order = _Order.of(sch.get(main))
        operands = _normalise(sch, main)
        if condition:
            for operand in operands:
                _guard(sch, operand)
        batch, rows, columns = (
            extent(sch, loop) or UNKNOWN_EXTENT for loop in sch.get_loops(main)[:3]
        )
        tile = min(self.tiles, key=lambda tile: tile.cost(batch, rows, columns))
        self._schedule(sch, main, tile, order)
        return sch

    def _schedule(self, sch: s_tir.Schedule, main: SBlockRV, tile: Tile, order: _Order) -> None:
        rows, columns = tile.threads
        _, *loops, reduced = sch.get_loops(main)
        depth = tile.depth(extent(sch, reduced) or UNKNOWN_EXTENT)
        extents = [sch.get(loop).extent for loop in loops]
        sch.pad_einsum(main, [1, tile.rows, tile.columns, depth])
        batch, i, j, k = sch.get_loops(main)
        i_block, i_each, i_thread = sch.split(i, [None, tile.rows // rows, rows])
        j_block, j_each, j_thread = sch.split(j, [None, tile.columns // columns, columns])
        k_outer, k_inner = sch.split(k, [None, depth])
        lanes = [j_thread, i_thread] if order.rows_contiguous else [i_thread, j_thread]
        sch.reorder(batch, j_block, i_block, i_each, j_each, *lanes, k_outer, k_inner)
        sch.bind(sch.fuse(batch, j_block, i_block), "blockIdx.x")
        thread = sch.fuse(*lanes)
        sch.bind(thread, "threadIdx.x")
        # What a thread holds is strided, as neighbours are contiguous: TVM calls that vthreads.
        sch.bind(i_each, "vthread.x")
        sch.bind(j_each, "vthread.y")
        # The compiler of the GPU unrolls: the text of unrolled tiles is a hundred times longer.
        sch.annotate(thread, "pragma_auto_unroll_max_step", 1024)
        sch.annotate(thread, "pragma_unroll_explicit", 0)

        result = sch.cache_write(main, 0, "local")
        sch.reverse_compute_at(result, thread, preserve_unit_loops=True)
        for operand, depth_contiguous in enumerate(order.depth_contiguous):
            copy = sch.cache_read(main, operand, "shared")
            sch.compute_at(copy, k_outer, preserve_unit_loops=True)
            *_, across, along = sch.get_loops(copy)
            if not depth_contiguous:
                sch.reorder(along, across)
                across, along = along, across
            _, lane = sch.split(sch.fuse(across, along), [None, rows * columns])
            sch.bind(lane, "threadIdx.x")
            # An odd pitch: threads that walk along either axis meet different banks.
            sch.storage_align(copy, 0, axis=1, factor=2, offset=1)
            auto_inline_producers(sch, copy)
        auto_inline_consumer_chain(sch, result)
        _keep_within(sch, result, extents)
        sch.decompose_reduction(main, k_outer)


@dataclass(frozen=True)
class _Order:
    """Which axes are contiguous in memory, so that neighbouring threads must walk along them."""

    depth_contiguous: tuple[bool, ...]  # in the operands, k rather than i or j
    rows_contiguous: bool  # in the result, i rather than j

    @classmethod
    def of(cls, block: s_tir.SBlock) -> _Order:
        kinds = {
            axis.var: axis.iter_type
            for axis in block.iter_vars
            if not (isinstance(axis.dom.extent, tirx.IntImm) and int(axis.dom.extent) == 1)
        }

        def used(region: list[Range]) -> list[set[tirx.Var]]:
            return [{v for v in undefined_vars(axis.min) if v in kinds} for axis in region]

        def innermost(region: list[Range]) -> set[tirx.Var]:
            return next((axes for axes in reversed(used(region)) if axes), set())

        reduced = tirx.IterVar.CommReduce
        first, second = (read.region for read in block.reads)
        rows = set().union(*used(first)) - set().union(*used(second))
        depth = tuple(
            all(kinds[v] == reduced for v in innermost(region)) for region in (first, second)
        )
        return cls(depth, bool(innermost(block.writes[0].region) & rows))


def _condition(block: s_tir.SBlock) -> bool | None:
    """Does the product that ``block`` adds up depend on a condition? None: it is no product."""
    update = block.body.value if isinstance(block.body, tirx.BufferStore) else None
    if not isinstance(update, tirx.Add) or not isinstance(update.a, TensorLoad):
        return None
    term = _uncast(update.b)
    conditional = isinstance(term, Call) and term.op.name == "prim.if_then_else"
    if conditional:
        _, term, otherwise = term.args
        if not isinstance(otherwise, _CONSTANT) or otherwise.value:
            return None
    factors = [_uncast(factor) for factor in (term.a, term.b)] if isinstance(term, tirx.Mul) else []
    return conditional if factors and all(isinstance(f, TensorLoad) for f in factors) else None


def _uncast(value: tirx.Expr) -> tirx.Expr:
    return value.value if isinstance(value, tirx.Cast) else value


def _normalise(sch: s_tir.Schedule, main: SBlockRV) -> list[SBlockRV]:
    """Bring ``main`` into the form ``C[s, i, j] += A[s, i, k] * B[s, j, k]``.

    Returns the blocks that bring its operands into theirs.
    """
    read = [sch.reindex(main, ("read", k)) for k in (0, 1)]
    write = sch.reindex(main, ("write", 0))
    whole, *operands, result = get_index_map(sch.get(main))
    for block, index_map in zip(read, operands, strict=True):
        sch.transform_layout(block, ("write", 0), index_map)
    sch.transform_layout(write, ("read", 0), result)
    sch.transform_block_layout(main, whole)
    return read


def _guard(sch: s_tir.Schedule, copy: SBlockRV) -> None:
    """Let the block ``copy`` read zeros beyond its tensor.

    ``main`` would not use them: its condition says so, but that stays behind in ``main``.
    """
    block = sch.get(copy)
    load = block.body.value
    inside = [
        tirx.all(index >= 0, index < extent)
        for index, extent in zip(load.indices, load.source.ty.shape, strict=True)
    ]
    value = tirx.if_then_else(tirx.all(*inside), load, tirx.const(0, load.ty.dtype))
    store = tirx.BufferStore(block.body.buffer, value, block.body.indices)
    guarded = s_tir.SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, store)
    sch.state.replace(sch.get_sref(copy), guarded, {block: guarded})


def _keep_within(sch: s_tir.Schedule, result: SBlockRV, extents: list[tirx.Expr]) -> None:
    """Let the block ``result`` store nothing beyond ``extents`` rows and columns.

    Inlining into it what follows forgets that, and asks for places inside of the last tensor
    only: there the padding of one group of channels lies on the channels of the next.
    """
    block = sch.get(result)
    _, *axes = block.iter_vars
    inside = [axis.var < extent for axis, extent in zip(axes, extents, strict=True)]
    body = tirx.IfThenElse(tirx.all(*inside), block.body, None)
    kept = s_tir.SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, body)
    sch.state.replace(sch.get_sref(result), kept, {block: kept})


def _split_groups(sch: s_tir.Schedule, main: SBlockRV) -> tuple[s_tir.Schedule, SBlockRV]:
    """Give the groups of a convolution, ``channel // size`` in its input, an axis of their own."""
    block = sch.get(main)
    variables = [axis.var for axis in block.iter_vars]
    divisions: set[tuple[int, int]] = set()  # of which axis, by what

    def note(node: tirx.FloorDiv) -> None:
        if node.a in variables and isinstance(node.b, tirx.IntImm):
            divisions.add((variables.index(node.a), int(node.b)))

    for index in block.reads[0].region:
        tvm_ffi.structural_walk(index.min, (tirx.FloorDiv, note), order="post")
    if len(divisions) != 1:
        return sch, main
    ((channel, size),) = divisions
    channels = block.iter_vars[channel].dom.extent
    if not isinstance(channels, tirx.IntImm) or int(channels) % size:
        return sch, main

    def split(*axes: tirx.Var) -> list[tirx.Expr]:
        parts = [axes[channel] // size, axes[channel] % size]
        return [*axes[:channel], *parts, *axes[channel + 1 :]]

    dtype = str(variables[channel].ty.dtype)
    index_map = tirx.IndexMap.from_func(split, ndim=len(variables), index_dtype=dtype)
    sch.transform_block_layout(main, index_map)
    analyzer = Analyzer()
    for axis in sch.get(main).iter_vars:
        analyzer.bind(axis.var, axis.dom)
    divided = (tirx.FloorDiv, tirx.FloorMod)
    func = tvm_ffi.structural_map(sch.mod["main"], (divided, analyzer.simplify))
    sch = s_tir.Schedule(func)
    return sch, sch.get_sblock(block.name_hint)
