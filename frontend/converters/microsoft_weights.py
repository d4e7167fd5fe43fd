"""Converters for products of com.microsoft with weights of a few bits, and what goes with them."""

import onnx_ir as ir
from tvm import relax

from tvm_ext.ops import activation as functions
from tvm_ext.ops import quantized_weights as ops

from ..arithmetic import added, multiplied
from ..microsoft import microsoft
from ..precision import cast
from ..run_time import demand_range
from .activation import gelu
from .cast import cast as cast_to
from .cast import widened
from .matmul import gemm, matmul
from .microsoft_matmul import matmul_nbits
from .microsoft_normalization import rms_normalized

_GATES = {
    "silu": functions.silu, "swish": functions.silu, "relu": functions.relu,
    "gelu": functions.gelu, "sigmoid": functions.sigmoid,
}  # fmt: skip


@microsoft("MatMulNBitsMlp")
def matmul_nbits_mlp(bb, a, skip, norm_scale, gate_b, gate_scales, gate_bias, up_b, up_scales,
                     up_bias=None, *, K, N, accuracy_level=0, activation, bits=4, block_size,
                     epsilon=1e-5):  # fmt: skip
    """A gated layer, of the normalised ``a``, or of what ``skip`` makes of it."""
    if activation not in _GATES:
        raise NotImplementedError(f"activation {activation!r}")
    rows, total = _normalised(bb, a, skip, norm_scale, epsilon)
    options = {"K": K, "N": N, "accuracy_level": accuracy_level, "bits": bits,
               "block_size": block_size}  # fmt: skip
    gate, up = (
        matmul_nbits(bb, rows, b, scales, bias=bias, **options)
        for b, scales, bias in ((gate_b, gate_scales, gate_bias), (up_b, up_scales, up_bias))
    )
    return multiplied(bb, bb.emit_te(_GATES[activation], gate), up), total


@microsoft("MatMulNBitsQkv")
def matmul_nbits_qkv(bb, a, skip, norm_scale, q_b, q_scales, q_bias, k_b, k_scales, k_bias, v_b,
                     v_scales, v_bias=None, *, K, Nkv, Nq, accuracy_level=0, bits=4, block_size,
                     epsilon=1e-6):  # fmt: skip
    """Queries, keys and values of one normalised input."""
    rows, total = _normalised(bb, a, skip, norm_scale, epsilon)
    layers = (q_b, q_scales, q_bias, Nq), (k_b, k_scales, k_bias, Nkv), (v_b, v_scales, v_bias, Nkv)
    options = {"K": K, "accuracy_level": accuracy_level, "bits": bits, "block_size": block_size}
    products = (
        matmul_nbits(bb, rows, b, scales, bias=bias, N=columns, **options)
        for b, scales, bias, columns in layers
    )
    return *products, total


def _normalised(bb, a, skip, scale, epsilon):
    """The rows of the products, and the sum that they are made of."""
    total = a if skip is None else added(bb, a, skip)
    return (total if scale is None else rms_normalized(bb, total, scale, epsilon)), total


@microsoft("MatMulNBitsQLoRA")
def matmul_nbits_qlora(bb, x, w, scales, lora_a, lora_a_scales, lora_b, lora_b_scales, *, K, N,
                       accuracy_level=0, bits=4, block_size=32, lora_bits=8,
                       lora_block_size=32):  # fmt: skip
    """A product, plus one through an adapter of low rank; without weights it adds nothing."""
    y = matmul_nbits(bb, x, w, scales, K=K, N=N, accuracy_level=accuracy_level, bits=bits,
                     block_size=block_size)  # fmt: skip
    rank = bb.shape(lora_a)[0]
    if bb.shape(lora_b)[1] == 0 or rank == 0:
        return y
    options = {"bits": lora_bits, "block_size": lora_block_size}
    down = matmul_nbits(bb, x, lora_a, lora_a_scales, K=K, N=rank, **options)
    return added(bb, y, matmul_nbits(bb, down, lora_b, lora_b_scales, K=rank, N=N, **options))


@microsoft("MatMulBlockQuantizedFp4Weight")
def matmul_fp4_weight(bb, a, b, weight_scale, weight_scale_2, input_scale=None, bias=None, *,
                      block_size=16):  # fmt: skip
    """NVFP4: two float4 to a byte, low one first, a float8 scale (as a byte) per block, one of all.

    ``input_scale`` is for products of float4 only.
    """
    weights = bb.emit_te(ops.float4_weights, b, weight_scale, weight_scale_2, block_size)
    y = matmul(bb, a, cast(bb, weights, bb.dtype(a)))
    return y if bias is None else added(bb, y, bias)


@microsoft("MatMulBlockQuantizedFp8Weight")
def matmul_fp8_weight(bb, a, b, b_scale, a_scale=None, bias=None, *, block_size=128):
    """Weights ``[N, K]`` of float8 with a scale per block along K; ``a_scale`` rounds ``a`` too."""
    weights = bb.emit_te(ops.scaled_weights, widened(bb, b), b_scale, block_size)
    rows = a
    if a_scale is not None:
        wide = bb.emit(relax.op.divide(cast(bb, a, "float32"), a_scale))
        codes = widened(bb, cast_to(bb, wide, to=ir.DataType.FLOAT8E4M3FN))
        rows = cast(bb, multiplied(bb, codes, a_scale), bb.dtype(a))
    y = matmul(bb, rows, cast(bb, weights, bb.dtype(a)))
    return y if bias is None else added(bb, y, bias)


@microsoft("GemmFloat8")
def gemm_float8(bb, a, b, c=None, scale_a=None, scale_b=None, scale_y=None, *, activation=None,
                alpha=1.0, beta=0.0, dtype=1, transA=0, transB=0):  # fmt: skip
    """``activation(alpha a b + beta c)`` of floats of any width, in float32."""
    if scale_y is not None or activation not in (None, "NONE", "RELU", "GELU"):
        raise NotImplementedError(f"a scale of the result, or activation {activation!r}")
    a, b = (
        wide if scale is None else multiplied(bb, wide, scale)
        for wide, scale in ((_single(bb, a), scale_a), (_single(bb, b), scale_b))
    )
    c = None if c is None else _single(bb, c)
    y = gemm(bb, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    if activation == "RELU":
        y = bb.emit_te(functions.relu, y)
    elif activation == "GELU":
        y = gelu(bb, y)
    return cast_to(bb, y, to=dtype)


def _single(bb, x):
    return cast(bb, widened(bb, x), "float32")


@microsoft("MatMulFpQ4")
def matmul_fp_q4(bb, a, b, b_shape, *, blk_quant_type=1):
    """Of each column, blocks of 32 elements along K: a scale, in type 1 a zero point, codes."""
    if blk_quant_type not in (0, 1):
        raise NotImplementedError(f"blk_quant_type {blk_quant_type}")
    depth, columns = bb.ints(b_shape, "B_shape")
    needed = ops.blob_bytes(depth, columns, blk_quant_type == 1)
    demand_range(bb, bb.shape(b)[0], "the number of bytes", least=needed)
    weights = bb.emit_te(ops.blob_weights, b, depth, columns, blk_quant_type == 1)
    return matmul(bb, a, weights)
