"""Convolution of stride 1 or 2, or dilated, by Winograd's method, in the layout NCHW[x]c.

Tiles are transformed, multiplied point by point and transformed back as :mod:`.toom_cook` says,
where the bound of the error is, too. An infinity or NaN spoils all of its tiles.

A window of a single row or column is transformed along the other axis only. If it is longer than 5,
it is cut into parts of 4 taps, which are summed over as channels are.

A dilation of d sees every d-th row or column: images of these, the phases, are each convolved
plainly.

A 3x3 window with taps along a third axis, the depth, is one of frames: these taps are summed over
as channels are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from operator import mul

from tvm import te, tirx
from tvm.sym import Analyzer

from .conv2d_blocked import padded
from .toom_cook import KERNEL, Tiling, input_rows, output_rows, parts_of, tiling

__all__ = ["conv2d_winograd", "conv2d_winograd_tiles"]


def _weights_of(point: tirx.Expr, across: Tiling) -> tirx.Expr:
    """The number of the weights of ``point``: the last m along an axis have one tap."""
    if across.stride == 1:
        return point
    window, single = across.window, across.m + 1
    row, column = point // window, point % window
    return tirx.min(row, single) * (single + 1) + tirx.min(column, single)


def conv2d_winograd(
    x: te.Tensor,
    weight: te.Tensor,
    out_lanes: int,
    pads: Sequence[int],
    m: int,
    group: Sequence[int],
    columns: int,
    depth: Sequence[int] = (1, 1),
    stride: int = 1,
    phases: Sequence[int] = (1, 1),
    channel_groups: int = 1,
    taps: Sequence[int] = (KERNEL, KERNEL),
    *,
    product: Callable[[tirx.Expr, tirx.Expr], tirx.Expr] = mul,
    word: Callable[[Callable[[tirx.Expr], tirx.Expr], tirx.Expr], tirx.Expr] | None = None,
    around: tirx.Expr | None = None,
) -> te.Tensor:
    """Convolve ``x[N, IC/b, H, W, b]`` with a ``weight`` transformed for ``stride``.

    ``pads``: top, left, bottom, right. ``group``: images, and rows of tiles in each, that are
    transformed together; the images divide N * the product of ``phases``. A third number says how
    many tiles of an image of one row count as one of several rows. ``columns`` tiles share a
    register tile. ``phases`` are the dilations, 1 with a stride of 2 and with frames.
    ``channel_groups`` are convolved apart, and each holds whole tiles of channels; 1 with frames.
    ``taps``: of the window; other ones than 3 x 3 with a stride of 1 and without frames. Of several
    parts, ``weight`` holds all channels of the first, then those of the next.
    Returns ``[N, OC/out_lanes, H', W', out_lanes]``.

    Of ``x[N, IC/b, W, b]``, a signal, the result has no rows either; pads are left and right.

    Of ``x[N, IC/b, D, H, W, b]`` the pads have the depth first. Its ``weight`` holds all channels
    of the first tap along the depth, then those of the next; ``depth``: stride and dilation there.
    The images are N times D'.

    ``product``, ``word`` and ``around`` are those of
    :func:`tvm_ext.ops.conv2d_blocked.conv2d_blocked`; no ``around`` with ``phases``.
    """
    n, *blocked = x.shape
    ic_blocks, *image, in_lanes = map(int, blocked)
    *frames, h, w = image if len(image) > 1 else (1, *image)
    flat = len(image) == 1
    _, oc_tiles, summed, steps, oc_tile = (int(d) for d in weight.shape)
    before, after = pads[: len(pads) // 2], pads[len(pads) // 2 :]
    added = (0, *(p + q for p, q in zip(before, after, strict=True)))[-2:]
    height, width = (
        (side + more - (own - 1) * apart - 1) // stride + 1
        for side, more, own, apart in zip((h, w), added, taps, phases, strict=True)
    )
    step, dilation = depth
    deep = [d + before[0] + after[0] for d in frames]
    frames_out = [(d - (summed // ic_blocks - 1) * dilation - 1) // step + 1 for d in deep]
    parts, part_taps = parts_of(taps)
    sides = [-(-side // apart) for side, apart in zip((height, width), phases, strict=True)]
    grid = _Grid(tiling(m, part_taps, stride), sides, group)
    groups = (n * prod(phases) * prod(frames_out) // grid.images, grid.bands)

    extents = (*deep, *grid.seen(parts)[flat:])
    if prod(phases) == 1:
        source = padded(x, before, extents, around)
    else:
        source = _apart(x, before, extents, phases[flat:])

    def pixel(image, band, o, t, i, j, lane):
        image, *place = grid.pixel(image, band, t, i, j)
        if not frames:
            o, *place = _in_part(o, *place, ic_blocks // channel_groups, parts, grid.axes)
            return source(image, o, *place[flat:], lane)
        frame = image % frames_out[0] * step + o // ic_blocks * dilation
        return source(image // frames_out[0], o % ic_blocks, frame, *place, lane)

    axes, tiles, vectors = grid.axes, grid.tiles, oc_tile // out_lanes
    inputs = _inputs(pixel, groups, summed * channel_groups, tiles, in_lanes, axes)
    points, oc_blocks = prod(axis.window for axis in axes), oc_tiles * vectors
    first = _first_block(oc_blocks, summed, channel_groups)
    ro, ri = te.reduce_axis((0, summed), "ro"), te.reduce_axis((0, steps), "ri")

    def term(p, q, ab, o, to, ti, lane):
        t = to * columns + ti
        if tiles % columns:
            t = tirx.min(t, tiles - 1)  # never written: no register tile needs a tail
        own = _weights_of(ab, axes[1])
        part = weight[own, o // vectors, ro, ri, o % vectors * out_lanes + lane]
        own_inputs = partial(inputs, p, q, ab, first(o) + ro, t)
        element = own_inputs(ri) if word is None else word(own_inputs, ri)
        return te.sum(product(element, part), axis=[ro, ri])

    shape = (*groups, points, oc_blocks, -(-tiles // columns), columns, out_lanes)
    tiled = te.compute(shape, term, "tiled", attrs={"group": [*group]})
    products = te.compute(
        (*groups, points, oc_blocks, tiles, out_lanes),
        lambda p, q, ab, o, t, lane: tiled[p, q, ab, o, t // columns, t % columns, lane],
        "products",
    )
    outputs = _outputs(products, axes)

    def untiled(image, o, *at):
        *frame, i, j, lane = (0, *at) if flat else at
        image = image * frames_out[0] + frame[0] if frame else image
        p, q, t = grid.tile(image, i, j)
        return outputs[p, q, o, t, i % axes[0].m, j % axes[1].m, lane]

    shape = (n, oc_blocks, *frames_out, *[height, width][flat:], out_lanes)
    if prod(phases) == 1:
        return te.compute(shape, untiled, "untiled")
    apart_shape = (n * prod(phases), oc_blocks, *sides[flat:], out_lanes)
    apart = te.compute(apart_shape, untiled, "untiled")

    def joined(image, o, *at):
        *place, lane = at
        for own, phase in zip(place, phases[flat:], strict=True):
            image = image * phase + own % phase
        inner = (own // phase for own, phase in zip(place, phases[flat:], strict=True))
        return apart(image, o, *inner, lane)

    return te.compute(shape, joined, "joined")


@dataclass(frozen=True)
class _Grid:
    """How the tiles of images lie, and which of them are transformed together.

    ``axes``: down and across. ``sides``: of the results. ``group``: as
    :func:`conv2d_winograd` takes it.
    """

    axes: Sequence[Tiling]
    sides: Sequence[int]
    group: Sequence[int]

    @property
    def images(self) -> int:
        """In a group."""
        return self.group[0]

    @property
    def across(self) -> int:
        """Tiles of a row, or of a part of the only one."""
        return self.group[2] if self._in_row else self._counts[1]

    @property
    def bands(self) -> int:
        """Groups of rows of an image."""
        rows, columns = self._counts
        return -(-(-(-columns // self.across) if self._in_row else rows) // self.group[1])

    @property
    def tiles(self) -> int:
        """In a group."""
        return self.images * self.group[1] * self.across

    def seen(self, parts: int) -> list[int]:
        """The inputs down and across that all tiles see, under ``parts`` of a window."""
        rows = self.bands * self.group[1]
        counts = (1, rows * self.across) if self._in_row else (rows, self.across)
        return [
            axis.window_of(count * axis.m) + (parts - 1) * (axis.taps if axis.taps > 1 else 0)
            for count, axis in zip(counts, self.axes, strict=True)
        ]

    def pixel(self, p, q, t, i, j) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
        """Image, row and column of an input: ``i`` and ``j`` of tile ``t`` of a group."""
        rows, (down, across) = self.group[1], self.axes
        row, column = q * rows + t // self.across % rows, t % self.across
        if self._in_row:
            row, column = 0, row * self.across + column
        image = p * self.images + t // (rows * self.across)
        place = row * (down.m * down.stride) + i, column * (across.m * across.stride) + j
        return image, *place

    def tile(self, image, i, j) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
        """The group, and the tile of it, that an output belongs to."""
        rows, (down, across) = self.group[1], self.axes
        row, column = i // down.m, j // across.m
        if self._in_row:
            row, column = column // self.across, column % self.across
        t = (image % self.images * rows + row % rows) * self.across + column
        return image // self.images, row // rows, t

    @property
    def _in_row(self) -> bool:
        return len(self.group) > 2

    @property
    def _counts(self) -> list[int]:
        return [-(-side // axis.m) for side, axis in zip(self.sides, self.axes, strict=True)]


def _apart(
    x: te.Tensor, before: Sequence[int], extents: Sequence[int], phases: Sequence[int]
) -> te.Tensor:
    """The images of every so many-th row and column of ``x``, or every so many-th element of a
    signal, with zeros around it."""
    n, blocks, *sides, lanes = x.shape

    def pixel(image, o, *at):
        *inner, lane = at
        place = []
        for own, phase, begin in reversed([*zip(inner, phases, before, strict=True)]):
            place.insert(0, own * phase + image % phase - begin)
            image = image // phase
        tests = [t for p, side in zip(place, sides, strict=True) for t in (p >= 0, p < side)]
        value = x(image, o, *place, lane)
        return tirx.if_then_else(tirx.all(*tests), value, tirx.const(0, x.dtype))

    return te.compute((n * prod(phases), blocks, *extents, lanes), pixel, "padded")


def conv2d_winograd_tiles(
    x: te.Tensor,
    weight: te.Tensor,
    out_lanes: int,
    pads: Sequence[int],
    m: int,
    stride: int = 1,
    phases: Sequence[int] = (1, 1),
    channel_groups: int = 1,
    taps: Sequence[int] = (KERNEL, KERNEL),
) -> te.Tensor:
    """As :func:`conv2d_winograd`, of images whose rows or columns are symbolic, or of signals.

    The tiles of all phases of all images are numbered along one axis, down the columns where only
    these are symbolic; how many go together is left to the schedule. Those that reach beyond the
    image see zeros there.
    """
    n, ic_blocks, *sides, in_lanes = x.shape
    _, oc_tiles, summed, _, oc_tile = (int(d) for d in weight.shape)
    flat, simplify = len(sides) == 1, Analyzer().simplify
    (h, w), pads = (1, *sides)[-2:], (0, pads[0], 0, pads[1]) if flat else pads
    parts, part_taps = parts_of(taps)
    axes = tiling(m, part_taps, stride)
    high, wide = phases
    height, width = (
        simplify((side + before + after - (own - 1) * apart - 1) // stride + 1)
        for side, before, after, own, apart in zip(
            (h, w), pads[:2], pads[2:], taps, phases, strict=True
        )
    )
    down, across = (
        simplify((side + (axis.m * apart - 1)) // (axis.m * apart))
        for side, axis, apart in zip((height, width), axes, phases, strict=True)
    )
    vectors, (mh, mw) = oc_tile // out_lanes, (axis.m for axis in axes)
    tiles, oc_blocks = n * (high * wide) * down * across, oc_tiles * vectors
    own_blocks = ic_blocks // channel_groups

    # TVM multiplies a sum by a number out, and knows less of its bounds then.
    by_columns = isinstance(across, int | tirx.IntImm)

    def pixel(o, t, i, j, lane):
        image = t // (down * across)
        at_row, at_column = t // across % down, t % across
        if by_columns:
            at_row, at_column = t % down, t // down % across
        row, column = at_row * (mh * stride) + i, at_column * (mw * stride) + j
        o, row, column = _in_part(o, row, column, own_blocks, parts, axes)
        row = row * high + image // wide % high - pads[0]
        column = column * wide + image % wide - pads[1]
        inside = tirx.all(row >= 0, row < h, column >= 0, column < w)
        value = x(image // (high * wide), o, *[row, column][flat:], lane)
        return tirx.if_then_else(inside, value, tirx.const(0, x.dtype))

    all_blocks, sight = summed * channel_groups, [axis.window for axis in axes]
    windows = te.compute((all_blocks, tiles, *sight, in_lanes), pixel, "windows")
    inputs = _inputs(windows, (), all_blocks, tiles, in_lanes, axes)
    first = _first_block(oc_blocks, summed, channel_groups)
    ro, ri = te.reduce_axis((0, summed), "ro"), te.reduce_axis((0, in_lanes), "ri")

    def product(ab, o, t, lane):
        own = _weights_of(ab, axes[1])
        part = weight[own, o // vectors, ro, ri, o % vectors * out_lanes + lane]
        return te.sum(inputs[ab, first(o) + ro, t, ri] * part, axis=[ro, ri])

    shape = (prod(sight), oc_blocks, tiles, out_lanes)
    summed = te.compute(shape, product, "summed")
    products = te.compute(shape, lambda *index: summed(*index), "products")
    outputs = _outputs(products, axes)

    def untiled(image, o, *at):
        *row, j, lane = at
        i = row[0] if row else 0
        phase = (image * high + i % high) * wide + j % wide
        i, j = i // high, j // wide
        t = (phase * down + i // mh) * across + j // mw
        if by_columns:
            t = (phase * across + j // mw) * down + i // mh
        return outputs[o, t, i % mh, j % mw, lane]

    shape = (n, oc_blocks, *[height, width][flat:], out_lanes)
    return te.compute(shape, untiled, "untiled")


def _in_part(
    block: tirx.Expr,
    row: tirx.Expr,
    column: tirx.Expr,
    blocks: int,
    parts: int,
    axes: Sequence[Tiling],
) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
    """The block of the image, and the place in it, of a ``block`` of one of the ``parts`` of a
    window; each group of channels has so many ``blocks``."""
    if parts == 1:
        return block, row, column
    part = block // blocks % parts
    block = block // (blocks * parts) * blocks + block % blocks
    place = [
        at + part * axis.taps if axis.taps > 1 else at
        for at, axis in zip((row, column), axes, strict=True)
    ]
    return block, *place


def _first_block(blocks: int, summed: int, groups: int) -> Callable[[tirx.Expr], tirx.Expr | int]:
    """The first of ``summed`` blocks of inputs that one of ``blocks`` of outputs sums."""
    return lambda block: block // (blocks // groups) * summed if groups > 1 else 0


# What the axes over groups are called in what is printed, as the parameters of a function are.
_GROUP_NAMES = ["p", "q"]


def _inputs(
    pixel: Callable[..., tirx.Expr],
    groups: Sequence[tirx.Expr | int],
    channels: tirx.Expr | int,
    tiles: tirx.Expr | int,
    lanes: tirx.Expr | int,
    axes: Sequence[Tiling],
) -> te.Tensor:
    """The input transform of ``pixel(*group, o, t, i, j, lane)``: ``[*groups, ab, o, t, lane]``.

    ``o`` counts the blocks of ``channels``, ``t`` the tiles, i and j a tile's rows and columns, and
    ``ab`` its points.
    """
    (down, across), names = axes, _GROUP_NAMES[: len(groups)]
    window = across.window

    def half(*index):
        *at, a, j, lane = index
        return _nth(a, input_rows(down, lambda i: pixel(*at, i, j, lane)))

    def whole(*index):
        *group, ab, o, t, lane = index
        rows = input_rows(across, lambda j: half_in(*group, o, t, ab // window, j, lane))
        return _nth(ab % window, rows)

    shape = (*groups, channels, tiles, down.window, window, lanes)
    half_in = te.compute(shape, half, "half_in", varargs_names=[*names, *"otaj", "lane"])
    shape = (*groups, down.window * window, channels, tiles, lanes)
    return te.compute(shape, whole, "inputs", varargs_names=[*names, "ab", *"ot", "lane"])


def _outputs(products: te.Tensor, axes: Sequence[Tiling]) -> te.Tensor:
    """The output transform: ``[*groups, ab, o, t, lane]`` -> ``[*groups, o, t, m, m, lane]``."""
    *groups, _, blocks, tiles, lanes = products.shape
    (down, across), names = axes, _GROUP_NAMES[: len(groups)]
    window = across.window

    def half(*index):
        *group, o, t, i, b, lane = index
        rows = output_rows(down, lambda a: products(*group, a * window + b, o, t, lane))
        return _nth(i, rows)

    def whole(*index):
        *at, j, lane = index
        return _nth(j, output_rows(across, lambda b: half_out(*at, b, lane)))

    shape = (*groups, blocks, tiles, down.m, window, lanes)
    half_out = te.compute(shape, half, "half_out", varargs_names=[*names, *"otib", "lane"])
    shape = (*groups, blocks, tiles, down.m, across.m, lanes)
    return te.compute(shape, whole, "outputs", varargs_names=[*names, *"otij", "lane"])


def _nth(index: tirx.Expr, values: Sequence[tirx.Expr]) -> tirx.Expr:
    """``values[index]``; one of them is left once the loop over ``index`` is unrolled."""
    chosen = values[-1]
    for k, value in reversed(list(enumerate(values[:-1]))):
        chosen = tirx.Select(index == k, value, chosen)
    return chosen
