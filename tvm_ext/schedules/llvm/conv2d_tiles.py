"""Convolution of words, pairs of bfloat16 or four bytes, in tiles, as AMX multiplies them.

A tile of the left side are up to 16 neighbouring pixels of a row, 32 channels of each, or 64; of a
window of one pixel all rows of an image are one. Two tiles go together: two parts of a row, or of
rows that follow each other.

Of few channels, those of neighbours in a line of the image, which are those of a window's, make
words: each line is copied, with what pads it, before it gives these.

Before::

    words[n, b, i, j, 16] = word(x[..], ..)                     # padded
    product[n, p, i, j, c] += dot(words[n, b, S * i + k, S * j + l, e], w[p, b, k, l, e, c])
    y[n, o, i, j, lane] = f(product[n, o // 2, i, j, o % 2 * 16 + lane])

After::

    for task in T.parallel(..):                # some rows of pixels, or some panels
        own[b, i, j, 16] = ..                  # the words of these rows; of all, before the tasks
        for p in panels:
            for q in pairs of tiles:
                sums[32, 32] = tiles(own[..], w[p])
                y[..] = f(sums)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm, prod

import tvm_ffi
from tvm import DataType, ir, sym, tirx
from tvm.s_tir import SBlock
from tvm.s_tir import dlight as dl

from ..machine import Machine
from ..statements import substituted
from .contraction import axis_kinds, blocks_of, feeds, is_batched, size
from .loops import attempt
from .matmul_loops import shared
from .register_tiles import int64, lanewise, local, loop, scheduled, sequence, var
from .tiles import COLUMNS, TILE, WORD_BYTES, Ahead, begun, dots_of, multiplied

__all__ = ["Conv2dTiles"]

_MARK = "tiles"
_LINES = "lines"
# Bytes of weights from which on threads share panels, so that each reads its own.
_MANY_WEIGHTS = 1 << 18
# Bytes of pixels that all panels of weights are swept over: a part of the L2 of CPUs with AMX.
_CACHED = 1 << 19


class Conv2dTiles(dl.base.ScheduleRule):
    """[pack and pad,] accumulate ``[n, panels, rows, columns, 32]`` in tiles of AMX, epilogue.

    bfloat16[1, 256, 56, 56], 64 1x1 kernels, two Emerald Rapids cores: 2.1 TFLOP/s of 4.8.
    """

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
        lines = [block for block in blocks[:at] if _LINES in sch.get(block).annotations]
        for block in (*blocks[:at], *blocks[at + 1 : -1]):
            if block not in (*packs, *lines) and not attempt(sch.compute_inline, block):
                return None
        if any(not feeds(sch, pack, blocks[at]) for pack in packs):
            return None
        made = [sch.get(found[0]) if found else None for found in (packs, lines)]
        ends = sch.get(blocks[at]), sch.get(blocks[-1])
        convolution = _Convolution.of(*ends, dots, *made, machine)
        return None if convolution is None else scheduled(sch.mod["main"], convolution.loops())


@dataclass(frozen=True)
class _Words:
    """Words of the left side: of whole images, or of a part of one, from ``first`` on.

    What is allocated here is an array of one axis: TVM would make axes of it as long as it thinks
    that indices reach.
    """

    array: tirx.Var
    shape: tuple[tirx.Expr | int, ...]
    first: tirx.Expr | None = None

    @classmethod
    def new(cls, shape: Sequence[tirx.Expr | int], first: tirx.Expr | None = None) -> _Words:
        return cls(tirx.decl_buffer((prod(shape),), "int32", "words"), tuple(shape), first)

    def place(self, indices: Sequence[tirx.Expr]) -> list[tirx.Expr]:
        """Where in ``array`` the word of these ``indices`` is."""
        if len(self.array.ty.shape) > 1:
            return list(indices)
        flat = indices[0]
        for index, extent in zip(indices[1:], self.shape[1:], strict=True):
            flat = flat * extent + index
        return [flat]

    @property
    def block_words(self) -> int:
        """From a block of channels to the next."""
        return prod(map(int, self.shape[2:] if self.first is None else self.shape[1:]))


@dataclass(frozen=True)
class _Convolution:
    """A product, the block that writes the result, and the geometry of both.

    Attributes:
        left, right: the words that a step multiplies.
        pack: what makes those of the left side; None where they are given.
        lines: what makes the lines of the image that ``pack`` reads, if it does.
        rows, width: of an image, as tiles see it; ``flat``: all of its rows are one.
        parts: blocks of the result in a panel of columns.
    """

    product: SBlock
    output: SBlock
    left: ir.TensorLoad
    right: ir.TensorLoad
    pack: SBlock | None
    lines: SBlock | None
    machine: Machine
    rows: int
    width: int
    flat: bool
    parts: int

    @classmethod
    def of(
        cls,
        product: SBlock,
        output: SBlock,
        dots: tuple[ir.TensorLoad, ir.TensorLoad],
        pack: SBlock | None,
        lines: SBlock | None,
        machine: Machine,
    ) -> _Convolution | None:
        parts = _parts(product, output) if len(output.iter_vars) == 5 else None
        if parts is None:
            return None
        rows, width = (int(axis.dom.extent) for axis in output.iter_vars[2:4])
        window = [int(axis.dom.extent) for axis in product.iter_vars[6:8]]
        image = [int(d) for d in dots[0].source.ty.shape[2:4]]
        flat = window == [1, 1] and image == [rows, width] and lines is None
        if flat:
            rows, width = 1, rows * width
        return cls(product, output, *dots, pack, lines, machine, rows, width, flat, parts)

    @property
    def dtype(self) -> str:
        """That of the sums."""
        return str(self.product.writes[0].source.ty.dtype.dtype)

    @property
    def across(self) -> int:
        """Tiles of a row."""
        return -(-self.width // TILE)

    @property
    def height(self) -> int:
        """Pixels of a tile; the last of a row begins early enough to have as many."""
        return -(-self.width // self.across)

    @property
    def tiles(self) -> int:
        """Tiles of an image."""
        return self.rows * self.across

    def loops(self) -> tirx.Stmt:
        """The kernel: threads share images, panels or rows."""
        images, panels = (axis.dom.extent for axis in self.product.iter_vars[:2])
        panels, even = int(panels), size(images) % self.machine.cores == 0
        cores, weights = self.machine.cores, WORD_BYTES * prod(map(int, self.right.source.ty.shape))
        image, panel, turn, task = var("image"), var("panel"), var("turn"), var("task")
        shape = tuple(self.left.source.ty.shape)
        whole = _Words.new(shape) if self.pack else _Words(self.left.source, shape)
        by_panel = panels % cores == 0 or panels >= 4 * cores
        if weights >= _MANY_WEIGHTS and by_panel and not even:
            block = self._block(1)
            nest = loop(turn, -(-self.tiles // block), self._turn(whole, image, panel, turn, block))
            nest = self._shared(panel, panels, loop(image, images, nest))
            if self.pack is None:
                return nest
            return local([self._pack(self.pack, whole, image), nest], [whole.array])
        block = self._block(1 if even else cores)
        words = self._own_words(turn, block) if self.pack else whole
        nest = loop(panel, panels, self._turn(words, image, panel, turn, block))
        if self.pack is not None:
            nest = local([self._pack(self.pack, words, image), nest], [words.array])
        turns = -(-self.tiles // block)
        nest = substituted(nest, {image: task // turns, turn: task % turns})
        return self._shared(task, images * turns, nest)

    def _shared(self, variable: tirx.Var, extent: tirx.Expr | int, stmt: tirx.Stmt) -> tirx.Stmt:
        return loop(variable, extent, begun(stmt, self.height), tirx.ForKind.PARALLEL)

    def _block(self, cores: int) -> int:
        """Tiles that the panels are swept over one after the other: pairs, of whole rows."""
        image_bytes = WORD_BYTES * prod(map(int, self.left.source.ty.shape[1:]))
        unit = 2 if self.flat else lcm(2, self.across)
        units = -(-self.tiles // unit)
        blocks = max(-(-image_bytes // _CACHED), 1)
        return unit * -(-units // min(-(-blocks // cores) * cores, units))

    def _own_words(self, turn: tirx.Var, block: int) -> _Words:
        """The words that a ``block`` of tiles reads, from the ``turn``-th on."""
        blocks, high, wide, lanes = map(int, self.left.source.ty.shape[1:])
        if self.flat:
            pixels = min(block * self.height, self.width)
            start = tirx.min(turn * block * self.height, int64(self.width - pixels))
            return _Words.new((blocks, pixels, lanes), start)
        step, _, apart, _ = self._geometry
        rows, taps = block // self.across, int(self.product.iter_vars[6].dom.extent)
        reach = min((rows - 1) * step + (taps - 1) * apart + 1, high)
        start = tirx.min(turn * rows * step, int64(high - reach))
        return _Words.new((blocks, reach, wide, lanes), start)

    def _pack(self, pack: SBlock, words: _Words, image: tirx.Var) -> tirx.Stmt:
        """What makes ``words``: all of them, shared by threads, or those of an ``image``."""
        *extents, lanes = words.shape
        loops = [var("own") for _ in extents]
        if words.first is None:
            places = loops
        elif self.flat:
            wide = int(self.output.iter_vars[3].dom.extent)
            pixel = loops[1] + words.first
            places = [image, loops[0], pixel // wide, pixel % wide]
        else:
            places = [image, loops[0], loops[1] + words.first, loops[2]]
        axes = [axis.var for axis in pack.iter_vars]

        def word(lane):
            values = dict(zip(axes, (*places, lane), strict=True))
            value = substituted(pack.body.value, values)
            return tirx.BufferStore(words.array, value, words.place([*loops, lane]))

        together = _lanes_together(pack, int(lanes))
        parts = [lanewise(int64(k), together, word) for k in range(0, int(lanes), together)]
        stmt = sequence(parts)
        for variable, extent in reversed(list(zip(loops[2:], extents[2:], strict=True))):
            stmt = loop(variable, extent, stmt)
        if self.lines is not None:
            stmt = _with_line(stmt, self.lines, places[0], places[2])
        if words.first is not None:
            return loop(loops[0], extents[0], loop(loops[1], extents[1], stmt))
        return shared(extents[:2], loops[:2], stmt)

    @property
    def _geometry(self) -> list[int]:
        """Strides and dilations."""
        return [int(n) for n in self.product.annotations[_MARK]]

    def _turn(
        self, words: _Words, image: tirx.Var, panel: tirx.Var, turn: tirx.Var, block: int
    ) -> tirx.Stmt:
        """A ``block`` of tiles in pairs, each of which asks for a part of the next panel."""
        pair, pairs = var("pair"), -(-block // 2)
        ahead = Ahead.panel(self.right.source, panel + 1, pair, pairs)
        left = tirx.min(int64(block), int64(self.tiles) - turn * block)
        first = turn * block + 2 * pair
        single = self._tiles(words, image, panel, [first], ahead)
        both = self._tiles(words, image, panel, [first, first + 1], ahead)
        return loop(pair, (left + 1) // 2, tirx.IfThenElse(2 * pair + 1 < left, both, single))

    def _tiles(
        self,
        words: _Words,
        image: tirx.Var,
        panel: tirx.Var,
        numbers: list[tirx.Expr],
        ahead: Ahead,
    ) -> tirx.Stmt:
        """The tiles of these ``numbers``, and what becomes of their sums."""
        sums = tirx.decl_buffer((len(numbers) * TILE, COLUMNS), self.dtype, "sums", scope="local")
        _, across, apart, between = self._geometry
        blocks, *window = (int(axis.dom.extent) for axis in self.product.iter_vars[5:8])
        wide = int(words.shape[-2])
        line = TILE * WORD_BYTES
        moves = words.block_words * WORD_BYTES, apart * wide * line, between * line
        walk = list(zip((blocks, *window), moves, strict=True))
        places = [self._pixel(words, image, panel, number) for number in numbers]
        weight = tirx.BufferLoad(self.right.source, [panel, *[int64(0)] * 5])
        stores = [
            self._stored(sums, image, panel, number, tile) for tile, number in enumerate(numbers)
        ]
        multiply = multiplied(sums, places, weight, walk, across * line, ahead)
        return local([multiply, *stores], [sums])

    def _pixel(self, words: _Words, image, panel, number: tirx.Expr) -> ir.TensorLoad:
        """The first word that the tile of that ``number`` in an image reads."""
        row, first = number // self.across, self._first(number % self.across)
        if self.flat:
            wide = int(self.output.iter_vars[3].dom.extent)
            row, first = first // wide, first % wide
        axes = [axis.var for axis in self.product.iter_vars]
        zeros = [int64(0)] * (len(axes) - 4)
        values = dict(zip(axes, (image, panel, row, first, *zeros), strict=True))
        n, channel, row, column, lane = (substituted(i, values) for i in self.left.indices)
        if words.first is None:
            place = [n, channel, row, column, lane]
        elif self.flat:
            place = [channel, self._first(number) - words.first, lane]
        else:
            place = [channel, row - words.first, column, lane]
        return tirx.BufferLoad(words.array, words.place(place))

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
        if self.flat:
            row, pixel = pixel // wide, pixel % wide
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


def _with_line(stmt: tirx.Stmt, lines: SBlock, image: tirx.Expr, row: tirx.Expr) -> tirx.Stmt:
    """``stmt``, which reads one ``row`` of ``lines``, behind what copies that."""
    whole, place = lines.writes[0].source, var("place")
    length = int(whole.ty.shape[-1])
    line = tirx.decl_buffer((length,), str(whole.ty.dtype.dtype), "line")

    def read(node: ir.TensorLoad) -> ir.Expr:
        return tirx.BufferLoad(line, [node.indices[-1]]) if node.source.same_as(whole) else node

    axes = [axis.var for axis in lines.iter_vars]
    value = substituted(lines.body.value, dict(zip(axes, (image, row, place), strict=True)))
    cut = {"pragma_loop_partition_hint": tirx.const(1, "int32")}  # before and behind the image
    serial, store = tirx.ForKind.SERIAL, tirx.BufferStore(line, value, [place])
    copy = tirx.For(place, int64(0), int64(length), serial, store, annotations=cut)
    return local([copy, tvm_ffi.structural_map(stmt, (ir.TensorLoad, read))], [line])


def _lanes_together(pack: SBlock, lanes: int) -> int:
    """How many of the words that ``pack`` writes are made alike, as a vector."""

    def alike(ty: ir.Type) -> int:
        rank, of_bytes = len(ty.shape), DataType(ty.dtype.dtype).bits == 8
        if rank == 3 and of_bytes:
            return 1  # LLVM makes one load of the four neighbours in a line
        size = int(ty.shape[-1]) if rank == 5 else 1
        if size == 1:
            return lanes
        return max(size // 4, 1) if of_bytes else size  # those of one block

    return gcd(lanes, *(alike(region.source.ty) for region in pack.reads))


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
    panels, blocks = (int(block.iter_vars[1].dom.extent) for block in (product, output))
    panel, part = var("panel"), var("part")
    for parts in (1, 2, 4, 8):
        if panels * parts < blocks:
            continue
        analyzer = sym.Analyzer()
        analyzer.bind(panel, ir.Range(0, panels))
        analyzer.bind(part, ir.Range(0, parts))
        block = {o: panel * parts + part}

        def fits(load: ir.TensorLoad, analyzer=analyzer, block=block) -> bool:
            own = [load.indices[0], substituted(load.indices[1], block), *load.indices[2:4]]
            pairs = zip(own, (n, panel, i, j), strict=True)
            return all(analyzer.can_prove_equal(index, wanted) for index, wanted in pairs)

        if loads and all(map(fits, loads)):
            return parts
    return None
