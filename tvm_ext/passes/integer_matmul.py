"""Matrix products of 8-bit integers; see :mod:`.integer_products`.

Before::

    z = R.matmul(R.astype(a, "int32"), b)                           int32, b constant
    p = R.matmul(R.subtract(R.astype(a, "int32"), zero), R.astype(c, "int32"))

After::

    z = matmul_integer(a, packed_b, sums)
    p = matmul_integer(row_words(a), column_words(c), column_sums(c))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from math import prod

import tvm_ffi
from tvm import relax, tirx
from tvm.ir.expr import GenericConst
from tvm.target import Target

from tvm_ext.ops import integer_dots as dots
from tvm_ext.ops import integer_pairs as pairs
from tvm_ext.ops import integer_products as ops
from tvm_ext.ops import integer_tiles as tiles
from tvm_ext.schedules.machine import Machine

from ..schedules.llvm.dot import Dot
from ..schedules.llvm.matmul import choose_matmul_tile
from ..schedules.llvm.matmul_loops import FEW_ROWS
from .compound import Compound, Kernel, Match, zero_may_lack
from .facts import dtype_of, is_empty
from .graph import Graph
from .integer_products import (
    SUM,
    ConstantProduct,
    Dims,
    find_product,
    less_zero,
    multiplies_bytes,
    multiplies_pairs,
)
from .tiled_matmul import MANY_ROWS, sweeps_rows

__all__ = ["INTEGER_MATMUL", "INTEGER_MATMUL_OF_ACTIVATIONS"]


def _rows(ty: relax.Type) -> Dims | None:
    """The dims of ``[..., K]``, of which K is a number."""
    if not isinstance(ty, relax.TensorType) or ty.shape is None or len(ty.shape.values) < 2:
        return None
    dims = [int(d) if isinstance(d, tirx.IntImm) else d for d in ty.shape.values]
    return dims if isinstance(dims[-1], int) else None


def _matmul(match: Match, target: Target) -> Kernel | None:
    product, left = match.detail, match.dims("x")
    if product.weight.ndim != 2 or not product.is_narrow:
        return None
    if Machine.of(target).integer_tiles:
        return _matmul_tiles(product)
    if multiplies_pairs(target):
        return _matmul_pairs(product, left, target)
    depth, columns = product.weight.shape
    if left is None or columns == 1:  # for one column the schedule of tiles finds no lanes
        return _matmul_rows(product, target)
    tile = choose_matmul_tile(target, prod(left[:-1]), columns, SUM, depth)
    dot = Dot.of(target, tile.lanes)
    packed = ops.pack_integer_columns(product.weight, tile.columns, dot.depth)
    sums = product.weight.sum(0, dtype=SUM)
    operands = product.operands(packed, sums, dot.unsigned)
    return Kernel(
        tuple(operands),
        zero_may_lack(ops.matmul_integer_packed),
        (columns, tile.rows, dot.unsigned),
        epilogue=True,
        name="matmul_integer",
    )


def _matmul_tiles(product: ConstantProduct) -> Kernel:
    """By AMX, of any number of rows."""
    packed = tiles.integer_weight(product.weight)
    operands = product.operands(packed, product.weight.sum(0, dtype=SUM), True)
    compute, columns = zero_may_lack(tiles.matmul_integer_tiles), product.weight.shape[1:]
    return Kernel(tuple(operands), compute, columns, epilogue=True, name="matmul_integer")


def _matmul_pairs(product: ConstantProduct, left: Dims | None, target: Target) -> Kernel:
    """Of pairs of 16 bits, of any number of rows."""
    depth, columns = product.weight.shape
    rows = MANY_ROWS if left is None else prod(left[:-1])
    tile = choose_matmul_tile(target, rows, columns, SUM, 2 * depth, added_apart=True)
    swept = left is None or columns == 1 or sweeps_rows(target, rows, columns, tile)
    packed = dots.pack_words(product.weight, tile.columns, dots.PAIR)
    return Kernel(
        tuple(product.operands(packed, product.weight.sum(0, dtype=SUM), False)),
        zero_may_lack(pairs.matmul_byte_pairs),
        (columns, None if swept else tile.rows),
        packed={0: pairs.row_pairs},
        epilogue=True,
        name="matmul_integer",
    )


def _matmul_rows(product: ConstantProduct, target: Target) -> Kernel:
    depth, columns = product.weight.shape
    tile = choose_matmul_tile(target, MANY_ROWS, columns, SUM, depth)
    packed = dots.pack_words(product.weight, tile.columns)
    operands = product.operands(packed, product.weight.sum(0, dtype=SUM), True)
    compute = zero_may_lack(dots.matmul_integer_rows)
    return Kernel(tuple(operands), compute, (columns,), epilogue=True, name="matmul_integer")


INTEGER_MATMUL = Compound(
    "IntegerMatmul", lambda graph, var: find_product("relax.matmul", graph, var, _rows), _matmul
)


def _find_of_activations(graph: Graph, var: relax.Var) -> Match | None:
    """A product of two tensors that are not constant, each 8 bits less a zero point."""
    call = graph.call(var, "relax.matmul")
    if call is None or dtype_of(var) != SUM:
        return None
    left, right = call.args[:2]
    if any(isinstance(x, GenericConst) for x in (left, right)):
        return None
    sources = less_zero(graph, left), less_zero(graph, right)
    if None in sources:
        return None
    return Match(graph, var, (var,), {"product": call, "left": left, "right": right}, sources)


def _matmul_of_activations(match: Match, target: Target) -> Kernel | None:
    """Of bytes where an instruction sums four products.

    Elsewhere of differences of nine bits, hence pairs of 16, which are made where they are found.
    """
    left, right = match.dims("left"), match.dims("right")
    if min(match[side].ty.ndim for side in ("left", "right")) < 2:
        return None
    if left is None or right is None:
        return _words_as_they_lie(match, target)
    if is_empty(left) or is_empty(right) or left[-2] <= FEW_ROWS:
        return None
    tile = choose_matmul_tile(target, left[-2], right[-1], SUM, 2 * left[-1])
    if Dot.of(target, tile.lanes).depth == dots.BYTES:
        panels = partial(dots.column_word_panels, tile=tile.columns)
        return _matmul_of_words(
            match, panels, dots.matmul_integer_words, (right, tile.rows, left[-1])
        )
    return Kernel(
        (match["left"], match["right"]),
        pairs.matmul_integer_pairs,
        (right, tile.rows),
        packed={0: pairs.row_pairs, 1: partial(pairs.column_pair_panels, tile=tile.columns)},
        epilogue=True,
        name="matmul_integer",
    )


def _words_as_they_lie(match: Match, target: Target) -> Kernel | None:
    """A product of symbolic dims, of which those of the batch are the same."""
    left, right = match["left"], match["right"]
    if left.ty.shape is None or right.ty.shape is None:
        return None
    first, second = (list(x.ty.shape.values[:-2]) for x in (left, right))
    if not tvm_ffi.structural_equal(first, second):
        return None
    if multiplies_bytes(target):
        depth = left.ty.shape.values[-1]
        compute = dots.matmul_integer_words_plain
        return _matmul_of_words(match, dots.column_words, compute, (depth,))
    return Kernel(
        (left, right),
        pairs.matmul_integer_pairs_plain,
        packed={0: pairs.row_pairs, 1: pairs.column_pairs},
        epilogue=True,
        name="matmul_integer",
    )


def _matmul_of_words(
    match: Match, columns: Callable, compute: Callable, options: tuple[object, ...]
) -> Kernel:
    """The product of both sides as bytes; ``columns`` packs the right one.

    Sums are computed of a side only if the zero point of the other is something.
    """
    (x, x_zero), (y, y_zero) = match.detail
    left, right = (
        kind(dtype_of(side), zero if isinstance(zero, int) else None)
        for kind, side, zero in (
            (dots.ZeroPoint.left, x, x_zero), (dots.ZeroPoint.right, y, y_zero),
        )
    )  # fmt: skip
    operands, packed = [x, y], {0: dots.row_words, 1: columns}
    for zero, side, sums in (right, x, dots.row_sums), (left, y, dots.column_sums):
        if not zero.is_nothing:
            packed[len(operands)] = sums
            operands.append(side)
    operands += [zero for zero in (x_zero, y_zero) if not isinstance(zero, int)]
    return Kernel(
        tuple(operands),
        compute,
        (*options, astuple(left), astuple(right)),
        packed=packed,
        epilogue=True,
        name="matmul_integer",
    )


INTEGER_MATMUL_OF_ACTIVATIONS = Compound(
    "IntegerMatmulOfActivations", _find_of_activations, _matmul_of_activations
)
