"""Products of 8-bit integers as kernels that widen in registers; constant weights are packed now.

Before::

    y = R.nn.conv2d(R.subtract(R.astype(x, "int32"), zero), w)      int32, w constant
    z = R.matmul(R.astype(a, "int32"), b)
    p = R.matmul(R.subtract(R.astype(a, "int32"), zero), R.astype(c, "int32"))

After::

    y = unblock(conv2d_integer(block(x), packed_w, sums))
    z = matmul_integer(a, packed_b, sums)
    p = matmul_integer(row_words(a), column_words(c), column_sums(c))

``sums`` are those of the weights, times the zero point where it is known. What makes 8 bits of the
result again is fused behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import partial
from math import gcd, prod

import numpy as np
import tvm_ffi
from tvm import relax, tirx
from tvm.ir.expr import GenericConst
from tvm.target import Target

from tvm_ext.ops import integer_dots as dots
from tvm_ext.ops import integer_products as ops
from tvm_ext.ops import integer_tiles as tiles
from tvm_ext.ops.conv2d_blocked import pack_depthwise_weight
from tvm_ext.ops.tiles import columns_as_channels
from tvm_ext.schedules.machine import Machine

from ..schedules.llvm.conv2d import choose_columns, choose_tile
from ..schedules.llvm.dot import Dot
from ..schedules.llvm.matmul import choose_matmul_tile
from ..schedules.llvm.matmul_loops import FEW_ROWS
from ..schedules.llvm.tiles import are_lines, fills_tiles
from .blocked_conv2d import LONG_ROW, MIN_LANES, lanes_of, merge_groups
from .compound import Compound, Kernel, Match, zero_may_lack
from .facts import dtype_of, image_dims, is_empty, static_dims
from .graph import Graph
from .tiled_matmul import MANY_ROWS

__all__ = ["INTEGER_CONV2D", "INTEGER_MATMUL", "INTEGER_MATMUL_OF_ACTIVATIONS"]

_Dims = list[int | tirx.Expr]

_SUM = "int32"
_NARROW = ("int8", "uint8")


@dataclass(frozen=True)
class _Product:
    """``x - zero``, 8 bits each, and constant weights: int8, or int16 that hold nine bits.

    ``zero``: a known number, or a tensor of one int32.
    """

    x: relax.Expr
    zero: int | relax.Expr
    weight: np.ndarray

    def __post_init__(self) -> None:
        assert dtype_of(self.x) in _NARROW

    @property
    def is_narrow(self) -> bool:
        """Whether the weights fit the instructions that sum neighbours."""
        return self.weight.dtype == np.int8

    def operands(self, packed: np.ndarray, sums: np.ndarray, unsigned: bool) -> list[relax.Expr]:
        """``x``, the weights, what is subtracted, and the zero point if it is not known."""
        moved = ops.SIGN if unsigned and dtype_of(self.x) == "int8" else 0
        if isinstance(self.zero, int):
            return [self.x, _const(packed), _const(sums * (self.zero + moved))]
        return [self.x, _const(packed), _const(sums), self.zero]


def _find(
    operator: str, graph: Graph, var: relax.Var, dims_of: Callable[[relax.Type], _Dims | None]
) -> Match | None:
    """``dims_of``: a tensor's, where they are such as the product may have."""
    call = graph.call(var, operator)
    if call is None or dtype_of(var) != _SUM:
        return None
    left, right = call.args[:2]
    dims = dims_of(var.ty)
    if not isinstance(right, GenericConst) or dims is None or is_empty(dims):
        return None
    weight = _narrowed(right.value.numpy())
    if weight is None:
        return None
    source = _shifted(graph, left)
    if source is None or dims_of(source[0].ty) is None:
        return None
    product = _Product(*source, weight)
    return Match(graph, var, (var,), {"product": call, "x": product.x}, product)


def _narrowed(weight: np.ndarray) -> np.ndarray | None:
    """``weight`` as int8, or as int16 where its differences of 8 bits need nine."""
    if weight.size == 0:
        return None
    low, high = weight.min(), weight.max()
    if -128 <= low and high <= 127:
        return weight.astype("int8")
    return weight.astype("int16") if -255 <= low and high <= 255 else None


def _shifted(graph: Graph, expr: relax.Expr) -> tuple[relax.Expr, int | relax.Expr] | None:
    """The 8-bit tensor and the zero point that ``expr`` is the difference of, in int32."""
    zero: int | relax.Expr = 0
    difference = graph.call(expr, "relax.subtract")
    if difference is not None:
        expr, zero = difference.args
        dims = static_dims(zero)
        if dims is None or prod(dims) != 1:
            return None
        if isinstance(zero, GenericConst):
            zero = int(zero.value.numpy().item())
    cast = graph.call(expr, "relax.astype")
    if cast is None or dtype_of(cast.args[0]) not in _NARROW:
        return None
    info = np.iinfo(dtype_of(cast.args[0]))
    known = isinstance(zero, int)
    return None if known and not info.min <= zero <= info.max else (cast.args[0], zero)


# --- matrix products -----------------------------------------------------------------------------


def _rows(ty: relax.Type) -> _Dims | None:
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
    depth, columns = product.weight.shape
    if left is None or columns == 1:  # for one column the schedule of tiles finds no lanes
        return _matmul_rows(product, target)
    tile = choose_matmul_tile(target, prod(left[:-1]), columns, _SUM, depth)
    dot = Dot.of(target, tile.lanes)
    packed = ops.pack_integer_columns(product.weight, tile.columns, dot.depth)
    sums = product.weight.sum(0, dtype=_SUM)
    operands = product.operands(packed, sums, dot.unsigned)
    return Kernel(
        tuple(operands),
        zero_may_lack(ops.matmul_integer_packed),
        (columns, tile.rows, dot.unsigned),
        epilogue=True,
        name="matmul_integer",
    )


def _matmul_tiles(product: _Product) -> Kernel:
    """By AMX, of any number of rows."""
    packed = tiles.integer_weight(product.weight)
    operands = product.operands(packed, product.weight.sum(0, dtype=_SUM), True)
    compute, columns = zero_may_lack(tiles.matmul_integer_tiles), product.weight.shape[1:]
    return Kernel(tuple(operands), compute, columns, epilogue=True, name="matmul_integer")


def _matmul_rows(product: _Product, target: Target) -> Kernel:
    depth, columns = product.weight.shape
    tile = choose_matmul_tile(target, MANY_ROWS, columns, _SUM, depth)
    packed = dots.pack_words(product.weight, tile.columns)
    operands = product.operands(packed, product.weight.sum(0, dtype=_SUM), True)
    compute = zero_may_lack(dots.matmul_integer_rows)
    return Kernel(tuple(operands), compute, (columns,), epilogue=True, name="matmul_integer")


INTEGER_MATMUL = Compound(
    "IntegerMatmul", lambda graph, var: _find("relax.matmul", graph, var, _rows), _matmul
)


def _find_of_activations(graph: Graph, var: relax.Var) -> Match | None:
    """A product of two tensors that are not constant, each 8 bits less a zero point."""
    call = graph.call(var, "relax.matmul")
    if call is None or dtype_of(var) != _SUM:
        return None
    left, right = call.args[:2]
    if any(isinstance(x, GenericConst) for x in (left, right)):
        return None
    sources = _shifted(graph, left), _shifted(graph, right)
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
    tile = choose_matmul_tile(target, left[-2], right[-1], _SUM, 2 * left[-1])
    if Dot.of(target, tile.lanes).depth == dots.BYTES:
        panels = partial(dots.column_word_panels, tile=tile.columns)
        return _matmul_of_words(
            match, panels, dots.matmul_integer_words, (right, tile.rows, left[-1])
        )
    return Kernel(
        (match["left"], match["right"]),
        dots.matmul_integer_pairs,
        (right, tile.rows),
        packed={0: dots.row_pairs, 1: partial(dots.column_pair_panels, tile=tile.columns)},
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
    if Dot.of(target, Machine.of(target).lanes(_SUM)).depth == dots.BYTES:
        depth = left.ty.shape.values[-1]
        compute = dots.matmul_integer_words_plain
        return _matmul_of_words(match, dots.column_words, compute, (depth,))
    return Kernel(
        (left, right),
        dots.matmul_integer_pairs_plain,
        packed={0: dots.row_pairs, 1: dots.column_pairs},
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


# --- convolutions --------------------------------------------------------------------------------


def _conv2d(match: Match, target: Target) -> Kernel | str | None:
    attrs, product = match["product"].attrs, match.detail
    if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW"):
        return None
    geometry = tuple([int(v) for v in f] for f in (attrs.strides, attrs.padding, attrs.dilation))
    groups, vector = int(attrs.groups), Machine.of(target).lanes(_SUM)
    channels = int(product.x.ty.shape.values[1])
    last = match.root.ty.shape.values[3]
    width = int(last) if isinstance(last, tirx.IntImm) else LONG_ROW
    symbolic = not all(image_dims(x.ty, batched=True) for x in (product.x, match.root))
    if groups == channels == product.weight.shape[0] and groups > 1:
        return _depthwise(product, target, vector, channels, width, geometry, symbolic)
    if not product.is_narrow:
        return "weights of nine bits"
    dense = _dense_words if symbolic else _dense
    return dense(product, target, vector, channels, width, groups, geometry)


def _depthwise(product, target, vector, channels, width, geometry, symbolic) -> Kernel | str:
    lanes = lanes_of(channels, vector)
    if lanes < MIN_LANES:
        return f"blocks of {lanes} channels"
    row_is_near = geometry[2][1] == 1 and product.weight.shape[3] > 1
    of_words = Dot.of(target, lanes).depth == dots.BYTES and product.is_narrow
    if of_words and row_is_near and not symbolic:
        return _depthwise_words(product, target, lanes, width, geometry)
    sums = product.weight.sum((1, 2, 3), dtype=_SUM).reshape(-1, lanes)
    packed = pack_depthwise_weight(product.weight, lanes)
    return Kernel(
        tuple(product.operands(packed, sums, False)),
        zero_may_lack(ops.depthwise_conv2d_integer),
        (_around(product), choose_columns(target, width, product.weight.shape[3]), *geometry),
        lanes={0: lanes},
        result_lanes=lanes,
        epilogue=True,
        name="depthwise_conv2d_integer",
    )


def _depthwise_words(product, target, lanes, width, geometry) -> Kernel:
    """By an instruction that sums four columns of a row of the window."""
    packed = dots.pack_depthwise_words(product.weight, lanes)
    # Words that become ready take as many registers as sums.
    columns = choose_columns(target, width, Machine.of(target).registers // 2 - 2)
    return Kernel(
        tuple(product.operands(packed, _sums(product, lanes), True)),
        zero_may_lack(dots.depthwise_conv2d_integer_words),
        (_around(product), product.weight.shape[3], columns, *geometry),
        lanes={0: lanes},
        result_lanes=lanes,
        epilogue=True,
        name="depthwise_conv2d_integer",
    )


def _dense(product, target, vector, channels, width, groups, geometry) -> Kernel | str:
    lanes = _result_lanes(product, vector, groups)
    dot = Dot.of(target, lanes)
    in_lanes = gcd(channels, vector)
    blocked = in_lanes % dot.depth == 0 and in_lanes >= MIN_LANES
    has_tiles = Machine.of(target).integer_tiles
    if has_tiles and channels <= vector and _has_lines(product, lanes, groups, geometry):
        return _conv2d_line_tiles(product, lanes, geometry)
    if not blocked:
        in_lanes = max(dot.depth, MIN_LANES)
    whole = _whole_groups(product, groups, in_lanes if blocked else 0, lanes)
    if isinstance(whole, str):
        return whole
    product, groups = whole
    sizes = *product.weight.shape[:2], dots.BYTES, lanes, groups
    if blocked and has_tiles and fills_tiles(*sizes):
        return _conv2d_tiles(product, in_lanes, lanes, groups, geometry)
    tile = choose_tile(target, -(-len(product.weight) // groups // lanes), width)
    packed = ops.pack_integer_weight(product.weight, in_lanes, tile.vectors * lanes, dot.depth)
    return Kernel(
        tuple(product.operands(packed, _sums(product, lanes), dot.unsigned)),
        zero_may_lack(ops.conv2d_integer),
        (_around(product), in_lanes, lanes, tile.columns, groups, *geometry, dot.unsigned),
        lanes={0: in_lanes} if blocked else {},
        result_lanes=lanes,
        epilogue=True,
        name="conv2d_integer",
    )


def _conv2d_tiles(product, in_lanes, lanes, groups, geometry) -> Kernel:
    filters = len(product.weight)
    packed = tiles.integer_filters(product.weight)
    options = lanes, filters, groups, *geometry
    return _of_tiles(product, packed, tiles.conv2d_integer_tiles, options, in_lanes, lanes)


def _conv2d_line_tiles(product, lanes, geometry) -> Kernel:
    filters, channels, _, columns = product.weight.shape
    packed = tiles.integer_filters(columns_as_channels(product.weight))
    options = columns, lanes, filters, *geometry
    return _of_tiles(product, packed, tiles.conv2d_integer_line_tiles, options, channels, lanes)


def _has_lines(product, lanes, groups, geometry) -> bool:
    """Whether the lines of a window fill tiles, with all their channels."""
    filters, channels, *window = product.weight.shape
    filled = fills_tiles(filters, channels, dots.BYTES, lanes, 1, window[1])
    return groups == 1 and filled and are_lines(window, geometry[2])


def _of_tiles(product, packed, compute, options, in_lanes, lanes) -> Kernel:
    return Kernel(
        tuple(product.operands(packed, _sums(product, lanes), True)),
        zero_may_lack(compute),
        (_around(product), *options),
        lanes={0: in_lanes},
        result_lanes=lanes,
        epilogue=True,
        name="conv2d_integer",
    )


def _dense_words(product, target, vector, channels, width, groups, geometry) -> Kernel | str:
    """Of symbolic rows or columns: the schedule of floats, on words of four channels."""
    lanes, in_lanes = _result_lanes(product, vector, groups), gcd(channels, vector)
    blocked = in_lanes % dots.BYTES == 0
    whole = _whole_groups(product, groups, in_lanes if blocked else 0, lanes)
    if isinstance(whole, str):
        return whole
    product, groups = whole
    tile = choose_tile(target, -(-len(product.weight) // groups // lanes), width)
    words = in_lanes // dots.BYTES if blocked else 1
    packed = dots.pack_filter_words(product.weight, words, lanes, tile.vectors)
    return Kernel(
        tuple(product.operands(packed, _sums(product, lanes), True)),
        zero_may_lack(dots.conv2d_integer_words),
        (_around(product), lanes, tile.columns, groups, *geometry),
        lanes={0: in_lanes} if blocked else {},
        result_lanes=lanes,
        epilogue=True,
        name="conv2d_integer",
    )


def _result_lanes(product: _Product, vector: int, groups: int) -> int:
    """The block of the result, a whole vector where few channels divide evenly."""
    lanes = lanes_of(len(product.weight), vector)
    return vector if lanes < MIN_LANES and groups == 1 else lanes


def _whole_groups(
    product: _Product, groups: int, in_lanes: int, lanes: int
) -> tuple[_Product, int] | str:
    """``product`` in groups that hold whole blocks, if need be fewer, or why there are none.

    ``in_lanes`` 0: the input is not blocked.
    """
    oc, ic = product.weight.shape[:2]
    if groups == 1 or (in_lanes and ic % in_lanes == oc // groups % lanes == 0):
        return product, groups
    merged = merge_groups(product.weight, groups, in_lanes, lanes) if in_lanes else None
    if merged is None:
        return f"{groups} groups of {ic} channels, in blocks of {in_lanes}"
    return replace(product, weight=merged[0]), merged[1]


def _sums(product: _Product, lanes: int) -> np.ndarray:
    """Of the weights of each output channel, in blocks; of those that pad them, 0."""
    oc = len(product.weight)
    padded = np.zeros(-(-oc // lanes) * lanes, _SUM)
    padded[:oc] = product.weight.sum((1, 2, 3), dtype=_SUM)
    return padded.reshape(-1, lanes)


def _around(product: _Product) -> int:
    return product.zero if isinstance(product.zero, int) else 0


INTEGER_CONV2D = Compound(
    "IntegerConv2d", lambda graph, var: _find("relax.nn.conv2d", graph, var, image_dims), _conv2d
)


def _const(array: np.ndarray) -> relax.Expr:
    return relax.const(array, array.dtype.name)
