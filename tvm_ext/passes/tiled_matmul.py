"""Matrix products as register-tiled kernels; constant right-hand sides are packed now.

Before: ``R.matmul(x, w)``, ``w`` a constant ``[K, N]``
After:  ``R.call_tir(matmul, (x, packed_w))``
"""

from math import prod

import numpy as np
from tvm import DataType, relax, tirx
from tvm.ir.expr import GenericConst
from tvm.relax.dpl import is_op, wildcard
from tvm.target import Target

from tvm_ext.ops.matmul_packed import (
    matmul_packed,
    matmul_plain,
    matmul_rows,
    matmul_tiled,
    pack_columns,
)
from tvm_ext.schedules.llvm.matmul import MatmulTile, choose_matmul_tile
from tvm_ext.schedules.llvm.matmul_loops import FEW_ROWS
from tvm_ext.schedules.llvm.matmul_rows import shares_panels
from tvm_ext.schedules.machine import Machine

from .compound import Compound, Kernel, Match, Pattern
from .facts import axes_of
from .graph import Graph

__all__ = ["MANY_ROWS", "TILED_MATMUL", "sweeps_rows"]


_LEFT, _RIGHT = wildcard(), wildcard()

# The part of all rows that tiles of one height may pad: 128 rows in tiles of 6 do 3 % in vain, and
# BERT takes 325 ms in place of 311 with lower tiles at the end (AVX2, two Zen 1 cores).
_PADDED = 0.02

# Rows from which on all of them are swept over a panel of weights, which is fetched while the first
# are multiplied; blocks of less divide few numbers of rows. float32, two Emerald Rapids cores:
# [1024, 3072] times [3072, 768] 1.1 times as fast, [1576, 768] times [768, 3072] 1.5 times;
# ViT-B/16 1.04 times, BERT-base as fast.
_SWEPT = 128

#: Stands for a symbolic count of rows where a tile is chosen.
MANY_ROWS = 1 << 12


def _kernel(match: Match, target: Target) -> Kernel | None:
    """Vectors, empty operands and other types than these stay what they are.

    So do symbolic shapes, but for those of rows where the weights are constant, and of columns
    that lie one after the other in memory.
    """
    left, right = match.dims("left"), match.dims("right")
    dtypes = {match.dtype(), match.dtype("left"), match.dtype("right")}
    if dtypes not in ({"float32"}, {"float64"}):
        return None
    dots = _dots(match, left, target)
    if dots is not None or right is None or len(right) < 2 or 0 in right:
        return dots
    packed = len(right) == 2 and _weight(match) is not None
    if left is None:
        return _rows(match, right, target) if packed and match["left"].ty.ndim >= 2 else None
    if len(left) < 2 or 0 in left:
        return None
    return (_packed if packed else _tiled)(match, left, right, target)


TILED_MATMUL = Compound(
    "TiledMatmul",
    Pattern(is_op("relax.matmul")(_LEFT, _RIGHT), {"left": _LEFT, "right": _RIGHT}),
    _kernel,
)


def _packed(match: Match, left: list[int], right: list[int], target: Target) -> Kernel:
    dtype, rows = match.dtype(), prod(left[:-1])
    tile = choose_matmul_tile(target, rows, right[1], dtype, _row_bytes(match, right[0]))
    operands = match["left"], _panels(match, tile)
    if sweeps_rows(target, rows, right[1], tile):
        return Kernel(operands, matmul_rows, (right[1],), epilogue=True, name="matmul")
    return Kernel(operands, matmul_packed, (right[1], tile.rows), epilogue=True, name="matmul")


def sweeps_rows(target: Target, rows: int, columns: int, tile: MatmulTile) -> bool:
    """Whether all ``rows`` are swept over each panel of weights, the last in lower tiles."""
    padded = rows > 4 * tile.rows and -rows % tile.rows > rows * _PADDED
    by_panel = shares_panels(-(-columns // tile.columns), Machine.of(target))
    return by_panel and (padded or rows >= _SWEPT)


def _rows(match: Match, right: list[int], target: Target) -> Kernel | None:
    left = match["left"].ty.shape
    if left is None or not isinstance(left.values[-1], tirx.IntImm):
        return None
    row_bytes = _row_bytes(match, right[0])
    tile = choose_matmul_tile(target, MANY_ROWS, right[1], match.dtype(), row_bytes)
    operands = match["left"], _panels(match, tile)
    return Kernel(operands, matmul_rows, (right[1],), epilogue=True, name="matmul")


def _row_bytes(match: Match, depth: int) -> int:
    return DataType(match.dtype()).itemsize * depth


def _weight(match: Match) -> np.ndarray | None:
    """The right-hand side if it is known, as narrow as it is stored."""
    right = match["right"]
    cast = match.graph.call(right, "relax.astype")
    known = right if cast is None else cast.args[0]
    return known.value.numpy() if isinstance(known, GenericConst) else None


def _panels(match: Match, tile: MatmulTile) -> GenericConst:
    weight = _weight(match)
    assert weight is not None
    return relax.const(pack_columns(weight, tile.columns), weight.dtype.name)


def _dots(match: Match, left: list[int] | None, target: Target) -> Kernel | None:
    """A transpose of the right-hand side is read through: it would take longer than all else."""
    turned = _before_turn(match.graph, match["right"])
    if turned is None or left is None or len(left) < 2 or 0 in left or left[-2] > FEW_ROWS:
        return None
    shape = turned.ty.shape
    if shape is None or left[-1] % Machine.of(target).lanes(match.dtype()):
        return None
    *outer, columns, depth = shape.values
    batch = all(isinstance(dim, tirx.IntImm) and int(dim) > 0 for dim in (*outer, depth))
    if not batch or (isinstance(columns, tirx.IntImm) and int(columns) == 0):
        return None
    return Kernel((match["left"], turned), matmul_plain, (True,), epilogue=True, name="matmul")


def _tiled(match: Match, left: list[int], right: list[int], target: Target) -> Kernel:
    operands = match["left"], match["right"]
    row_bytes = _row_bytes(match, right[-2])
    tile = choose_matmul_tile(target, left[-2], right[-1], match.dtype(), row_bytes)
    if left[-2] <= FEW_ROWS and right[-1] >= tile.lanes:  # packing would take longer than all else
        return Kernel(operands, matmul_plain, epilogue=True, name="matmul")
    options = tile.rows, tile.columns
    return Kernel(operands, matmul_tiled, options, epilogue=True, name="matmul")


def _before_turn(graph: Graph, expr: relax.Expr) -> relax.Expr | None:
    """What ``expr`` is with the last two axes in the other order, if it is nothing else."""
    call = graph.call(expr, "relax.permute_dims")
    if call is None or expr.ty.ndim < 2:
        return None
    *outer, row, column = range(expr.ty.ndim)
    return call.args[0] if axes_of(call) == (*outer, column, row) else None
