"""Convolution of bfloat16 pairs in tiles, as AMX multiplies them.

A tile of the left side are up to 16 neighbouring pixels of a row, 32 channels of each; of a window
of one pixel all rows of an image are one. Two tiles go together: two parts of a row, or of rows
that follow each other.

Before::

    words[n, b, i, j, 16] = pair(x[..], x[..])                     # padded
    product[n, p, i, j, c] += dot(words[n, b, S * i + k, S * j + l, e], w[p, b, k, l, e, c])
    y[n, o, i, j, lane] = f(product[n, o // 2, i, j, o % 2 * 16 + lane])

After::

    words[..] = ..
    for task in T.parallel(..):                # parts of all panels, or of all pixels
        for p in panels:
            for q in pairs of tiles:
                sums[32, 32] = tiles(words[..], w[p])
                y[..] = f(sums)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl

from ..machine import Machine
from ..statements import substituted
from .contraction import axis_kinds, blocks_of, feeds, is_batched, size
from .loops import attempt
from .register_tiles import int64, lanewise, local, loop, scheduled, sequence, var
from .tiles import COLUMNS, TILE, WORD_BYTES, Ahead, begun, dots_of, multiplied, packed

__all__ = ["Conv2dTiles"]

_MARK = "tiles"
# Bytes of weights from which on threads share panels, so that each reads its own.
_MANY_WEIGHTS = 1 << 18
# Bytes of pixels that all panels of weights are swept over: a part of the L2 of CPUs with AMX.
_CACHED = 1 << 19


class Conv2dTiles(dl.base.ScheduleRule):
    """[pack and pad,] accumulate ``[n, panels, rows, columns, 32]`` in tiles of AMX, epilogue."""

    def apply(self, func, target, _tunable):
        machine = Machine.of(target)
        found = blocks_of(func) if machine.tiles and isinstance(func, tirx.PrimFunc) else None
        if found is None or not is_batched(func):
            return None
        sch, blocks = found
        at = next((k for k, b in enumerate(blocks) if _MARK in sch.get(b).annotations), None)
        dots = None if at is None or at + 1 == len(blocks) else dots_of(sch.get(blocks[at]))
        if dots is None:
            return None
        kinds = [axis_kinds(sch.get(block)) for block in blocks]
        if any(set(kind) - {"S"} for k, kind in enumerate(kinds) if k != at):
            return None
        words = dots[0].source
        packs = [b for b in blocks[:at] if sch.get(b).writes[0].source.same_as(words)]
        for block in (*blocks[:at], *blocks[at + 1 : -1]):
            if block not in packs and not attempt(sch.compute_inline, block):
                return None
        convolution = _Convolution.of(sch.get(blocks[at]), sch.get(blocks[-1]), dots, machine)
        if convolution is None or any(not feeds(sch, pack, blocks[at]) for pack in packs):
            return None
        body = convolution.loops()
        if packs:
            body = local([packed(sch.get(packs[0])), body], [words])
        return scheduled(sch.mod["main"], body)


@dataclass(frozen=True)
class _Convolution:
    """A product, the block that writes the result, and the geometry of both.

    Attributes:
        left, right: the first words of what is multiplied.
        rows, width: of an image, as tiles see it.
        parts: blocks of the result in a panel of columns.
    """

    product: SBlock
    output: SBlock
    left: ir.TensorLoad
    right: ir.TensorLoad
    machine: Machine
    rows: int
    width: int
    parts: int

    @classmethod
    def of(
        cls,
        product: SBlock,
        output: SBlock,
        dots: tuple[ir.TensorLoad, ir.TensorLoad],
        machine: Machine,
    ) -> _Convolution | None:
        parts = _parts(product, output) if len(output.iter_vars) == 5 else None
        if parts is None:
            return None
        rows, width = (int(axis.dom.extent) for axis in output.iter_vars[2:4])
        window = [int(axis.dom.extent) for axis in product.iter_vars[6:8]]
        if window == [1, 1] and [int(d) for d in dots[0].source.ty.shape[2:4]] == [rows, width]:
            rows, width = 1, rows * width
        return cls(product, output, *dots, machine, rows, width, parts)

    @property
    def across(self) -> int:
        """Tiles of a row."""
        return -(-self.width // TILE)

    @property
    def height(self) -> int:
        """Pixels of a tile; the last of a row begins early enough to have as many."""
        return -(-self.width // self.across)

    @property
    def pairs(self) -> int:
        """Pairs of tiles in an image, of which the last may be a single one."""
        return -(-self.rows * self.across // 2)

    def loops(self) -> tirx.Stmt:
        """The kernel: threads share images, panels or pairs of tiles."""
        images, panels = (axis.dom.extent for axis in self.product.iter_vars[:2])
        panels, even = int(panels), size(images) % self.machine.cores == 0
        cores, weights = self.machine.cores, WORD_BYTES * prod(map(int, self.right.source.ty.shape))
        image, panel, turn = var("image"), var("panel"), var("turn")
        by_panel = panels % cores == 0 or panels >= 4 * cores
        if weights >= _MANY_WEIGHTS and by_panel and not even:
            nest = self._turn(image, panel, turn, self._block(1))
            nest = loop(turn, -(-self.pairs // self._block(1)), nest)
            return self._shared(panel, panels, loop(image, images, nest))
        block = self._block(1 if even else cores)
        turns, nest = -(-self.pairs // block), self._turn(image, panel, turn, block)
        task = var("task")
        nest = substituted(loop(panel, panels, nest), {image: task // turns, turn: task % turns})
        return self._shared(task, images * turns, nest)

    def _shared(self, variable: tirx.Var, extent: tirx.Expr | int, stmt: tirx.Stmt) -> tirx.Stmt:
        return loop(variable, extent, begun(stmt, self.height), tirx.ForKind.PARALLEL)

    def _block(self, cores: int) -> int:
        """Pairs that the panels are swept over one after the other."""
        image_bytes = WORD_BYTES * prod(map(int, self.left.source.ty.shape[1:]))
        most = max(_CACHED * self.pairs // image_bytes, 1)
        blocks = -(-self.pairs // most)
        return -(-self.pairs // (-(-blocks // cores) * cores))

    def _turn(self, image: tirx.Var, panel: tirx.Var, turn: tirx.Var, block: int) -> tirx.Stmt:
        """A ``block`` of pairs, each of which asks for a part of the next panel."""
        pair, tiles = var("pair"), self.rows * self.across
        ahead = Ahead.panel(self.right.source, panel + 1, pair, block)
        count = tirx.min(int64(block), int64(self.pairs) - turn * block)
        first = 2 * (turn * block + pair)
        single = self._tiles(image, panel, [first], ahead)
        both = self._tiles(image, panel, [first, first + 1], ahead)
        return loop(pair, count, tirx.IfThenElse(first + 1 < tiles, both, single))

    def _tiles(
        self, image: tirx.Var, panel: tirx.Var, numbers: list[tirx.Expr], ahead: Ahead
    ) -> tirx.Stmt:
        """The tiles of these ``numbers``, and what becomes of their sums."""
        sums = tirx.decl_buffer((len(numbers) * TILE, COLUMNS), "float32", "sums", scope="local")
        _, across, apart, between = (int(n) for n in self.product.annotations[_MARK])
        blocks, *window = (int(axis.dom.extent) for axis in self.product.iter_vars[5:8])
        high, wide = map(int, self.left.source.ty.shape[2:4])
        line = TILE * WORD_BYTES
        moves = high * wide * line, apart * wide * line, between * line
        walk = list(zip((blocks, *window), moves, strict=True))
        zero = int64(0)
        places = [self._pixel(image, panel, number) for number in numbers]
        weight = tirx.BufferLoad(self.right.source, [panel, *[zero] * 5])
        stores = [
            self._stored(sums, image, panel, number, tile) for tile, number in enumerate(numbers)
        ]
        multiply = multiplied(sums, places, weight, walk, across * line, ahead)
        return local([multiply, *stores], [sums])

    def _pixel(self, image, panel, number: tirx.Expr) -> ir.TensorLoad:
        """The first word that the tile of that ``number`` in an image reads."""
        row, first = number // self.across, self._first(number % self.across)
        if self.rows == 1:  # maybe several of the image
            wide = int(self.output.iter_vars[3].dom.extent)
            row, first = row + first // wide, first % wide
        axes = [axis.var for axis in self.product.iter_vars]
        zeros = [int64(0)] * (len(axes) - 4)
        values = dict(zip(axes, (image, panel, row, first, *zeros), strict=True))
        indices = [substituted(index, values) for index in self.left.indices]
        return tirx.BufferLoad(self.left.source, indices)

    def _first(self, number: tirx.Expr) -> tirx.Expr:
        """The first pixel that the tile of that number in a row reads."""
        if self.width % self.height == 0:
            return number * self.height
        return tirx.min(number * self.height, int64(self.width - self.height))

    def _stored(self, sums, image, panel, number: tirx.Expr, tile: int) -> tirx.Stmt:
        """The results of the pixels that are this tile's own."""
        row, place = number // self.across, number % self.across
        skipped = place * self.height - self._first(place)
        count = int64(self.height)
        if self.width % self.height:
            count = tirx.min(count, int64(self.width) - place * self.height)
        own = var("pixel")
        pixel = place * self.height + own
        blocks, _, wide, lanes = (int(axis.dom.extent) for axis in self.output.iter_vars[1:])
        if self.rows == 1:
            row, pixel = row + pixel // wide, pixel % wide
        line = tile * TILE + skipped + own
        stores = []
        for part in range(self.parts):
            block = panel * self.parts + part
            stmt = self._vector(sums, line, [image, block, row, pixel], lanes)
            if blocks % self.parts and part:
                stmt = tirx.IfThenElse(block < blocks, stmt, None)
            stores.append(stmt)
        return loop(own, count, sequence(stores))

    def _vector(self, sums, row: tirx.Expr, place: list[tirx.Expr], lanes: int) -> tirx.Stmt:
        return lanewise(int64(0), lanes, lambda lane: self._element(sums, row, [*place, lane]))

    def _element(self, sums, row: tirx.Expr, places: list[tirx.Expr]) -> tirx.Stmt:
        """The store at ``places`` of what the sums in ``row`` give."""
        axes = [axis.var for axis in self.output.iter_vars]
        buffer = self.product.writes[0].source

        def load(node: ir.TensorLoad) -> ir.Expr:
            if not node.source.same_as(buffer):
                return node
            return tirx.BufferLoad(sums, [row, node.indices[-1]])

        body = substituted(self.output.body, dict(zip(axes, places, strict=True)))
        value = tvm_ffi.structural_map(body.value, (ir.TensorLoad, load))
        return tirx.BufferStore(body.buffer, value, body.indices)


def _parts(product: SBlock, output: SBlock) -> int | None:
    """How many blocks of the result a panel of columns gives; None where it is no such result."""
    buffer = product.writes[0].source
    loads: list[ir.TensorLoad] = []

    def note(node: ir.TensorLoad) -> None:
        if node.source.same_as(buffer):
            loads.append(node)

    if not isinstance(output.body, tirx.BufferStore):
        return None
    tvm_ffi.structural_walk(output.body.value, (ir.TensorLoad, note))
    n, o, i, j, _ = (axis.var for axis in output.iter_vars)
    panel, part = var("panel"), var("part")
    for parts in (1, 2, 4, 8):
        analyzer = sym.Analyzer()
        analyzer.bind(panel, ir.Range(0, 1 << 20))
        analyzer.bind(part, ir.Range(0, parts))
        block = {o: panel * parts + part}

        def fits(load: ir.TensorLoad, analyzer=analyzer, block=block) -> bool:
            own = [load.indices[0], substituted(load.indices[1], block), *load.indices[2:4]]
            pairs = zip(own, (n, panel, i, j), strict=True)
            return all(analyzer.can_prove_equal(index, wanted) for index, wanted in pairs)

        if loads and all(map(fits, loads)):
            return parts
    return None
