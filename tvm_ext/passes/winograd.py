"""Convolutions of stride 1 or 2, or dilated, by Winograd's method, where it pays by a model.

Those with windows of 3 x 3, in groups of channels, too, and of volumes, with any taps, stride and
dilation along the depth; with a stride of 1 also those of 4 x 4, 5 x 5, and of one row or column.

Before: ``y = R.nn.conv2d(x, w)``
After:  ``y = unblock(conv2d_winograd(block(x), transformed_w))``

Within the error bound that :mod:`tvm_ext.ops.toom_cook` states; float32 only. Weights are
transformed here, and grow 16/9 (tiles of 2 x 2) or 4 times (4 x 4), those of a row about twice.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
from tvm import relax
from tvm.target import Target

from tvm_ext.ops.conv2d_blocked import unpack_weight
from tvm_ext.ops.conv2d_winograd import conv2d_winograd, conv2d_winograd_tiles
from tvm_ext.ops.toom_cook import KERNEL, SIZES, parts_of, transform_weight
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
    if conv.weight.dtype.name != "float32" or (conv.groups > 1 and len(conv.result) > 4):
        return False
    (down, across), (high, wide) = map(_pair, (conv.strides, conv.dilations))
    plain = (down, across) == (1, 1) and len(conv.result) <= 4
    taps = _pair(conv.weight.shape[2:])
    if taps != (KERNEL, KERNEL):
        square = taps[0] == taps[1] and taps[0] in SIZES
        return plain and (square or (min(taps) == 1 and max(taps) >= KERNEL))
    return plain if max(high, wide) > 1 else down == across <= 2


def _kernel(dense: Dense, target: Target, model: WinogradModel) -> Kernel | None:
    conv, lanes, stride = dense.conv, dense.lanes, dense.conv.strides[-1]
    high, wide = window = _pair(conv.weight.shape[2:])
    parts, taps = parts_of(window)
    # Along an axis of one tap there is nothing to dilate.
    down, across = _pair(conv.dilations)
    phases = (down if high > 1 else 1, across if wide > 1 else 1)
    images, _, *sides = conv.result
    frames, (height, width) = sides[:-2], _pair(sides)
    weight = _of_parts(unpack_weight(dense.weight))  # with channels that fill the last block
    filters, channels = weight.shape[0], weight.shape[1] // parts * conv.groups
    if frames and (conv.symbolic or not isinstance(images, int)):
        return None  # volumes of a symbolic number or size
    count = size(images) * prod(frames)
    usual = min(max(_ROWS_OF_CHANNELS // filters, 7), 56)
    usual = usual**2 if height == 1 else usual  # a signal has as many elements as an image
    rows, columns = (side if isinstance(side, int) else usual for side in (height, width))
    sizes = (count, channels, filters, rows, columns)
    taken = Convolution(*sizes, dense.in_lanes, lanes, stride, phases, conv.groups, window, taps)
    known = tuple(m for m in model.sizes if m in SIZES[max(taps)])
    plan = replace(model, sizes=known).choose(taken, target)
    if plan is None:
        return None
    tile = plan.register.vectors * lanes
    transformed = transform_weight(weight, plan.m, dense.in_lanes, tile, stride)
    depth = (conv.strides[0], conv.dilations[0]) if frames else (1, 1)
    if conv.symbolic:
        return Kernel(
            (conv.x, relax.const(transformed, "float32")),
            conv2d_winograd_tiles,
            (lanes, conv.pads, plan.m, stride, phases, conv.groups, window),
            {"m": plan.m},
            lanes={0: dense.in_lanes},
            result_lanes=lanes,
            epilogue=True,
            name=conv2d_winograd.__name__,
        )
    columns = plan.register.columns
    return Kernel(
        (conv.x, relax.const(transformed, "float32")),
        conv2d_winograd,
        (lanes, conv.pads, plan.m, plan.group, columns, depth, stride, phases, conv.groups, window),
        {"m": plan.m},
        lanes={0: dense.in_lanes},
        result_lanes=lanes,
        epilogue=True,
        name=conv2d_winograd.__name__,
    )


def _pair(numbers: Sequence[int]) -> tuple[int, int]:
    """Of the rows and the columns; a signal has one row."""
    down, across = (1, *numbers)[-2:]
    return down, across


def _of_parts(weight: np.ndarray) -> np.ndarray:
    """``[OC, IC, (KD,) KH, KW]`` -> ``[OC, (KD *) parts * IC, kh, kw]``.

    Taps along the depth and parts of a window as channels, the first part first. Windows of a
    signal have one row.
    """
    filters, channels, *deep = weight.shape
    *depth, kh, kw = deep if len(deep) > 1 else (1, *deep)
    parts, (high, wide) = parts_of((kh, kw))
    whole = weight.reshape(filters, channels, prod(depth), kh, kw)
    if parts > 1:
        behind = [
            (0, parts * own - side if own > 1 else 0) for own, side in ((high, kh), (wide, kw))
        ]
        whole = np.pad(whole, [(0, 0)] * 3 + behind).reshape(filters, channels, parts, high, wide)
    return np.moveaxis(whole, 1, 2).reshape(filters, -1, high, wide)
