"""Convolutions with constant weights as kernels in the blocked layout NCHW[x]c.

Before: ``y = R.nn.conv2d(x, w)``, NCHW
After::

    xb = block(x)                                       # NCHW16c
    yb = conv2d_blocked(xb, packed_w)
    y = unblock(yb)

:mod:`.blocked_layout` then keeps what stands between convolutions blocked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

import numpy as np
from tvm import relax, te
from tvm.relax.dpl import is_const, is_op, wildcard
from tvm.target import Target

from tvm_ext.ops import conv2d_blocked as ops
from tvm_ext.schedules.machine import Machine

from ..schedules.llvm.conv2d import choose_columns, choose_tile
from .compound import Compound, Kernel, Match, Pattern

__all__ = ["BLOCKED_CONV2D", "CONV2D", "MIN_LANES", "Dense", "lanes_of"]

# Fewer lanes than this leave vector registers mostly empty: such tensors stay NCHW.
MIN_LANES = 4

_X, _WEIGHT = wildcard(), is_const()
_CALL = is_op("relax.nn.conv2d")(_X, _WEIGHT)
CONV2D = Pattern(_CALL, {"x": _X, "weight": _WEIGHT, "conv": _CALL})


def _kernel(match: Match, target: Target) -> Kernel | None:
    """The kernel that depends on the groups; None where tensors stay NCHW."""
    conv = _Conv2d.of(match)
    if conv is None:
        return None
    if conv.groups == conv.channels == conv.weight.shape[0] and conv.groups > 1:
        return _depthwise(conv, target)
    dense = Dense.of(conv, target)
    return None if dense is None else dense.kernel()


BLOCKED_CONV2D = Compound("BlockedConv2d", CONV2D, _kernel)


@dataclass(frozen=True)
class _Conv2d:
    """A convolution of static floats, NCHW, that has weights of its own."""

    x: relax.Expr
    weight: np.ndarray
    result: list[int]
    channels: int
    dtype: str
    groups: int
    strides: list[int]
    pads: list[int]
    dilations: list[int]

    @classmethod
    def of(cls, match: Match) -> _Conv2d | None:
        attrs, result, image = match["conv"].attrs, match.dims(), match.dims("x")
        if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW"):
            return None
        if result is None or image is None or 0 in result or "float" not in match.dtype():
            return None
        geometry = ([int(v) for v in f] for f in (attrs.strides, attrs.padding, attrs.dilation))
        weight, groups = match["weight"].value.numpy(), int(attrs.groups)
        return cls(match["x"], weight, result, image[1], match.dtype(), groups, *geometry)


def _depthwise(conv: _Conv2d, target: Target) -> Kernel | None:
    lanes = lanes_of(conv.channels, _vector(conv, target))
    if lanes < MIN_LANES:
        return None
    columns = choose_columns(target, conv.result[3], conv.weight.shape[3])
    return Kernel(
        (conv.x, _const(ops.pack_depthwise_weight(conv.weight, lanes))),
        ops.depthwise_conv2d_blocked,
        (columns, conv.strides, conv.pads, conv.dilations),
        lanes={0: lanes},
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
    """

    conv: _Conv2d
    in_lanes: int
    lanes: int
    vectors: int
    columns: int

    @classmethod
    def matched(cls, match: Match, target: Target) -> Dense | None:
        """That of a match of :data:`CONV2D`."""
        conv = _Conv2d.of(match)
        return None if conv is None else cls.of(conv, target)

    @classmethod
    def of(cls, conv: _Conv2d, target: Target) -> Dense | None:
        """None where a group would hold a part of a block."""
        (oc, ic), groups, vector = conv.weight.shape[:2], conv.groups, _vector(conv, target)
        lanes, in_lanes = lanes_of(oc, vector), lanes_of(conv.channels, vector)
        if lanes < MIN_LANES:
            lanes = _padding_lanes(oc, vector)
        if in_lanes < MIN_LANES:
            in_lanes = conv.channels if conv.channels <= vector else gcd(ic, vector)
        if groups > 1 and (ic % in_lanes or (oc // groups) % lanes):
            return None
        tile = choose_tile(target, -(-oc // groups // lanes), conv.result[3])
        return cls(conv, in_lanes, lanes, tile.vectors, tile.columns)

    @property
    def weight(self) -> np.ndarray:
        """The packed weights."""
        return ops.pack_weight(self.conv.weight, self.in_lanes, self.lanes, self.vectors)

    def kernel(
        self,
        compute: Callable[..., te.Tensor] = ops.conv2d_blocked,
        weight: np.ndarray | None = None,
    ) -> Kernel:
        """The direct convolution, or another ``compute`` of the same form with its own weights."""
        conv = self.conv
        return Kernel(
            (conv.x, _const(self.weight if weight is None else weight)),
            compute,
            (self.lanes, self.columns, conv.groups, conv.strides, conv.pads, conv.dilations),
            lanes={0: self.in_lanes},
            result_lanes=self.lanes,
            epilogue=True,
            name=compute.__name__,
        )


def lanes_of(channels: int, vector: int) -> int:
    """The block of a tensor of ``channels``: as much of a vector as divides them."""
    return gcd(channels, vector)


def _padding_lanes(channels: int, vector: int) -> int:
    """The block for an odd number of channels; the rest of the last block is cut off.

    A quarter of a register costs as much as half of one.
    """
    widths = [w for w in (vector, vector // 2, vector // 4) if w >= MIN_LANES]
    return min(widths, key=lambda w: -(-channels // w) * max(w, vector // 2))


def _vector(conv: _Conv2d, target: Target) -> int:
    return Machine.of(target).lanes(conv.dtype)


def _const(array: np.ndarray) -> relax.Expr:
    return relax.const(array, array.dtype.name)
