"""Convolutions of 8-bit integers; see :mod:`.integer_products`.

Before: ``y = R.nn.conv2d(R.subtract(R.astype(x, "int32"), zero), w)``, int32, ``w`` constant
After:  ``y = unblock(conv2d_integer(block(x), packed_w, sums))``
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

import numpy as np
from tvm import te, tirx
from tvm.target import Target

from tvm_ext.ops import integer_dots as dots
from tvm_ext.ops import integer_pairs as pairs
from tvm_ext.ops import integer_products as ops
from tvm_ext.ops import integer_tiles as tiles
from tvm_ext.ops import integer_winograd
from tvm_ext.ops.conv2d_blocked import pack_depthwise_weight
from tvm_ext.ops.tiles import columns_as_channels
from tvm_ext.ops.toom_cook import KERNEL
from tvm_ext.schedules.machine import Machine

from ..schedules.llvm.contraction import size
from ..schedules.llvm.conv2d import choose_columns, choose_tile
from ..schedules.llvm.dot import Dot
from ..schedules.llvm.tiles import are_lines, fills_tiles
from ..schedules.llvm.winograd import Convolution, WinogradModel
from .blocked_conv2d import LONG_ROW, MIN_LANES, lanes_of, merge_groups
from .compound import Compound, Kernel, Match, zero_may_lack
from .facts import image_dims
from .integer_products import SUM, ConstantProduct, Dims, find_product, multiplies_pairs

__all__ = ["INTEGER_CONV2D"]

# Of products of pairs, in units of one and its sum, two instructions: hence half of the costs that
# floats have.
_WINOGRAD = WinogradModel(
    transform=6.0, store=2.0, sizes=(integer_winograd.SIDE,), added_apart=True
)


@dataclass(frozen=True)
class _Convolution:
    """``product`` is summed over windows.

    Attributes:
        result: its dims N, C, H, W.
        symbolic: rows or columns are.
        lanes: the block of the result, a whole vector where few channels divide evenly.
    """

    product: ConstantProduct
    result: Dims
    symbolic: bool
    lanes: int
    groups: int
    strides: list[int]
    pads: list[int]
    dilations: list[int]
    target: Target

    @classmethod
    def matched(cls, match: Match, target: Target) -> _Convolution | None:
        """None of other layouts."""
        attrs, product = match["product"].attrs, match.detail
        if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW"):
            return None
        dims = [int(d) if isinstance(d, tirx.IntImm) else d for d in match.root.ty.shape.values]
        symbolic = not all(image_dims(x.ty, batched=True) for x in (product.x, match.root))
        vector, groups = Machine.of(target).lanes(SUM), int(attrs.groups)
        lanes = lanes_of(len(product.weight), vector)
        if lanes < MIN_LANES and groups == 1:
            lanes = vector
        strides, pads, dilations = (
            [int(v) for v in field] for field in (attrs.strides, attrs.padding, attrs.dilation)
        )
        return cls(product, dims, symbolic, lanes, groups, strides, pads, dilations, target)

    @property
    def geometry(self) -> tuple[list[int], list[int], list[int]]:
        return self.strides, self.pads, self.dilations

    @cached_property
    def channels(self) -> int:
        return int(self.product.x.ty.shape.values[1])

    @property
    def filters(self) -> int:
        return len(self.product.weight)

    @property
    def width(self) -> int:
        """Of the result; of a symbolic one, many columns."""
        return self.result[3] if isinstance(self.result[3], int) else LONG_ROW

    @cached_property
    def in_lanes(self) -> int:
        """Channels in a block of the input, where they are."""
        return gcd(self.channels, Machine.of(self.target).lanes(SUM))

    @property
    def blocks(self) -> int:
        """Of each group of the result."""
        return -(-self.filters // self.groups // self.lanes)

    @property
    def around(self) -> int:
        """The value of pads, where it is known."""
        return self.product.zero if isinstance(self.product.zero, int) else 0

    def whole_groups(self, blocked: bool) -> _Convolution | str:
        """The same in groups that hold whole blocks, if need be fewer, or why there are none.

        ``blocked``: the input is.
        """
        ic, in_lanes = self.product.weight.shape[1], self.in_lanes
        whole = blocked and ic % in_lanes == self.filters // self.groups % self.lanes == 0
        if self.groups == 1 or whole:
            return self
        merged = None
        if blocked:
            merged = merge_groups(self.product.weight, self.groups, in_lanes, self.lanes)
        if merged is None:
            within = in_lanes if blocked else 0
            return f"{self.groups} groups of {ic} channels, in blocks of {within}"
        return replace(self, product=replace(self.product, weight=merged[0]), groups=merged[1])

    def sums(self) -> np.ndarray:
        """Of the weights of each output channel, in blocks; of those that pad them, 0."""
        padded = np.zeros(-(-self.filters // self.lanes) * self.lanes, SUM)
        padded[: self.filters] = self.product.weight.sum((1, 2, 3), dtype=SUM)
        return padded.reshape(-1, self.lanes)

    def kernel(
        self,
        packed: np.ndarray,
        compute: Callable[..., te.Tensor],
        *options: object,
        in_lanes: int | None,
        unsigned: bool,
        name: str = "conv2d_integer",
    ) -> Kernel:
        """Of ``compute(x, packed, sums, zero, around, *options)``.

        ``in_lanes``: the block of the input; None: it is not blocked.
        """
        return Kernel(
            tuple(self.product.operands(packed, self.sums(), unsigned)),
            zero_may_lack(compute),
            (self.around, *options),
            lanes={} if in_lanes is None else {0: in_lanes},
            result_lanes=self.lanes,
            epilogue=True,
            name=name,
        )


def _conv2d(match: Match, target: Target) -> Kernel | str | None:
    conv = _Convolution.matched(match, target)
    if conv is None:
        return None
    if conv.groups == conv.channels == conv.filters and conv.groups > 1:
        return _depthwise(conv)
    if not conv.product.is_narrow:
        return "weights of nine bits"
    return _dense_words(conv) if conv.symbolic or multiplies_pairs(target) else _dense(conv)


def _depthwise(conv: _Convolution) -> Kernel | str:
    if conv.lanes < MIN_LANES:
        return f"blocks of {conv.lanes} channels"
    size = Dot.of(conv.target, conv.lanes).depth
    row_is_near = conv.dilations[1] == 1 and conv.product.weight.shape[3] > 1
    if size > 1 and conv.product.is_narrow and row_is_near and not conv.symbolic:
        return _depthwise_words(conv, size)
    weight = conv.product.weight
    columns = choose_columns(conv.target, conv.width, weight.shape[3])
    return conv.kernel(
        pack_depthwise_weight(weight, conv.lanes), ops.depthwise_conv2d_integer, columns,
        *conv.geometry, in_lanes=conv.lanes, unsigned=False, name=_DEPTHWISE,
    )  # fmt: skip


_DEPTHWISE = "depthwise_conv2d_integer"


def _depthwise_words(conv: _Convolution, size: int) -> Kernel:
    """By an instruction that sums ``size`` columns of a row of the window."""
    weight = conv.product.weight
    # Words that become ready take as many registers as sums.
    columns = choose_columns(conv.target, conv.width, Machine.of(conv.target).registers // 2 - 2)
    return conv.kernel(
        dots.pack_depthwise_words(weight, conv.lanes, size), dots.depthwise_conv2d_integer_words,
        size, weight.shape[3], columns, *conv.geometry,
        in_lanes=conv.lanes, unsigned=True, name=_DEPTHWISE,
    )  # fmt: skip


def _dense(conv: _Convolution) -> Kernel | str:
    target, lanes, in_lanes = conv.target, conv.lanes, conv.in_lanes
    dot, has_tiles = Dot.of(target, lanes), Machine.of(target).integer_tiles
    blocked = in_lanes % dot.depth == 0 and in_lanes >= MIN_LANES
    if has_tiles and conv.channels <= Machine.of(target).lanes(SUM) and _has_lines(conv):
        return _line_tiles(conv)
    whole = conv.whole_groups(blocked)
    if isinstance(whole, str):
        return whole
    sizes = *whole.product.weight.shape[:2], dots.BYTES, lanes, whole.groups
    if blocked and has_tiles and fills_tiles(*sizes):
        return _tiles(whole)
    tile = choose_tile(target, whole.blocks, conv.width)
    steps = in_lanes if blocked else max(dot.depth, MIN_LANES)
    weight, columns = whole.product.weight, tile.vectors * lanes
    return whole.kernel(
        ops.pack_integer_weight(weight, steps, columns, dot.depth), ops.conv2d_integer, steps,
        lanes, tile.columns, whole.groups, *conv.geometry, dot.unsigned,
        in_lanes=in_lanes if blocked else None, unsigned=dot.unsigned,
    )  # fmt: skip


def _has_lines(conv: _Convolution) -> bool:
    """Whether the lines of a window fill tiles, with all their channels."""
    filters, channels, *window = conv.product.weight.shape
    filled = fills_tiles(filters, channels, dots.BYTES, conv.lanes, 1, window[1])
    return conv.groups == 1 and filled and are_lines(window, conv.dilations)


def _line_tiles(conv: _Convolution) -> Kernel:
    weight = conv.product.weight
    return conv.kernel(
        tiles.integer_filters(columns_as_channels(weight)), tiles.conv2d_integer_line_tiles,
        weight.shape[3], conv.lanes, conv.filters, *conv.geometry,
        in_lanes=conv.channels, unsigned=True,
    )  # fmt: skip


def _tiles(conv: _Convolution) -> Kernel:
    packed, compute = tiles.integer_filters(conv.product.weight), tiles.conv2d_integer_tiles
    options = conv.lanes, conv.filters, conv.groups, *conv.geometry
    return conv.kernel(packed, compute, *options, in_lanes=conv.in_lanes, unsigned=True)


def _dense_words(conv: _Convolution) -> Kernel | str:
    """The schedules of floats, on words of channels: two, or four of symbolic rows or columns."""
    of_pairs = multiplies_pairs(conv.target)
    size, compute = dots.BYTES, dots.conv2d_integer_words
    if of_pairs:
        size, compute = dots.PAIR, pairs.conv2d_byte_pairs
    blocked = conv.in_lanes % size == 0 and conv.in_lanes >= MIN_LANES
    whole = conv.whole_groups(blocked)
    if isinstance(whole, str):
        return whole
    faster = _winograd(whole) if of_pairs and blocked and not conv.symbolic else None
    if faster is not None:
        return faster
    tile = choose_tile(conv.target, whole.blocks, conv.width, added_apart=of_pairs)
    words = conv.in_lanes // size if blocked else 1
    packed = dots.pack_filter_words(whole.product.weight, words, conv.lanes, tile.vectors, size)
    return whole.kernel(
        packed, compute, conv.lanes, tile.columns, whole.groups, *conv.geometry,
        in_lanes=conv.in_lanes if blocked else None, unsigned=not of_pairs,
    )  # fmt: skip


def _winograd(conv: _Convolution) -> Kernel | None:
    """Of 3x3 windows, where it pays by the model of floats: exact."""
    weight, in_lanes, lanes = conv.product.weight, conv.in_lanes, conv.lanes
    filters, channels, *window = weight.shape
    plain = conv.strides == conv.dilations == [1, 1] and window == [KERNEL, KERNEL]
    if not plain or channels > integer_winograd.MOST_CHANNELS or filters % lanes:
        return None
    images, _, height, width = conv.result
    words = conv.channels // dots.PAIR
    sizes = size(images), words, filters, height, width, in_lanes // dots.PAIR, lanes
    plan = _WINOGRAD.choose(Convolution(*sizes, groups=conv.groups), conv.target)
    if plan is None:
        return None
    packed = integer_winograd.transform_integer_weight(
        weight, in_lanes, plan.register.vectors * lanes
    )
    return conv.kernel(
        packed, integer_winograd.conv2d_winograd_pairs, lanes, conv.pads,
        (plan.images, plan.rows), plan.register.columns, conv.groups,
        in_lanes=in_lanes, unsigned=False,
    )  # fmt: skip


INTEGER_CONV2D = Compound(
    "IntegerConv2d",
    lambda graph, var: find_product("relax.nn.conv2d", graph, var, image_dims),
    _conv2d,
)
