"""Products of 8-bit integers as kernels that widen in registers; constant weights are packed now.

Before::

    y = R.nn.conv2d(R.subtract(R.astype(x, "int32"), zero), w)      int32, w constant
    z = R.matmul(R.astype(a, "int32"), b)

After::

    y = unblock(conv2d_integer(block(x), packed_w, sums))
    z = matmul_integer(a, packed_b, sums)

``sums`` are those of the weights, times the zero point where it is known. What makes 8 bits of the
result again is fused behind. The kernels are chosen by :mod:`.integer_conv2d` and
:mod:`.integer_matmul`; here is what both find, and hand over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import relax, tirx
from tvm.ir.expr import GenericConst
from tvm.target import Target

from tvm_ext.ops import integer_products as ops
from tvm_ext.ops.integer_dots import BYTES, PAIR
from tvm_ext.schedules.machine import Machine

from ..schedules.llvm.dot import Dot
from .compound import Match
from .facts import dtype_of, is_empty, static_dims
from .graph import Graph

__all__ = [
    "SUM",
    "ConstantProduct",
    "Dims",
    "find_product",
    "less_zero",
    "multiplies_bytes",
    "multiplies_pairs",
]

#: Of a tensor.
Dims = list[int | tirx.Expr]

#: The type of sums.
SUM = "int32"
_NARROW = ("int8", "uint8")


@dataclass(frozen=True)
class ConstantProduct:
    """``x - zero``, 8 bits each, times constant weights: int8, or int16 that hold nine bits.

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
            return [self.x, _constant(packed), _constant(sums * (self.zero + moved))]
        return [self.x, _constant(packed), _constant(sums), self.zero]


def find_product(
    operator: str, graph: Graph, var: relax.Var, dims_of: Callable[[relax.Type], Dims | None]
) -> Match | None:
    """``dims_of``: a tensor's, where they are such as the product may have."""
    call = graph.call(var, operator)
    if call is None or dtype_of(var) != SUM:
        return None
    left, right = call.args[:2]
    dims = dims_of(var.ty)
    if not isinstance(right, GenericConst) or dims is None or is_empty(dims):
        return None
    weight = _narrowed(right.value.numpy())
    if weight is None:
        return None
    source = less_zero(graph, left)
    if source is None or dims_of(source[0].ty) is None:
        return None
    product = ConstantProduct(*source, weight)
    return Match(graph, var, (var,), {"product": call, "x": product.x}, product)


def _narrowed(weight: np.ndarray) -> np.ndarray | None:
    """``weight`` as int8, or as int16 where its differences of 8 bits need nine."""
    if weight.size == 0:
        return None
    low, high = weight.min(), weight.max()
    if -128 <= low and high <= 127:
        return weight.astype("int8")
    return weight.astype("int16") if -255 <= low and high <= 255 else None


def less_zero(graph: Graph, expr: relax.Expr) -> tuple[relax.Expr, int | relax.Expr] | None:
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


def multiplies_bytes(target: Target) -> bool:
    """Whether ``target`` has an instruction that sums products of four neighbours."""
    return Dot.of(target, Machine.of(target).lanes(SUM)).depth == BYTES


def multiplies_pairs(target: Target) -> bool:
    """Whether the widest step of ``target`` is that of two neighbours."""
    return Dot.of(target, Machine.of(target).lanes(SUM)).depth == PAIR


def _constant(array: np.ndarray) -> relax.Expr:
    return relax.const(array, array.dtype.name)
