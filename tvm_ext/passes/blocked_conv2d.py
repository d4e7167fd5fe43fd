"""Convolutions as kernels in the blocked layout NC..[x]c.

Before: ``y = R.nn.conv2d(x, w)``, NCHW
After::

    xb = block(x)                                       # NCHW16c
    yb = conv2d_blocked(xb, packed_w)
    y = unblock(yb)

Weights that are known at run time only are packed then, by a kernel of their own.

:mod:`.blocked_layout` then keeps what stands between convolutions blocked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd, prod

import numpy as np
from tvm import relax, te, tirx
from tvm.ir.expr import GenericConst
from tvm.relax.dpl import is_const, is_op, wildcard
from tvm.target import Target

from tvm_ext.ops import conv2d_blocked as ops
from tvm_ext.schedules.machine import Machine

from ..schedules.llvm.conv2d import Tile, choose_columns, choose_tile
from .compound import Compound, Kernel, Match, Pattern
from .facts import dtype_of, image_dims, is_empty, known_dims, static_dims
from .graph import Graph

__all__ = [
    "BLOCKED_CONV2D",
    "CONV2D",
    "LONG_ROW",
    "MIN_LANES",
    "Dense",
    "find_convolution",
    "lanes_of",
    "merge_groups",
]

# Fewer lanes than this leave vector registers mostly empty: such tensors stay NCHW.
MIN_LANES = 4

# Stands for a symbolic number of columns where a tile is chosen.
LONG_ROW = 1 << 10

# Groups in the place of one: so many times the products are computed.
_MOST_MERGED = 16

# How much better the tiles of an image as one row must be, to give up rows: a core keeps them.
FLAT_GAIN = 1.05

_X, _WEIGHT = wildcard(), is_const()
_CALL = is_op("relax.nn.conv2d")(_X, _WEIGHT)
CONV2D = Pattern(_CALL, {"x": _X, "weight": _WEIGHT, "conv": _CALL})

_OPERATORS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")
_LAYOUTS = (("NCW", "OIW"), ("NCHW", "OIHW"), ("NCDHW", "OIDHW"))


def find_convolution(graph: Graph, var: relax.Var) -> Match | None:
    """As :data:`CONV2D`, over 1 to 3 spatial axes."""
    match = _find_any(graph, var)
    return match if match is not None and isinstance(match["weight"], GenericConst) else None


def _find_any(graph: Graph, var: relax.Var) -> Match | None:
    """A convolution, also one whose weights are known at run time only, but for their shape."""
    conv = graph.call(var, *_OPERATORS)
    if conv is None or static_dims(conv.args[1]) is None:
        return None
    x, weight = conv.args
    return Match(graph, var, (var,), {"x": x, "weight": weight, "conv": conv})


def _kernel(match: Match, target: Target) -> Kernel | None:
    """The kernel that depends on the groups; None where tensors stay NCHW."""
    conv = _Conv2d.of(match)
    if conv is None:
        return None
    if conv.depthwise:
        return _depthwise(conv, target)
    dense = Dense.best(conv, target)
    if dense is None:
        return None
    return dense.direct(ops.conv2d_blocked, ops.conv2d_flat)


BLOCKED_CONV2D = Compound("BlockedConv2d", _find_any, _kernel)


@dataclass(frozen=True)
class _Conv2d:
    """A convolution of floats, channels first, that has weights of its own.

    Numbers of images, rows and columns may be symbolic. ``running``: the weights, where they are
    known at run time only; ``weight`` tells no more than their shape and type then. ``steps``: the
    rows of an image are one, of pixels so many apart.
    """

    x: relax.Expr
    weight: np.ndarray
    result: list[int | tirx.Expr]
    channels: int
    dtype: str
    groups: int
    strides: list[int]
    pads: list[int]
    dilations: list[int]
    running: relax.Expr | None = None
    steps: list[int] | None = None

    @property
    def depthwise(self) -> bool:
        """Whether each channel is convolved by itself, once or several times."""
        return self.groups == self.channels > 1

    @property
    def symbolic(self) -> bool:
        """Whether rows or columns are, or the number of images is a formula."""
        images, *rest = self.result
        return not isinstance(images, int | tirx.Var) or not all(isinstance(d, int) for d in rest)

    @property
    def is_pointwise(self) -> bool:
        """Whether each pixel of an image, of known size and weights, is multiplied by itself."""
        return (
            not self.symbolic
            and self.running is None
            and len(self.result) == 4
            and self.weight.shape[2:] == (1, 1)
            and not any(self.pads)
        )

    def flattened(self) -> _Conv2d:
        """The same of an image whose rows are one, with one axis."""
        images, channels, *image = self.result
        return replace(
            self,
            weight=self.weight.reshape(*self.weight.shape[:2], 1),
            result=[images, channels, prod(image)],
            strides=[1],
            pads=[0, 0],
            dilations=[1],
            steps=self.strides,
        )

    @property
    def width(self) -> int:
        """The pixels of a row of the result."""
        return self.result[-1] if isinstance(self.result[-1], int) else LONG_ROW

    @classmethod
    def of(cls, match: Match) -> _Conv2d | None:
        attrs, result, image = match["conv"].attrs, *map(image_dims, (match.root.ty, match["x"].ty))
        if (attrs.data_layout, attrs.kernel_layout) not in _LAYOUTS:
            return None
        if result is None or image is None or "float" not in match.dtype():
            return None
        if is_empty(result) or is_empty(image):
            return None
        geometry = attrs.strides, attrs.padding, attrs.dilation
        strides, pads, dilations = ([int(v) for v in values] for values in geometry)
        weight, groups = match["weight"], int(attrs.groups)
        constant = isinstance(weight, GenericConst)
        array = weight.value.numpy() if constant else _unknown(weight)
        tensors = match["x"], array, result, image[1], match.dtype()
        conv = cls(*tensors, groups, strides, pads, dilations)
        if not constant:
            return replace(conv, running=weight)
        return conv if conv.symbolic else conv._without_taps_outside(image[2:])

    def weights(
        self, pack: Callable[..., np.ndarray], packed: Callable[..., te.Tensor], *layout: int
    ) -> tuple[relax.Expr, dict[int, Callable[[te.Tensor], te.Tensor]]]:
        """The kernel's second operand and what packs it: ``pack`` does now, ``packed`` then."""
        if self.running is None:
            return _const(pack(self.weight, *layout)), {}
        return self.running, {1: lambda weight: packed(weight, *layout)}

    def _without_taps_outside(self, image: Sequence[int]) -> _Conv2d:
        """The same sums without the first and last taps that meet only pads at every output.

        Of a 3x3 window of dilation 24 on 20 x 20 pixels one tap is left.
        """
        weight, pads = self.weight, list(self.pads)
        geometry = zip(image, self.result[2:], self.strides, self.dilations, strict=True)
        for axis, (size, outputs, stride, dilation) in enumerate(geometry):
            begin, end, taps = axis, axis + len(image), weight.shape[2 + axis]
            # How far the first tap stays before the image, and the last one behind it.
            short = pads[begin] - (outputs - 1) * stride - 1
            beyond = (taps - 1) * dilation - pads[begin] - size
            first, last = (
                min(max(0, gap // dilation + 1), pads[side] // dilation)
                for gap, side in ((short, begin), (beyond, end))
            )
            first = min(first, taps - 1)
            last = min(last, taps - 1 - first)
            weight = weight[(slice(None),) * (2 + axis) + (slice(first, taps - last),)]
            pads[begin] -= first * dilation
            pads[end] -= last * dilation
        return replace(self, weight=weight, pads=pads)


def _depthwise(conv: _Conv2d, target: Target) -> Kernel | None:
    outputs = conv.weight.shape[0]
    lanes = lanes_of(outputs, _vector(conv, target))
    if lanes < MIN_LANES:
        return None
    columns = choose_columns(target, conv.width, conv.weight.shape[-1])
    weight, packed = conv.weights(ops.pack_depthwise_weight, ops.packed_depthwise_weight, lanes)
    once = outputs == conv.channels
    if not once:
        filters = outputs // conv.channels
        packed = {0: lambda x: ops.block(x, lanes, filters), **packed}
    return Kernel(
        (conv.x, weight),
        ops.depthwise_conv2d_blocked,
        (columns, conv.strides, conv.pads, conv.dilations),
        lanes={0: lanes} if once else {},
        packed=packed,
        result_lanes=lanes,
        epilogue=True,
        name="depthwise_conv2d_blocked",
    )


@dataclass(frozen=True)
class Dense:
    """Blocks and register tile of a convolution that sums over channels.

    Attributes:
        lanes, in_lanes: the blocks of the result and of ``x``.
        vectors, columns: of the register tile.
        vector: the channels that are summed side by side, a multiple of ``lanes``.
    """

    conv: _Conv2d
    in_lanes: int
    lanes: int
    vectors: int
    columns: int
    vector: int

    @classmethod
    def matched(cls, match: Match, target: Target, paired: bool = False) -> Dense | None:
        """That of a match of :data:`CONV2D`; None of a depthwise convolution."""
        conv = _Conv2d.of(match)
        return None if conv is None or conv.depthwise else cls.of(conv, target, paired=paired)

    @classmethod
    def of(
        cls, conv: _Conv2d, target: Target, whole: bool = False, paired: bool = False
    ) -> Dense | None:
        """Groups that would hold a part of a block are merged; None where that is too many.

        ``whole``: sum whole vectors. ``paired``: as of :func:`choose_tile`.
        """
        (oc, ic), groups, vector = conv.weight.shape[:2], conv.groups, _vector(conv, target)
        lanes, in_lanes = lanes_of(oc, vector), lanes_of(conv.channels, vector)
        if lanes < MIN_LANES:
            lanes = _padding_lanes(oc, vector)
        if in_lanes < MIN_LANES:
            in_lanes = conv.channels if conv.channels <= vector else gcd(ic, vector)
        if groups > 1 and (ic % in_lanes or (oc // groups) % lanes):
            merged = _merged(conv, in_lanes, lanes)
            return None if merged is None else cls.of(merged, target, whole, paired)
        wide = _summed(oc // groups, lanes, vector, padded=groups == 1) if whole else lanes
        tile = choose_tile(target, -(-oc // groups // wide), conv.width, paired)
        return cls(conv, in_lanes, lanes, tile.vectors, tile.columns, wide)

    @classmethod
    def best(cls, conv: _Conv2d, target: Target) -> Dense | None:
        """That which sums whole vectors, of flat images where tiles are so much better of these."""
        rows = cls.of(conv, target, whole=True)
        if rows is None or not conv.is_pointwise:
            return rows
        flat = cls.of(conv.flattened(), target, whole=True)
        return flat if flat is not None and flat.rate > FLAT_GAIN * rows.rate else rows

    @property
    def rate(self) -> float:
        """Useful work of the register tile, relative to the peak."""
        return Tile(self.vectors, self.columns).rate(self.conv.width)

    @property
    def weight(self) -> np.ndarray:
        """The packed weights."""
        return ops.pack_weight(self.conv.weight, self.in_lanes, self.vector, self.vectors)

    def direct(self, rows: Callable[..., te.Tensor], flat: Callable[..., te.Tensor]) -> Kernel:
        """The direct convolution, vectors summed as a whole, by what computes it of the image."""
        steps = self.conv.steps
        compute = rows if steps is None else partial(flat, steps=steps)
        several = self.vector > self.lanes
        blocks = -(-self.conv.weight.shape[0] // self.lanes) if several else None
        return self.kernel(partial(compute, vector=self.vector, blocks=blocks))

    def kernel(
        self,
        compute: Callable[..., te.Tensor] = ops.conv2d_blocked,
        weight: np.ndarray | None = None,
    ) -> Kernel:
        """The direct convolution, or another ``compute`` of the same form with its own weights."""
        conv, layout = self.conv, (self.in_lanes, self.vector, self.vectors)
        operand, packed = (
            conv.weights(ops.pack_weight, ops.packed_weight, *layout)
            if weight is None
            else (_const(weight), {})
        )
        return Kernel(
            (conv.x, operand),
            compute,
            (self.lanes, self.columns, conv.groups, conv.strides, conv.pads, conv.dilations),
            lanes={0: self.in_lanes},
            packed=packed,
            result_lanes=self.lanes,
            epilogue=True,
            name=getattr(compute, "__name__", "conv2d_blocked"),
        )


def _merged(conv: _Conv2d, in_lanes: int, lanes: int) -> _Conv2d | None:
    """``conv`` with fewer groups that hold whole blocks."""
    if conv.running is not None:
        return None
    merged = merge_groups(conv.weight, conv.groups, in_lanes, lanes)
    return None if merged is None else replace(conv, weight=merged[0], groups=merged[1])


def merge_groups(
    weight: np.ndarray, groups: int, in_lanes: int, lanes: int
) -> tuple[np.ndarray, int] | None:
    """OIHW weights of fewer groups that hold whole blocks, and how many groups; None if too many.

    Weights between the old groups are zero: products of zeros at the full rate are cheaper than
    groups that fill no vector.
    """
    (oc, ic), filters = weight.shape[:2], weight.shape[0] // groups
    fitting = (
        m
        for m in range(2, min(groups, _MOST_MERGED) + 1)
        if groups % m == ic * m % in_lanes == filters * m % lanes == 0
    )
    count = next(fitting, None)
    if count is None:
        return None
    merged = np.zeros((oc, ic * count, *weight.shape[2:]), weight.dtype)
    for k in range(groups):
        own, place = slice(k * filters, (k + 1) * filters), k % count * ic
        merged[own, place : place + ic] = weight[own]
    return merged, groups // count


def lanes_of(channels: int, vector: int) -> int:
    """The block of a tensor of ``channels``: as much of a vector as divides them."""
    return gcd(channels, vector)


def _summed(channels: int, lanes: int, vector: int, padded: bool) -> int:
    """The width, a multiple of ``lanes``, in which ``channels`` are summed in the fewest parts.

    40 channels in blocks of 8 take three vectors of 16, and would take five of 8.
    """
    widths = [w for w in (lanes << k for k in range(5)) if w <= vector]
    exact = [w for w in widths if padded or channels % w == 0]
    return min(exact, key=lambda w: (-(-channels // w), w), default=lanes)


def _padding_lanes(channels: int, vector: int) -> int:
    """The block for an odd number of channels; the rest of the last block is cut off.

    A quarter of a register costs as much as half of one.
    """
    widths = [w for w in (vector, vector // 2, vector // 4) if w >= MIN_LANES]
    return min(widths, key=lambda w: -(-channels // w) * max(w, vector // 2))


def _vector(conv: _Conv2d, target: Target) -> int:
    return Machine.of(target).lanes(conv.dtype)


def _unknown(weight: relax.Expr) -> np.ndarray:
    """An array of the shape and type of ``weight``, which stores one element."""
    return np.broadcast_to(np.zeros((), dtype_of(weight)), known_dims(weight))


def _const(array: np.ndarray) -> relax.Expr:
    return relax.const(array, array.dtype.name)
