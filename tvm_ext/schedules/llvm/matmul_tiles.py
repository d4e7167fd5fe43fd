"""Product of words, pairs of bfloat16 or four bytes, in tiles, as AMX multiplies them.

Before::

    words[m, k, 16, 16] = word(x[16 * m + i, 16 * k + j], ..)
    product[row, n, c] += dot(words[row // 16, k // 16, row % 16, k % 16], w[n, k, c])
    y[.., j] = f(product[row, j // 32, j % 32])

After::

    for m in T.parallel(M): words[m, ..] = ..
    for n in T.parallel(N):                    # panels of weights
        for r in range(rows // 32):            # two tiles of rows; then one, where it is left
            sums[32, 32] = tiles(words[2 * r ..], w[n])
            y[32 * r + (0..31), 32 * n + (0..31)] = f(sums)
"""

from __future__ import annotations

from functools import partial

from tvm import tirx
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl

from ..machine import Machine
from ..statements import substituted
from .contraction import axis_kinds, blocks_of
from .loops import others_inlined
from .matmul_loops import shared
from .matmul_rows import element_of, is_flat, shares_panels, term_of
from .register_tiles import Results, int64, lanewise, local, loop, scheduled, sequence, var
from .tiles import COLUMNS, TILE, WORD_BYTES, Ahead, begun, dots_of, multiplied

__all__ = ["MatmulTiles"]

# Bytes of rows that each panel of weights is swept over: most of the L2 of CPUs with AMX.
_CACHED = 3 << 19


class MatmulTiles(dl.base.ScheduleRule):
    """Pack, accumulate ``[rows, panels, 32]`` over one reduction axis in tiles of AMX, epilogue.

    bfloat16[128, 768] times cold weights [768, 3072], two Emerald Rapids cores: 0.5 ms.
    """

    def apply(self, func, target, _tunable):
        machine = Machine.of(target)
        found = blocks_of(func) if machine.tiles and isinstance(func, tirx.PrimFunc) else None
        if found is None:
            return None
        sch, blocks = found
        kinds = [axis_kinds(sch.get(block)) for block in blocks]
        at = next((k for k, kind in enumerate(kinds) if kind == "SSSR"), 0)
        if at == 0 or at + 1 == len(kinds) or kinds[at - 1] != "SSSS":
            return None
        if any(set(kind) - {"S"} for k, kind in enumerate(kinds) if k != at):
            return None
        if not _is_of_tiles(sch.get(blocks[at - 1]), sch.get(blocks[at])):
            return None
        kept = others_inlined(sch, blocks, at - 1, 2)
        if kept is None:
            return None
        pack, product, output = kept
        if not is_flat(product, output):
            return None
        return scheduled(sch.mod["main"], _loops(pack, product, output, machine))


def _is_of_tiles(pack: SBlock, product: SBlock) -> bool:
    """Whether ``product`` adds dots of the words of ``pack`` and those of panels."""
    dots = dots_of(product)
    (words,) = (region.source for region in pack.writes)
    if dots is None or not dots[0].source.same_as(words):
        return False
    fixed = [axis.dom.extent for axis in product.iter_vars[1:]]
    fixed += [*words.ty.shape[1:], *dots[1].source.ty.shape]
    if not all(isinstance(extent, tirx.IntImm) for extent in fixed):
        return False
    panels, columns, depth, *shapes = map(int, fixed)
    tiles, right = [depth // TILE, TILE, TILE], [panels, depth, columns]
    return columns == COLUMNS and shapes == [*tiles, *right]


def _loops(pack: SBlock, product: SBlock, output: SBlock, machine: Machine) -> tirx.Stmt:
    """The whole kernel: threads share panels, or rows where panels are few."""
    rows, *fixed = (axis.dom.extent for axis in product.iter_vars)
    panels, _, depth = map(int, fixed)
    pairs = (rows + (2 * TILE - 1)) // (2 * TILE)
    most = max(_CACHED // (2 * TILE * depth * WORD_BYTES), 1)
    blocks = (pairs + (most - 1)) // most
    parallel, kernel = tirx.ForKind.PARALLEL, _Kernel(product, output, machine)
    turn, panel, pair = var("block"), var("panel"), var("pair")
    if shares_panels(panels, machine):
        first = turn * pairs // blocks
        count = (turn + 1) * pairs // blocks - first
        least = pairs // blocks
        body = begun(loop(pair, count, kernel.tile(panel, first + pair, (pair, least))), TILE)
        nest = loop(turn, blocks, loop(panel, panels, body, parallel))
    else:
        body = loop(panel, panels, kernel.tile(panel, pair))
        nest = loop(pair, pairs, begun(body, TILE), parallel)
    (words,) = (region.source for region in pack.writes)
    return local([_packed(pack), nest], [words])


def _packed(pack: SBlock) -> tirx.Stmt:
    """The loops of ``pack``: threads share tiles, lanes are the words of a row."""
    axes = [axis.var for axis in pack.iter_vars]
    panels, steps, height, _ = (axis.dom.extent for axis in pack.iter_vars)
    panel, step, row = (var(axis.name) for axis in axes[:-1])

    def word(place):
        return substituted(pack.body, dict(zip(axes, (panel, step, row, place), strict=True)))

    together = int(pack.annotations["together"])
    parts = [lanewise(int64(lane), together, word) for lane in range(0, TILE, together)]
    return shared([panels, steps], [panel, step], loop(row, height, sequence(parts)))


class _Kernel:
    """What two tiles of rows and a panel of columns need."""

    def __init__(self, product: SBlock, output: SBlock, machine: Machine):
        self.rows = product.iter_vars[0].dom.extent
        self.steps = int(product.iter_vars[3].dom.extent) // TILE
        self.left, self.right = (load.source for load in term_of(product).args)
        total = product.writes[0].source
        self.dtype = str(total.ty.dtype.dtype)
        width = int(output.iter_vars[-1].dom.extent)
        store = partial(element_of, output, total)
        self.results = Results(self.dtype, store, False, width if width % COLUMNS else None)
        self.lanes = min(machine.lanes("float32"), TILE)

    def tile(
        self,
        panel: tirx.Var,
        pair: tirx.Expr,
        part: tuple[tirx.Expr, tirx.Expr | int] | None = None,
    ) -> tirx.Stmt:
        """The rows of ``pair``; the last may be of one tile.

        ``part``: its number among how many, each of which asks for a part of the next panel.
        """
        ahead = None if part is None else Ahead.panel(self.right, panel + 1, *part)
        both, single = (self._of(panel, pair, tiles, ahead) for tiles in (2, 1))
        return tirx.IfThenElse(pair * (2 * TILE) + TILE < self.rows, both, single)

    def _of(self, panel: tirx.Var, pair: tirx.Expr, tiles: int, ahead: Ahead | None) -> tirx.Stmt:
        height, row = tiles * TILE, pair * (2 * TILE)
        sums = tirx.decl_buffer((height, COLUMNS), self.dtype, "sums", scope="local")
        zero = int64(0)
        first = tirx.BufferLoad(self.left, [2 * pair, zero, zero, zero])
        other = tirx.BufferLoad(self.left, [2 * pair + (tiles - 1), zero, zero, zero])
        right = tirx.BufferLoad(self.right, [panel, zero, zero])
        tile_bytes = TILE * TILE * WORD_BYTES
        walk = [(1, 0), (1, 0), (self.steps, tile_bytes)]
        multiply = multiplied(sums, [first, other][:tiles], right, walk, TILE * WORD_BYTES, ahead)
        own, count = var("row"), tirx.min(int64(height), self.rows - row)
        place = own, row, panel * COLUMNS
        stores = [
            self.results.vector(sums, *place, start, self.lanes)
            for start in range(0, COLUMNS, self.lanes)
        ]
        return local([multiply, loop(own, count, sequence(stores))], [sums])
