"""3x3 convolutions of stride 1 or 2, or dilated, by Winograd's method, where it pays by a model.

In groups of channels, too, and those of volumes, with any taps, stride and dilation along the
depth.

Before: ``y = R.nn.conv2d(x, w)``
After:  ``y = unblock(conv2d_winograd(block(x), transformed_w))``

Within the error bound that :mod:`tvm_ext.ops.conv2d_winograd` states; float32 only. Weights are
transformed here, and grow 16/9 (tiles of 2 x 2) or 4 times (4 x 4).
"""

from math import prod

import numpy as np
from tvm import relax
from tvm.target import Target

from tvm_ext.ops.conv2d_blocked import unpack_weight
from tvm_ext.ops.conv2d_winograd import (
    KERNEL,
    conv2d_winograd,
    conv2d_winograd_tiles,
    transform_weight,
)
from tvm_ext.schedules.llvm.contraction import size
from tvm_ext.schedules.llvm.winograd import Convolution, WinogradModel

from .blocked_conv2d import Dense, find_convolution
from .compound import Compound, Kernel, Match

__all__ = ["winograd"]

# Symbolic rows or columns times channels, where a method is chosen: images shrink as channels grow.
# Few, for weights that have grown are fetched from memory whatever the size.
_ROWS_OF_CHANNELS = 28 * 128


def winograd(model: WinogradModel | None = None) -> Compound:
    """The compound; ``model`` chooses tile and grouping of each convolution."""
    chooses = model or WinogradModel()

    def kernel(match: Match, target: Target) -> Kernel | None:
        dense = Dense.matched(match, target)
        return _kernel(dense, target, chooses) if dense is not None and _simple(dense) else None

    return Compound("Winograd", find_convolution, kernel)


def _simple(dense: Dense) -> bool:
    conv = dense.conv
    kernel = (*conv.weight.shape[2:][-2:], conv.weight.dtype.name)
    if kernel != (KERNEL, KERNEL, "float32") or (conv.groups > 1 and len(conv.result) > 4):
        return False
    (down, across), (high, wide) = conv.strides[-2:], conv.dilations[-2:]
    if down != across or high != wide:
        return False
    dilated = down == 1 and len(conv.result) == 4
    return dilated if high > 1 else down <= 2


def _kernel(dense: Dense, target: Target, model: WinogradModel) -> Kernel | None:
    conv, lanes, stride = dense.conv, dense.lanes, dense.conv.strides[-1]
    phases = conv.dilations[-1]
    images, _, *frames, height, width = conv.result
    weight = _of_frames(unpack_weight(dense.weight))  # with channels that fill the last block
    filters, channels = weight.shape[0], weight.shape[1] * conv.groups
    if frames and (conv.symbolic or not isinstance(images, int)):
        return None  # volumes of a symbolic number or size
    count = size(images) * prod(frames)
    usual = min(max(_ROWS_OF_CHANNELS // filters, 7), 56)
    rows, columns = (side if isinstance(side, int) else usual for side in (height, width))
    sizes = (count, channels, filters, rows, columns)
    taken = Convolution(*sizes, dense.in_lanes, lanes, stride, phases, conv.groups)
    plan = model.choose(taken, target)
    if plan is None:
        return None
    tile = plan.register.vectors * lanes
    transformed = transform_weight(weight, plan.m, dense.in_lanes, tile, stride)
    depth = (conv.strides[0], conv.dilations[0]) if frames else (1, 1)
    if conv.symbolic:
        return Kernel(
            (conv.x, relax.const(transformed, "float32")),
            conv2d_winograd_tiles,
            (lanes, conv.pads, plan.m, stride, phases, conv.groups),
            {"m": plan.m},
            lanes={0: dense.in_lanes},
            result_lanes=lanes,
            epilogue=True,
            name=conv2d_winograd.__name__,
        )
    group, columns = (plan.images, plan.rows), plan.register.columns
    return Kernel(
        (conv.x, relax.const(transformed, "float32")),
        conv2d_winograd,
        (lanes, conv.pads, plan.m, group, columns, depth, stride, phases, conv.groups),
        {"m": plan.m},
        lanes={0: dense.in_lanes},
        result_lanes=lanes,
        epilogue=True,
        name=conv2d_winograd.__name__,
    )


def _of_frames(weight: np.ndarray) -> np.ndarray:
    """``[OC, IC, (KD,) 3, 3]`` -> ``[OC, (KD *) IC, 3, 3]``: taps along the depth as channels."""
    filters, *_, kh, kw = weight.shape
    return np.moveaxis(weight, 1, -3).reshape(filters, -1, kh, kw)
