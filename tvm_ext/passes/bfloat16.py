"""Matrix products and convolutions whose factors are bfloat16 and whose sums are float32.

Before: ``R.matmul(x, w)``, float32
After:  ``R.call_tir(matmul_bfloat16, (x, packed_w))``, which rounds ``x``; ``w`` is rounded here

With ``precision="bf16"`` all that have weights of their own; else those whose factors are bfloat16
already, as in models of that type, where nothing changes but the order of the sum. Rounding moves
a factor by at most 2**-8 of it, so an element moves by little more than ``2**-7 * (|x| @ |w|)``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tvm import relax, tirx
from tvm.relax.dpl import is_const, is_op, wildcard
from tvm.target import Target

from tvm_ext.ops import bfloat16_pairs as ops
from tvm_ext.ops import bfloat16_tiles as tiles
from tvm_ext.ops.matmul_packed import pack_columns
from tvm_ext.ops.tiles import columns_as_channels
from tvm_ext.schedules.llvm.matmul import choose_matmul_tile
from tvm_ext.schedules.llvm.tiles import are_lines, fills_tiles
from tvm_ext.schedules.machine import Machine

from .blocked_conv2d import CONV2D, Dense
from .compound import Compound, Kernel, Match, Pattern

__all__ = ["bfloat16_conv2d", "bfloat16_matmul"]

_LEFT, _RIGHT = wildcard(), is_const()
_MATMUL = Pattern(is_op("relax.matmul")(_LEFT, _RIGHT), {"left": _LEFT, "right": _RIGHT})


def bfloat16_matmul(rounds: bool) -> Compound:
    """The compound of products; ``rounds``: also where factors have to be rounded."""

    def kernel(match: Match, target: Target) -> Kernel | None:
        left, right = match.dims("left"), match.dims("right")
        if right is None or len(right) != 2 or 0 in right or match["left"].ty.ndim < 2:
            return None
        if not _taken(match, "left", "right", rounds):
            return None
        weight = match["right"].value.numpy().astype("float32")
        if Machine.of(target).tiles and _has_rows(match["left"]):
            operands = match["left"], relax.const(tiles.tile_weight(weight), "int32")
            compute, columns = tiles.matmul_tiles, (right[1],)
            return Kernel(operands, compute, columns, epilogue=True, name="matmul_bfloat16")
        if left is None or 0 in left:
            return None
        tile = choose_matmul_tile(target, prod(left[:-1]), right[1], "float32", 2 * right[0])
        words = pack_columns(ops.pair_rows(weight), tile.columns)
        operands = match["left"], relax.const(words, "int32")
        options = right[1], tile.rows
        return Kernel(operands, ops.matmul_pairs, options, epilogue=True, name="matmul_bfloat16")

    return Compound("BFloat16Matmul", _MATMUL, kernel)


def _has_rows(left: relax.Expr) -> bool:
    """Whether ``left`` has rows of a known number of elements; how many, may be symbolic."""
    dims = left.ty.shape.values if left.ty.shape is not None else []
    known = [dim for dim in dims if isinstance(dim, tirx.IntImm)]
    return bool(dims) and 0 not in map(int, known) and isinstance(dims[-1], tirx.IntImm)


def bfloat16_conv2d(rounds: bool) -> Compound:
    """The compound of convolutions that sum over channels; ``rounds`` as for products."""

    def kernel(match: Match, target: Target) -> Kernel | None:
        dense = Dense.matched(match, target, paired=True)
        if dense is None or not _taken(match, "x", "weight", rounds):
            return None
        if Machine.of(target).tiles:
            return _of_tiles(dense)
        return dense.kernel(ops.conv2d_pairs, ops.pair_weight(dense.weight.astype("float32")))

    return Compound("BFloat16Conv2d", CONV2D, kernel)


def _of_tiles(dense: Dense) -> Kernel | None:
    """The convolution in tiles of AMX; None where these would be too empty.

    Sums of float32 are faster than those of single pairs where there is AMX.
    """
    conv = dense.conv
    filters, channels, *window = conv.weight.shape
    if conv.symbolic or conv.running is not None:
        return None
    geometry = conv.strides, conv.pads, conv.dilations
    compute: Callable
    weight = conv.weight.astype("float32")
    if _has_lines(dense) and fills_tiles(filters, channels, 2, dense.vector, 1, window[1]):
        weight, compute = columns_as_channels(weight), tiles.conv2d_line_tiles
        options = window[1], dense.lanes, filters, *geometry
    elif fills_tiles(filters, channels, 2, dense.vector, conv.groups):
        compute = tiles.conv2d_tiles
        options = dense.lanes, filters, conv.groups, *geometry
    else:
        return None
    return Kernel(
        (conv.x, relax.const(tiles.tile_filters(weight), "int32")),
        compute,
        options,
        lanes={0: dense.in_lanes},
        result_lanes=dense.lanes,
        epilogue=True,
        name="conv2d_tiles",
    )


def _has_lines(dense: Dense) -> bool:
    """Whether neighbours in a line of the image are those of a window, with all their channels.

    There are fewer of these then than a tile has.
    """
    conv = dense.conv
    whole = conv.groups == 1 and dense.in_lanes == conv.channels
    return whole and len(conv.result) == 4 and are_lines(conv.weight.shape[2:], conv.dilations)


def _taken(match: Match, left: str, right: str, rounds: bool) -> bool:
    """Whether the types are those of such a product, its sum float32."""
    factors = {match.dtype(left), match.dtype(right)}
    allowed = {"bfloat16", "float32"} if rounds else {"bfloat16"}
    return match.dtype() == "float32" and factors <= allowed
