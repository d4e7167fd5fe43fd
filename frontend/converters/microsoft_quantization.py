"""Converters for the quantised operators of com.microsoft.

All but the matrix product compute in float32 between a dequantisation and a quantisation, which
fuse with it into one kernel.
"""

import numpy as np
from tvm import relax

from tvm_ext.ops import activation, arithmetic
from tvm_ext.ops.quantized_weights import gathered_weights

from ..arithmetic import multiplied, subtracted
from ..axes import placed, placed_all
from ..broadcasting import emit_broadcast
from ..indices import demand_indices
from ..microsoft import microsoft
from ..precision import accumulator, cast, constant
from .logical import where
from .matmul import transposed
from .pooling import average_pool, global_average_pool, max_pool
from .quantization import (
    demand_blocks,
    dequantize_linear,
    matmul_integer,
    qlinear_conv,
    quantize_linear,
)
from .softmax import softmax, softmax_of_rows


@microsoft("QuantizeLinear")
def quantize_linear_ms(bb, x, y_scale, y_zero_point=None, *, axis=1):
    return quantize_linear(bb, x, y_scale, y_zero_point, axis=axis)


@microsoft("DequantizeLinear")
def dequantize_linear_ms(bb, x, x_scale, x_zero_point=None, *, axis=1):
    return dequantize_linear(bb, x, x_scale, x_zero_point, axis=axis)


@microsoft("QLinearAdd")
def qlinear_add(bb, a, a_scale, a_zero_point, b, b_scale, b_zero_point, c_scale,
                c_zero_point=None):  # fmt: skip
    pair = ((a, a_scale, a_zero_point), (b, b_scale, b_zero_point))
    return _of_pair(bb, relax.op.add, arithmetic.add, pair, c_scale, c_zero_point)


@microsoft("QLinearMul")
def qlinear_mul(bb, a, a_scale, a_zero_point, b, b_scale, b_zero_point, c_scale,
                c_zero_point=None):  # fmt: skip
    pair = ((a, a_scale, a_zero_point), (b, b_scale, b_zero_point))
    return _of_pair(bb, relax.op.multiply, arithmetic.mul, pair, c_scale, c_zero_point)


def _of_pair(bb, op, compute, pair, scale, zero_point):
    a, b = (dequantize_linear(bb, *quantized) for quantized in pair)
    return _quantized(bb, emit_broadcast(bb, op, compute, a, b), scale, zero_point, pair[0][0])


@microsoft("QLinearSigmoid")
def qlinear_sigmoid(bb, x, x_scale, x_zero_point, y_scale, y_zero_point=None):
    y = bb.emit_te(activation.sigmoid, dequantize_linear(bb, x, x_scale, x_zero_point))
    return _quantized(bb, y, y_scale, y_zero_point, x)


@microsoft("QLinearLeakyRelu")
def qlinear_leaky_relu(bb, x, x_scale, x_zero_point, y_scale, y_zero_point=None, *, alpha=0.01):
    y = dequantize_linear(bb, x, x_scale, x_zero_point)
    y = bb.emit_te(activation.leaky_relu, y, alpha=alpha)
    return _quantized(bb, y, y_scale, y_zero_point, x)


@microsoft("QLinearAveragePool")
def qlinear_average_pool(bb, x, x_scale, x_zero_point, y_scale, y_zero_point=None, *,
                         auto_pad="NOTSET", ceil_mode=0, channels_last=0, count_include_pad=0,
                         kernel_shape, pads=None, strides=None):  # fmt: skip
    y = _channels_second(bb, dequantize_linear(bb, x, x_scale, x_zero_point), channels_last)
    y = average_pool(bb, y, auto_pad=auto_pad, ceil_mode=ceil_mode, kernel_shape=kernel_shape,
                     count_include_pad=count_include_pad, pads=pads, strides=strides)  # fmt: skip
    return _quantized(bb, _channels_last(bb, y, channels_last), y_scale, y_zero_point, x)


@microsoft("GatherBlockQuantized")
def gather_block_quantized(bb, data, indices, scales, zero_points=None, *, bits=4, block_size=128,
                           gather_axis=0, quantize_axis=1):  # fmt: skip
    """Bytes hold several codes; int4 and uint4 are whole elements, as everywhere."""
    element, rank = bb.element(data), bb.rank(data)
    if "float" in element:
        raise NotImplementedError(f"data of type {element}")
    packed = element == "uint8"
    if packed and bits not in (2, 4, 8):
        raise NotImplementedError(f"bits {bits}")
    take, along = placed(gather_axis, rank), placed(quantize_axis, rank)
    if packed and take == rank - 1:
        raise NotImplementedError(f"gather_axis {gather_axis}, along which codes are packed")
    if block_size < 1:
        raise NotImplementedError(f"block_size {block_size}")
    codes, dims = 8 // bits if packed else 1, bb.shape(data)
    dims[-1] = bb.simplify(dims[-1] * codes)
    demand_blocks(bb, bb.shape(scales), dims, along, block_size, "the scales")
    if zero_points is not None:
        blocks = bb.shape(zero_points)
        blocks[-1] = bb.simplify(blocks[-1] * codes)
        demand_blocks(bb, blocks, dims, along, block_size, "the zero points")
    demand_indices(bb, indices, bb.shape(data)[take], f"an index on axis {take}")
    return bb.emit_te(gathered_weights, data, indices, scales, zero_points, take, along, block_size,
                      bits if packed else None, accumulator(bb.dtype(scales)),
                      1 << (bits - 1) if packed else 0)  # fmt: skip


@microsoft("NhwcMaxPool")
def nhwc_max_pool(bb, x, *, auto_pad="NOTSET", ceil_mode=0, dilations=None, kernel_shape,
                  pads=None, strides=None):  # fmt: skip
    y = max_pool(bb, _channels_second(bb, x, True), auto_pad=auto_pad, ceil_mode=ceil_mode,
                 dilations=dilations, kernel_shape=kernel_shape, pads=pads,
                 strides=strides)  # fmt: skip
    return _channels_last(bb, y[0] if isinstance(y, tuple) else y, True)


@microsoft("QLinearConv")
def qlinear_conv_1(bb, x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point,
                   b=None, *, auto_pad="NOTSET", channels_last=0, dilations=None, group=1,
                   kernel_shape=None, pads=None, strides=None):  # fmt: skip
    """The weights have their channels second in any case."""
    x = _channels_second(bb, x, channels_last)
    y = qlinear_conv(bb, x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point,
                     b, auto_pad=auto_pad, dilations=dilations, group=group,
                     kernel_shape=kernel_shape, pads=pads, strides=strides)  # fmt: skip
    return _channels_last(bb, y, channels_last)


@microsoft("QLinearWhere")
def qlinear_where(bb, condition, x, x_scale, x_zero_point, y, y_scale, y_zero_point, z_scale,
                  z_zero_point):  # fmt: skip
    parts = ((x, x_scale, x_zero_point), (y, y_scale, y_zero_point))
    chosen = where(bb, condition, *(dequantize_linear(bb, *part) for part in parts))
    return _quantized(bb, chosen, z_scale, z_zero_point, x)


@microsoft("QLinearGlobalAveragePool")
def qlinear_global_average_pool(bb, x, x_scale, x_zero_point, y_scale, y_zero_point, *,
                                channels_last=0):  # fmt: skip
    y = _channels_second(bb, dequantize_linear(bb, x, x_scale, x_zero_point), channels_last)
    y = _channels_last(bb, global_average_pool(bb, y), channels_last)
    return _quantized(bb, y, y_scale, y_zero_point, x)


@microsoft("QLinearConcat")
def qlinear_concat(bb, y_scale, y_zero_point, *inputs, axis):
    """``inputs`` are data, scale and zero point of one tensor after the other."""
    triples = zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    parts = [dequantize_linear(bb, *quantized) for quantized in triples]
    return _quantized(bb, bb.emit(relax.op.concat(parts, axis)), y_scale, y_zero_point, inputs[0])


@microsoft("QLinearSoftmax")
def qlinear_softmax(bb, x, x_scale, x_zero_point, y_scale, y_zero_point, *, axis=-1, opset):
    """Before opset 13 the axes from ``axis`` on form one row."""
    y = dequantize_linear(bb, x, x_scale, x_zero_point)
    function = softmax_of_rows if opset < 13 else softmax
    return _quantized(bb, function(bb, y, axis), y_scale, y_zero_point, x)


@microsoft("QLinearReduceMean")
def qlinear_reduce_mean(bb, x, x_scale, x_zero_point, y_scale, y_zero_point, *, axes, keepdims):
    y = bb.emit(relax.op.mean(dequantize_linear(bb, x, x_scale, x_zero_point),
                              placed_all(axes, bb.rank(x)), bool(keepdims)))  # fmt: skip
    return _quantized(bb, y, y_scale, y_zero_point, x)


@microsoft("ReduceSumInteger")
def reduce_sum_integer(bb, x, *, axes, keepdims):
    """Of 8-bit integers, in 32 bits."""
    wide = cast(bb, x, "int32" if bb.dtype(x) == "int8" else "uint32")
    return bb.emit(relax.op.sum(wide, placed_all(axes, bb.rank(x)), bool(keepdims)))


@microsoft("MulInteger")
def mul_integer(bb, a, a_zero_point, b, b_zero_point=None):
    """Less their zero points, in int32."""
    a, b = (
        wide if zero is None else subtracted(bb, wide, cast(bb, zero, "int32"))
        for wide, zero in (
            (cast(bb, a, "int32"), a_zero_point),
            (cast(bb, b, "int32"), b_zero_point),
        )
    )
    return multiplied(bb, a, b)


@microsoft("QGemm")
def qgemm(bb, a, a_scale, a_zero_point, b, b_scale, b_zero_point, c=None, y_scale=None,
          y_zero_point=None, *, alpha=1.0, transA=0, transB=0):  # fmt: skip
    """``c`` is an int32 of scale ``alpha * a_scale * b_scale``; without ``y_scale``, y is float."""
    a = transposed(bb, a) if transA else a
    b = transposed(bb, b) if transB else b
    total = matmul_integer(bb, a, b, a_zero_point, b_zero_point)
    if c is not None:
        total = emit_broadcast(bb, relax.op.add, arithmetic.add, total, c)
    scale = emit_broadcast(bb, relax.op.multiply, arithmetic.mul, a_scale, b_scale)
    scale = bb.emit(relax.op.multiply(scale, bb.const(alpha, "float32")))
    wide = cast(bb, total, "float32")
    y = emit_broadcast(bb, relax.op.multiply, arithmetic.mul, wide, scale)
    return y if y_scale is None else _quantized(bb, y, y_scale, y_zero_point, a)


def _quantized(bb, y, scale, zero, like):
    """``y`` quantised; without a zero point as the type of ``like``."""
    zero = bb.const(np.zeros((), bb.dtype(like))) if zero is None else zero
    known = constant(bb, scale)
    if known is not None and known.size == 1 and 1e-30 < known.item() < 1e30:
        # A division costs ten products. With a dim, the factor is no part of the kernel.
        inverse = (np.float32(1) / known).reshape([1] * min(bb.rank(y), 1))
        y = bb.emit(relax.op.multiply(y, bb.const(inverse)))
        scale = bb.const(np.ones_like(known))
    return quantize_linear(bb, y, scale, zero)


def _channels_second(bb, x, channels_last):
    last = bb.rank(x) - 1
    return bb.emit(relax.op.permute_dims(x, [0, last, *range(1, last)])) if channels_last else x


def _channels_last(bb, x, channels_last):
    last = bb.rank(x) - 1
    return bb.emit(relax.op.permute_dims(x, [0, *range(2, last + 1), 1])) if channels_last else x
