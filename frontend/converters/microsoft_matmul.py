"""Converters for the matrix products of com.microsoft."""

import numpy as np
from tvm import relax

from tvm_ext.ops import quantized_weights as ops

from ..arithmetic import added, multiplied, scaled
from ..microsoft import activated, microsoft
from ..precision import cast, constant
from .activation import gelu
from .matmul import gemm, matmul, product
from .microsoft_activation import swiglu
from .quantization import dynamic_quantize_linear, matmul_integer
from .softmax import softmax_of_rows

# What the 16 codes stand for, in bitsandbytes' FP4 and NF4 (https://arxiv.org/abs/2305.14314).
_FP4_HALF = (0.0, 0.00520833333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_FP4 = (*_FP4_HALF, *(-level for level in _FP4_HALF))
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip


@microsoft("FusedMatMul")
def fused_matmul(bb, a, b, *, alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0):
    a, b = _turned(bb, a, transA, transBatchA), _turned(bb, b, transB, transBatchB)
    return scaled(bb, matmul(bb, a, b), alpha)


@microsoft("TransposeMatMul")
def transpose_matmul(bb, a, b, *, alpha=1.0, transA=0, transB=0):
    return fused_matmul(bb, a, b, alpha=alpha, transA=transA, transB=transB)


@microsoft("FusedGemm")
def fused_gemm(bb, a, b, c=None, *, activation="", activation_alpha=None, activation_beta=None,
               activation_gamma=None, alpha=1.0, beta=1.0, transA=0, transB=0):  # fmt: skip
    y = gemm(bb, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return activated(bb, y, activation, (activation_alpha, activation_beta, activation_gamma))


@microsoft("FusedMatMulActivation")
def fused_matmul_activation(bb, a, b, *, activation, activation_alpha=None, activation_axis=None,
                            activation_beta=None, activation_gamma=None, alpha=1.0, transA=0,
                            transB=0, transBatchA=0, transBatchB=0):  # fmt: skip
    y = fused_matmul(bb, a, b, alpha=alpha, transA=transA, transB=transB, transBatchA=transBatchA,
                     transBatchB=transBatchB)  # fmt: skip
    params = activation_alpha, activation_beta, activation_gamma
    if activation == "Softmax":
        return softmax_of_rows(bb, y, -1 if activation_axis is None else activation_axis)
    return activated(bb, y, activation, params)


@microsoft("GemmFastGelu")
def gemm_fast_gelu(bb, x, w, bias=None):
    y = matmul(bb, x, w)
    return gelu(bb, y if bias is None else added(bb, y, bias), approximate="tanh")


@microsoft("RouterGateUpProj")
def router_gate_up_proj(bb, x, w, *, activation="swiglu", activation_alpha=1.0,
                        activation_beta=0.0, limit=0.0, router_size):  # fmt: skip
    """One product: the scores of a router, and both halves of a gated layer."""
    if activation != "swiglu":
        raise NotImplementedError(f"activation {activation!r}")
    parts = bb.emit(relax.op.split(matmul(bb, x, w), [router_size], -1))
    return bb.emit(parts[0]), swiglu(bb, bb.emit(parts[1]), activation_alpha=activation_alpha,
                          activation_beta=activation_beta, limit=limit)  # fmt: skip


@microsoft("MatMulNBits")
def matmul_nbits(bb, a, b, scales, zero_points=None, g_idx=None, bias=None, *, K, N,
                 accuracy_level=0, bits=4, block_size, weight_prepacked=0):  # fmt: skip
    """Weights ``[N, K]`` in blocks of ``block_size`` along K, several to a byte, low bits first."""
    if weight_prepacked or bits not in (2, 4, 8):
        raise NotImplementedError(f"bits {bits}, weight_prepacked {weight_prepacked}")
    blocks = -(-K // block_size)
    b = _reshaped(bb, b, [N, blocks * block_size * bits // 8])
    scales = _reshaped(bb, scales, [N, blocks])
    if zero_points is not None:
        packed = bb.dtype(zero_points) == "uint8"
        width = -(-blocks * bits // 8) if packed else blocks
        zero_points = _reshaped(bb, zero_points, [N, width])
    attrs = {} if g_idx is not None else {ops.UNPACKED: [K, bits, block_size, accuracy_level]}
    weights = bb.emit_te(ops.unpacked_weights, b, scales, zero_points, g_idx, K, bits, block_size,
                         primfunc_attrs=attrs)  # fmt: skip
    y = matmul(bb, a, cast(bb, weights, bb.dtype(a)))
    return y if bias is None else added(bb, y, bias)


@microsoft("MatMulBnb4")
def matmul_bnb4(bb, a, b, absmax, *, K, N, block_size, quant_type, training_mode=0, transB=1):
    """Codes of ``[N, K]`` in one row, two to a byte, high bits first, that stand for FP4 or NF4."""
    if quant_type not in (0, 1) or training_mode:
        raise NotImplementedError(f"quant_type {quant_type}, training_mode {training_mode}")
    levels = bb.const(np.array((_FP4, _NF4)[quant_type], "float32"))
    rows = (N, K) if transB else (K, N)
    weights = bb.emit_te(ops.looked_up_weights, b, levels, absmax, rows, block_size, bool(transB))
    return matmul(bb, a, cast(bb, weights, bb.dtype(a)))


@microsoft("MatMulInteger16")
def matmul_integer_16(bb, a, b):
    dtype = "uint32" if bb.dtype(a) == bb.dtype(b) == "uint16" else "int32"
    return product(bb, cast(bb, a, dtype), cast(bb, b, dtype))


@microsoft("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(bb, a, b, b_scale, b_zero_point=None, bias=None):
    codes, a_scale, a_zero = dynamic_quantize_linear(bb, a)
    return matmul_integer_to_float(bb, codes, b, a_scale, b_scale, a_zero, b_zero_point, bias)


@microsoft("MatMulIntegerToFloat")
def matmul_integer_to_float(bb, a, b, a_scale, b_scale, a_zero_point=None, b_zero_point=None,
                            bias=None):  # fmt: skip
    total = cast(bb, matmul_integer(bb, a, b, a_zero_point, b_zero_point), bb.dtype(b_scale))
    y = multiplied(bb, total, multiplied(bb, a_scale, b_scale))
    return y if bias is None else added(bb, y, bias)


def _reshaped(bb, x, shape):
    """``x`` of another shape, and a constant still where it is one."""
    known = constant(bb, x)
    return bb.reshape(x, shape) if known is None else bb.const(known.reshape(shape))


def _turned(bb, x, last_two, batch):
    """``x`` with its first axis behind the batch axes, then the last two exchanged."""
    rank = bb.rank(x)
    if rank < 2 or not (last_two or batch):
        return x
    axes = [*range(1, rank - 1), 0, rank - 1] if batch else list(range(rank))
    if last_two:
        axes[-2:] = axes[:-3:-1]
    return bb.emit(relax.op.permute_dims(x, axes))
