"""Products with dequantised blocks of weights keep these as they are stored.

Before::

    y = Gemm(x, DequantizeLinear <axis = 0, block_size = 32> (w, scales, zeros), b)

After::

    y = com.microsoft.MatMulNBits <bits = 4, block_size = 32> (x, packed_w, scales, zeros) + b

and the same of ``tvm_ext.Gemm``. ``w`` is a constant of 2, 4 or 8 bits.
"""

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchContext

from ..microsoft import DOMAIN
from .rule import FUSED, Rule, attribute_refusal, constant

__all__ = ["PackedWeights", "PackedWeightsOfBatchedGemm"]

_BITS = {
    ir.DataType.INT2: 2, ir.DataType.UINT2: 2, ir.DataType.INT4: 4, ir.DataType.UINT4: 4,
    ir.DataType.INT8: 8, ir.DataType.UINT8: 8,
}  # fmt: skip
_SIGNED = frozenset({ir.DataType.INT2, ir.DataType.INT4, ir.DataType.INT8})


class PackedWeights(Rule):
    """``Gemm(x, DequantizeLinear(w), b) -> MatMulNBits(x, w) + b``."""

    domain = ""

    def __init__(self):
        super().__init__(remove_nodes=False)  # the weights may have other readers

    def pattern(self, op, x, w):
        return op.Gemm(x, w, _domain=self.domain, _allow_other_inputs=True, _outputs=["product"])

    def refusal(
        self, context: MatchContext, x: ir.Value, w: ir.Value, product: ir.Value
    ) -> str | None:
        node, cast = product.producer(), w.producer()
        if cast is None or cast.op_type != "DequantizeLinear" or cast.domain:
            return "the weights are not dequantised"
        codes, scales, *zeros = map(constant, cast.inputs)
        if codes is None or codes.ndim != 2 or cast.inputs[0].dtype not in _BITS:
            return "the weights are no constant matrix of 2, 4 or 8 bits"
        if scales is None or scales.dtype != np.float32 or any(z is None for z in zeros):
            return "scales or zero points are no constants of float32"
        along, block = _reduction(node), cast.attributes.get_int("block_size", 0)
        if not block or cast.attributes.get_int("axis", 1) % 2 != along:
            return "no blocks lie along the reduction"
        if codes.shape[along] % block:
            return "the last block is not whole"
        return attribute_refusal(node)

    def rewrite(self, op, x: ir.Value, w: ir.Value, product: ir.Value) -> ir.Value:
        node, cast = product.producer(), w.producer()
        bits, block = _BITS[cast.inputs[0].dtype], cast.attributes.get_int("block_size", 0)
        # A signed code is the unsigned one less the middle, which is the zero point by default.
        move = 1 << (bits - 1) if cast.inputs[0].dtype in _SIGNED else 0
        codes, scales, *zeros = (
            array if _reduction(node) else array.T for array in map(constant, cast.inputs)
        )
        columns, depth = codes.shape
        if not zeros and not move:
            zeros = [np.zeros_like(scales, "uint8")]
        arrays = [_packed(codes, move, bits).reshape(columns, depth // block, -1)]
        arrays += [np.ascontiguousarray(scales), *(_packed(zero, move, bits) for zero in zeros)]
        y = op.MatMulNBits(
            x, *(op.Constant(value=ir.tensor(array)) for array in arrays),
            K=depth, N=columns, bits=bits, block_size=block, _domain=DOMAIN, _version=1,
        )  # fmt: skip
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        return y if bias is None else op.Add(y, bias)


class PackedWeightsOfBatchedGemm(PackedWeights):
    """The same of ``tvm_ext.Gemm``."""

    domain = FUSED


def _reduction(node: ir.Node) -> int:
    """The axis of the weights that a product sums along."""
    return node.attributes.get_int("transB", 0)


def _packed(codes: np.ndarray, move: int, bits: int) -> np.ndarray:
    """``codes[N, K] + move`` of so many bits, ``[N, bytes]``, low bits first."""
    per_byte = 8 // bits
    whole = codes.astype("int16") + move
    whole = np.pad(whole, ((0, 0), (0, -whole.shape[1] % per_byte))).astype("uint8")
    parts = whole.reshape(len(whole), -1, per_byte) << np.arange(0, 8, bits, dtype="uint8")
    return np.bitwise_or.reduce(parts, axis=-1)
