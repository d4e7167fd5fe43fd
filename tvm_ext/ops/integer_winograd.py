"""3x3 convolution of 8-bit integers by Winograd's method, exact, in products of pairs of 16 bits.

Tiles are of 2 x 2 outputs, interpolated at 0, 1, -1 and infinity: see :mod:`.toom_cook`. Of
inputs the transform is sums of four, of eleven bits at most. That of weights has halves along both
axes, so 4 times the weights are transformed, which makes them twelve bits, and a fourth of the sum
is the result. It is exact up to :data:`MOST_CHANNELS`, where 4 times each sum fits int32; no sum
on the way there is larger.
"""

from collections.abc import Sequence

import numpy as np
from tvm import te

from .conv2d_winograd import conv2d_winograd
from .integer_dots import PAIR, joined, pair_dot
from .integer_pairs import pair_of, widened
from .integer_products import corrected, pad_value
from .toom_cook import KERNEL, transform_weight

__all__ = ["MOST_CHANNELS", "SIDE", "conv2d_winograd_pairs", "transform_integer_weight"]

#: The rows and columns of outputs of a tile.
SIDE = 2
#: Of a group: sums of more may not fit 32 bits.
MOST_CHANNELS = (2**31 - 1) // (SIDE**2 * KERNEL**2 * 255 * 128)


def transform_integer_weight(weight: np.ndarray, in_lanes: int, tile: int) -> np.ndarray:
    """int8 ``[OC, IC, 3, 3]`` -> int32 words ``[16, OC/tile, IC/in_lanes, in_lanes/2, tile]``.

    Each holds two channels. ``tile`` divides OC, ``in_lanes`` divides IC.
    """
    whole = transform_weight(SIDE**2 * weight.astype("float64"), SIDE, in_lanes, tile)
    *outer, _, lanes = whole.shape
    pairs = whole.astype("int16").reshape(*outer, in_lanes // PAIR, PAIR, lanes)
    return joined(np.moveaxis(pairs, -2, -1))


def conv2d_winograd_pairs(
    x: te.Tensor,
    weight: te.Tensor,
    sums: te.Tensor,
    zero: te.Tensor | None,
    around: int,
    out_lanes: int,
    pads: Sequence[int],
    group: Sequence[int],
    columns: int,
    channel_groups: int,
) -> te.Tensor:
    """Convolve ``x - zero``, ``[N, IC/b, H, W, b]``, into int32 ``[N, OC/out_lanes, H', W', ...]``.

    Args:
        weight: of :func:`transform_integer_weight`.
        pads: top, left, bottom, right.
        group: images, and rows of tiles in each, that are transformed together.
        columns: tiles that share a register tile.
        channel_groups: each holds whole blocks, and whole tiles of results.

    The others are those of :func:`tvm_ext.ops.integer_products.conv2d_integer`.
    """
    total = conv2d_winograd(
        widened(x), weight, out_lanes, pads, SIDE, group, columns, channel_groups=channel_groups,
        product=pair_dot, word=pair_of, around=pad_value(x, zero, around).astype("int16"),
    )  # fmt: skip
    quarter = te.compute(total.shape, lambda *at: total(*at) >> 2, "quarter")
    return corrected(quarter, sums, zero, x, False)
