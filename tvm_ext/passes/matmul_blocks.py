"""Matrix products whose constant weights have a few bits: they are unpacked in registers.

Before::

    w = unpacked_weights(codes, scales[, zeros]);  y = R.matmul(x, w)      all three constant

After: ``y = R.call_tir(matmul_blocks, (x, words, scales[, zeros]))``. A decoder's step reads all
weights once, so their bytes are its time; float32 has eight times those of 4 bits.

Where the model or the build lets ``x`` be rounded to 8 bits, and the CPU sums products of bytes::

    r = R.call_tir(rounded_blocks, (x,));  y = R.call_tir(matmul_rounded_blocks, (r, words, ...))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from tvm import relax, tirx
from tvm.ir import GlobalVar
from tvm.ir.expr import GenericConst
from tvm.target import Target

from tvm_ext.ops import matmul_blocks as ops
from tvm_ext.ops import rounded_blocks as rounded
from tvm_ext.ops.quantized_weights import UNPACKED
from tvm_ext.schedules.llvm.matmul import MatmulTile, choose_matmul_tile

from .compound import Compound, Kernel, Match, zero_may_lack
from .facts import dtype_of
from .graph import Graph
from .integer_products import multiplies_bytes
from .tiled_matmul import MANY_ROWS

__all__ = ["MATMUL_BLOCKS", "rounded_blocks"]

_FLOAT = "float32"
_BYTES = 4  # the accuracy_level that lets rows be rounded to 8 bits


@dataclass(frozen=True)
class _Weights:
    """``(code - zero) * scale`` of ``packed[N, K * bits / 8]``, parameters ``[N, blocks]``."""

    packed: np.ndarray
    scales: np.ndarray
    given_zeros: np.ndarray | None
    bits: int
    block: int

    @property
    def columns(self) -> int:
        return len(self.packed)

    @cached_property
    def codes(self) -> np.ndarray:
        """uint8 ``[N, K]``."""
        return ops.codes_of(self.packed, self.bits)

    def tile(self, target: Target) -> MatmulTile:
        """The register tile of a product with them."""
        bytes_ = 4 * self.codes.shape[1]
        return choose_matmul_tile(target, MANY_ROWS, self.columns, _FLOAT, bytes_)

    @property
    def zeros(self) -> np.ndarray | None:
        """``[N, blocks]``, uint8 or float32; None: the middle of the range."""
        if self.given_zeros is None or self.given_zeros.dtype != np.uint8:
            return self.given_zeros
        return ops.codes_of(self.given_zeros, self.bits)[:, : self.scales.shape[1]]


def _find(graph: Graph, var: relax.Var) -> Match | None:
    product = graph.call(var, "relax.matmul")
    if product is None or dtype_of(var) != _FLOAT:
        return None
    left, right = product.args
    unpacked = graph.call(right, "relax.call_tir")
    if unpacked is None or graph.module is None or graph.reader(right) is None:
        return None
    symbol, operands = unpacked.args[:2]
    assert isinstance(symbol, GlobalVar)
    attrs = graph.module[symbol].attrs
    format_ = attrs.get(UNPACKED) if attrs else None
    if format_ is None or not all(isinstance(x, GenericConst) for x in operands):
        return None
    shape = left.ty.shape
    if shape is None or len(shape.values) < 2 or any(_is_zero(dim) for dim in shape.values):
        return None
    depth, bits, block, accuracy = (int(v) for v in format_)
    if dtype_of(left) != _FLOAT or depth % block or block % (32 // bits):
        return None
    packed, scales, *zeros = (x.value.numpy() for x in operands)
    weights = _Weights(packed, scales, zeros[0] if zeros else None, bits, block)
    return Match(graph, var, (right, var), {"left": left}, (weights, accuracy))


def _is_zero(dim: tirx.Expr) -> bool:
    return isinstance(dim, tirx.IntImm) and int(dim) == 0


def _kernel(match: Match, target: Target) -> Kernel:
    weights, _ = match.detail
    tile = weights.tile(target).columns
    arrays = [ops.pack_codes(weights.codes, weights.bits, tile)]
    arrays.append(ops.pack_parameters(weights.scales, tile))
    if weights.zeros is not None:
        moved = weights.zeros.astype(_FLOAT) - np.float32(1 << (weights.bits - 1))
        arrays.append(ops.pack_parameters(moved, tile))
    return _blocks(match["left"], arrays, weights, ops.matmul_blocks)


def _rounded_kernel(match: Match, target: Target, always: bool) -> Kernel | None:
    weights, accuracy = match.detail
    if not always and accuracy != _BYTES:
        return None
    if weights.block % rounded.LANES or not multiplies_bytes(target):
        return None
    tile = weights.tile(target).columns
    arrays = [rounded.pack_code_words(weights.codes, weights.bits, tile)]
    parameters = [x for x in (weights.scales, weights.zeros) if x is not None]
    arrays += [ops.pack_parameters(x, tile) for x in parameters]
    packed = {0: partial(rounded.rounded_blocks, block=weights.block)}
    return _blocks(match["left"], arrays, weights, rounded.matmul_rounded_blocks, packed)


def _blocks(left, arrays, weights, compute, packed=None) -> Kernel:
    return Kernel(
        (left, *(relax.const(array, array.dtype.name) for array in arrays)),
        zero_may_lack(compute),
        (weights.columns, weights.bits),
        packed=packed or {},
        epilogue=True,
        name="matmul_blocks",
    )


MATMUL_BLOCKS = Compound("MatmulBlocks", _find, _kernel)


def rounded_blocks(always: bool) -> Compound:
    """Rows rounded to 8 bits: ``always``, or where the model asks for no more accuracy."""
    return Compound("RoundedBlocks", _find, partial(_rounded_kernel, always=always))
