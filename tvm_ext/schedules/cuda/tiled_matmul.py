"""Matrix products and convolutions: a block per tile of the result, operands in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import tvm
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
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.sym import Analyzer
from tvm.target import Target
from tvm.tirx.analysis import undefined_vars

from .blocks import SHARED_BYTES, extent

__all__ = ["TILES", "Tile", "TiledMatmul"]

UNKNOWN_EXTENT = 1024

# Multiprocessors of the largest GPU of an architecture, and what each has.
MULTIPROCESSORS = {"sm_86": 84, "sm_89": 128, "sm_90": 132, "sm_100": 148, "sm_120": 170}
MULTIPROCESSORS_ELSEWHERE = 108  # of an A100
REGISTERS = 1 << 16
FMAS = 128  # per cycle

# What `Tile.cycles` was fitted with to the times of 27 products and convolutions on an H100.
OTHER_REGISTERS = 48  # of a thread, beside its sums
CYCLES_PER_LOAD = 1 / 20
CYCLES_PER_SUM = 1 / 5
LATENCY = 800  # cycles between two steps along the depth, at least

LANES = 4
VECTOR_BYTES = 16
PITCH = 4  # beyond a row in shared memory: rows begin at other banks, vectors stay aligned

_CONSTANT = tirx.IntImm | tirx.FloatImm


@dataclass(frozen=True)
class Tile:
    """``rows`` x ``columns`` of the result; of it each thread adds up ``each`` of both.

    Steps of ``depth`` go through shared memory. Where ``groups`` of threads share a tile, each
    adds up its part of every step, and their sums are added at the end: that keeps more threads
    at work on a small result.
    """

    rows: int
    columns: int
    each: tuple[int, int]
    depth: int
    groups: int = 1

    @property
    def threads(self) -> tuple[int, int]:
        """Threads of a group along rows and along columns."""
        return self.rows // self.each[0], self.columns // self.each[1]

    def shared_bytes(self, operand: int, result: int) -> int:
        """Bytes of shared memory, of elements of so many bytes."""
        pitches = self.rows + self.columns + 2 * PITCH
        parts = self.groups * self.rows * self.columns if self.groups > 1 else 0
        return self.depth * pitches * operand + parts * result

    def cycles(self, sizes: Sequence[int], multiprocessors: int) -> float:
        """Roughly, for ``sizes``: batch, rows, columns and depth of the whole product."""
        batch, rows, columns, depth = sizes
        blocks = batch * -(-rows // self.rows) * -(-columns // self.columns)
        share = -(-blocks // multiprocessors)
        registers = (prod(self.each) + OTHER_REGISTERS) * prod(self.threads) * self.groups
        together = min(share, REGISTERS // registers)
        area = self.rows * self.columns
        work = self.depth * (area / FMAS + (self.rows + self.columns) * CYCLES_PER_LOAD)
        steps = -(-share // together) * -(-depth // self.depth)
        parts = self.groups * area if self.groups > 1 else 0
        return steps * max(together * work, LATENCY) + share * parts * CYCLES_PER_SUM


TILES = (
    Tile(128, 128, (8, 8), 8),
    Tile(64, 64, (8, 4), 16),
    Tile(32, 64, (4, 4), 32),
    Tile(64, 32, (4, 4), 32),
    Tile(16, 64, (4, 4), 64, groups=4),
    Tile(64, 16, (4, 4), 64, groups=4),
    Tile(16, 32, (4, 4), 64, groups=4),
    Tile(32, 16, (4, 4), 64, groups=4),
    Tile(16, 16, (4, 4), 128, groups=16),
    Tile(8, 32, (4, 4), 64, groups=16),
    Tile(32, 8, (4, 4), 64, groups=16),
)


class TiledMatmul(GPUScheduleRule):
    """Takes ``C[s, i, j] += A[s, i, k] * B[s, j, k]`` where each letter stands for any axes.

    So matrix products (batched, transposed, symbolic) and, as implicit matrix products,
    convolutions (strided, dilated, grouped, transposed); what stands before is computed where a
    tile is loaded, what stands behind where it is stored. Tiles that reach beyond a matrix are
    guarded, and hold zeros there: other terms than products need not vanish on them.

    While a step along the depth is multiplied, threads load what the next needs into registers.
    """

    def __init__(self, *, tiles: tuple[Tile, ...] = TILES):
        self.tiles = tiles

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
        tile = self._tile(sch, main, target)
        _, *loops, _ = sch.get_loops(main)
        extents = [sch.get(loop).extent for loop in loops]
        sch.pad_einsum(main, [1, tile.rows, tile.columns, tile.depth])
        if tile.groups > 1:
            product, result = _grouped(sch, main, tile, order)
        else:
            product, result = main, None
            *_, k = _placed(sch, main, tile)
            sch.split(k, [None, tile.depth])
        sums = _multiplied(sch, product, tile, order)
        result = result or sums
        auto_inline_consumer_chain(sch, result)
        _keep_within(sch, result, extents)
        return sch

    def _tile(self, sch: s_tir.Schedule, main: SBlockRV, target: Target) -> Tile:
        sizes = [extent(sch, loop) or UNKNOWN_EXTENT for loop in sch.get_loops(main)]
        processors = MULTIPROCESSORS.get(str(target.attrs["arch"]), MULTIPROCESSORS_ELSEWHERE)
        block = sch.get(main)
        operand = max(_itemsize(read.source) for read in block.reads)
        result = _itemsize(block.writes[0].source)
        fitting = [t for t in self.tiles if t.shared_bytes(operand, result) <= SHARED_BYTES]
        return min(fitting, key=lambda tile: tile.cycles(sizes, processors))


def _itemsize(tensor: tirx.Var) -> int:
    return tvm.DataType(str(tensor.ty.dtype.dtype)).itemsize


def _placed(sch: s_tir.Schedule, block: SBlockRV, tile: Tile) -> list[LoopRV]:
    """Give each tile of ``block`` a block of threads; returns its loop and those inside."""
    batch, i, j, *rest = sch.get_loops(block)
    i_block, i = sch.split(i, [None, tile.rows])
    j_block, j = sch.split(j, [None, tile.columns])
    sch.reorder(batch, j_block, i_block, i, j, *rest)
    place = sch.fuse(batch, j_block, i_block)
    sch.bind(place, "blockIdx.x")
    return [place, i, j, *rest]


def _over_threads(sch: s_tir.Schedule, loop: LoopRV, tile: Tile) -> LoopRV:
    """Deal ``loop`` out to the threads of all groups; returns what each does of it."""
    each, group, thread = sch.split(loop, [None, tile.groups, prod(tile.threads)])
    if tile.groups > 1:
        sch.bind(group, "threadIdx.y")
    sch.bind(thread, "threadIdx.x")
    return each


def _grouped(
    sch: s_tir.Schedule, main: SBlockRV, tile: Tile, order: _Order
) -> tuple[SBlockRV, SBlockRV]:
    """Split the depth of ``main`` among groups of threads, whose sums meet in shared memory.

    Returns the block of their products, and the one that stores the result.
    """
    *_, k = sch.get_loops(main)
    _, group, _ = sch.split(k, [None, tile.groups, tile.depth // tile.groups])
    product = sch.rfactor(group, 0)
    sch.set_scope(product, 0, "shared")
    place, i, j, _ = _placed(sch, main, tile)
    result = sch.cache_write(main, 0, "local")
    lanes = (j, i) if order.rows_contiguous else (i, j)
    sch.reorder(*lanes)
    _over_threads(sch, sch.fuse(*lanes), tile)
    *_, thread, _ = sch.get_loops(main)
    sch.reverse_compute_at(result, thread, preserve_unit_loops=True)
    sch.compute_at(product, place, preserve_unit_loops=True)
    _, group, *_ = sch.get_loops(product)
    sch.bind(group, "threadIdx.y")
    return product, result


def _multiplied(sch: s_tir.Schedule, product: SBlockRV, tile: Tile, order: _Order) -> SBlockRV:
    """Give each thread its part of the tile of ``product``; returns the block that stores it."""
    *_, i, j, k_outer, k_inner = sch.get_loops(product)
    lanes = [
        min(LANES, each, VECTOR_BYTES // _itemsize(read.source))
        for each, read in zip(tile.each, sch.get(product).reads[-2:], strict=True)
    ]
    rows, columns = tile.threads
    if tile.groups > 1:
        i_thread, *i = sch.split(i, [rows, None, lanes[0]])
        j_thread, *j = sch.split(j, [columns, None, lanes[1]])
        apart = []
    else:
        # Vectors of a thread lie apart, those of its neighbours between: that takes vthreads.
        i_each, i_thread, *i = sch.split(i, [None, rows, lanes[0]])
        j_each, j_thread, *j = sch.split(j, [None, columns, lanes[1]])
        sch.bind(i_each, "vthread.x")
        sch.bind(j_each, "vthread.y")
        apart = [i_each, j_each]
    threads = [j_thread, i_thread] if order.rows_contiguous else [i_thread, j_thread]
    sch.reorder(*apart, *threads, k_outer, k_inner, *i, *j)
    thread = sch.fuse(*threads)
    sch.bind(thread, "threadIdx.x")
    # The compiler of the GPU unrolls: the text of unrolled tiles is a hundred times longer.
    sch.annotate(thread, "pragma_auto_unroll_max_step", 1024)
    sch.annotate(thread, "pragma_unroll_explicit", 0)

    sums = sch.cache_write(product, 0, "local")
    sch.reverse_compute_at(sums, thread, preserve_unit_loops=True)
    for operand, depth_contiguous in enumerate(order.depth_contiguous):
        shared = sch.cache_read(product, operand, "shared")
        sch.compute_at(shared, k_outer, preserve_unit_loops=True)
        _vectors(sch, product, operand, k_inner, lanes[operand])
        _copied(sch, shared, tile, depth_contiguous=depth_contiguous)
        auto_inline_producers(sch, shared)
    sch.decompose_reduction(product, k_outer)
    # Of both operands the load into registers and the store to shared memory, then the products.
    sch.annotate(k_outer, "software_pipeline_stage", [0, 1, 0, 1, 1])
    sch.annotate(k_outer, "software_pipeline_order", [2, 0, 3, 1, 4])
    return sums


def _vectors(
    sch: s_tir.Schedule, product: SBlockRV, operand: int, k_inner: LoopRV, lanes: int
) -> None:
    """Read ``operand`` of ``product`` from shared memory in vectors."""
    held = sch.cache_read(product, operand, "local")
    sch.compute_at(held, k_inner, preserve_unit_loops=True)
    *_, across, along = sch.get_loops(held)
    _, lane = sch.split(across, [None, lanes])
    sch.reorder(along, lane)
    if lanes > 1:
        sch.vectorize(lane)


def _copied(sch: s_tir.Schedule, shared: SBlockRV, tile: Tile, *, depth_contiguous: bool) -> None:
    """Let all threads copy a step of an operand, one row after another along the depth."""
    sch.transform_layout(shared, ("write", 0), lambda batch, across, along: (batch, along, across))
    *_, across, along = sch.get_loops(shared)
    if depth_contiguous:
        # A warp reads whole sectors, four of them, and writes to 32 banks.
        across, row = sch.split(across, [None, 4])
        along, column = sch.split(along, [None, 8])
        walk = [across, along, row, column]
    else:
        walk = [along, across]
    sch.reorder(*walk)
    _over_threads(sch, sch.fuse(*walk), tile)
    sch.storage_align(shared, 0, axis=1, factor=2 * PITCH, offset=PITCH)
    sch.annotate(shared, "tirx.manifest_shared_memory_local_stage", 1)


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
