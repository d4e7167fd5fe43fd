"""Matrix products whose constant weights have a few bits: they are unpacked in registers.

Before::

    w = unpacked_weights(codes, scales[, zeros]);  y = R.matmul(x, w)      all three constant

After: ``y = R.call_tir(matmul_blocks, (x, words, scales[, zeros]))``. A decoder's step reads all
weights once, so their bytes are its time; float32 has eight times those of 4 bits.
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import GlobalVar
from tvm.ir.expr import GenericConst
from tvm.target import Target

from tvm_ext.ops import matmul_blocks as ops
from tvm_ext.ops.quantized_weights import UNPACKED
from tvm_ext.schedules.llvm.matmul import choose_matmul_tile

from .compound import Compound, Kernel, Match
from .facts import dtype_of
from .graph import Graph
from .tiled_matmul import MANY_ROWS

__all__ = ["MATMUL_BLOCKS"]

_FLOAT = "float32"


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
    depth, bits, block = (int(v) for v in format_)
    if dtype_of(left) != _FLOAT or depth % block or block % (32 // bits):
        return None
    arrays = [x.value.numpy() for x in operands]
    return Match(graph, var, (right, var), {"left": left}, (arrays, bits))


def _is_zero(dim: tirx.Expr) -> bool:
    return isinstance(dim, tirx.IntImm) and int(dim) == 0


def _kernel(match: Match, target: Target) -> Kernel:
    (packed, scales, *zeros), bits = match.detail
    codes, columns = ops.codes_of(packed, bits), len(packed)
    tile = choose_matmul_tile(target, MANY_ROWS, columns, _FLOAT, 4 * codes.shape[1]).columns
    operands = [match["left"], relax.const(ops.pack_codes(codes, bits, tile), "int32")]
    operands.append(relax.const(ops.pack_parameters(scales, tile), _FLOAT))
    for zero in zeros:
        if zero.dtype == np.uint8:
            zero = ops.codes_of(zero, bits)[:, : scales.shape[1]]
        moved = zero.astype(_FLOAT) - np.float32(1 << (bits - 1))
        operands.append(relax.const(ops.pack_parameters(moved, tile), _FLOAT))
    return Kernel(tuple(operands), _computed, (columns, bits), epilogue=True, name="matmul_blocks")


def _computed(x, words, scales, *rest):
    zeros, options = (rest[0], rest[1:]) if isinstance(rest[0], te.Tensor) else (None, rest)
    return ops.matmul_blocks(x, words, scales, zeros, *options)


MATMUL_BLOCKS = Compound("MatmulBlocks", _find, _kernel)
