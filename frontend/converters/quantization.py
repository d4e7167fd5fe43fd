"""Converters for linear quantisation and for arithmetic on quantised tensors.

Integer products stay Relax operators on int32, so that the passes for matmul and conv see them;
the step back to a narrow type is one element-wise kernel.
"""

import ml_dtypes
import numpy as np
import onnx_ir as ir
from tvm import relax

from tvm_ext.ops import arithmetic
from tvm_ext.ops import quantization as ops
from tvm_ext.ops.float8 import FORMATS
from tvm_ext.ops.narrow import FLOAT4, FLOAT6, INTEGERS

from ..axes import placed
from ..broadcasting import MISFIT, demand_broadcast, demanded_dims, emit_broadcast
from ..known import as_expr
from ..precision import cast, constant
from ..run_time import demand_range
from ..table import converter
from .cast import widened
from .convolution import add_bias, convolve
from .matmul import product

_INTEGERS = ("int8", "uint8", "int16", "uint16")


@converter("QuantizeLinear", 10, 13, 19)
def quantize_linear(bb, x, y_scale, y_zero_point=None, *, axis=1, saturate=1):
    return quantize_linear_21(bb, x, y_scale, y_zero_point, axis=axis, saturate=saturate)


@converter("QuantizeLinear", 21, 23, 24, 25, 28)
def quantize_linear_21(bb, x, y_scale, y_zero_point=None, *, axis=1, block_size=0, output_dtype=0,
                       precision=0, saturate=1):  # fmt: skip
    dtype, y_scale = "uint8", widened(bb, y_scale)
    if y_zero_point is not None:
        dtype = bb.element(y_zero_point)
    elif output_dtype:
        dtype = _name(output_dtype)
    precision = _name(precision) if precision else bb.dtype(y_scale)
    if "float" not in precision:
        precision = "float32"
    axis, block = _granularity(bb, x, y_scale, y_zero_point, axis, block_size)
    bounds = _bounds(dtype)
    if dtype in FORMATS and not saturate:
        bounds = None
    factor = constant(bb, y_scale)
    if factor is not None and (factor == 1).all():
        y_scale = None
    plain = y_scale is None and dtype in _INTEGERS and precision == bb.dtype(x) == "float32"
    y = bb.emit_te(
        ops.quantize_linear, x, y_scale, y_zero_point, axis, block, dtype, bounds, precision,
        primfunc_attrs=_coded(dtype) if plain else {},
    )  # fmt: skip
    return bb.of_element(y, dtype)


@converter("DequantizeLinear", 10, 13, 19)
def dequantize_linear(bb, x, x_scale, x_zero_point=None, *, axis=1):
    return dequantize_linear_21(bb, x, x_scale, x_zero_point, axis=axis)


@converter("DequantizeLinear", 21, 23, 24, 25, 28)
def dequantize_linear_21(bb, x, x_scale, x_zero_point=None, *, axis=1, block_size=0,
                         output_dtype=0):  # fmt: skip
    x_scale = widened(bb, x_scale)
    dtype = _name(output_dtype) if output_dtype else bb.dtype(x_scale)
    axis, block = _granularity(bb, x, x_scale, x_zero_point, axis, block_size)
    code = bb.element(x)
    known = [None if v is None else constant(bb, v) for v in (x, x_scale, x_zero_point)]
    plain = code in (*_INTEGERS, "int32") and dtype == "float32" and not block
    if plain and known[0] is not None and known[1] is not None:
        if x_zero_point is None or known[2] is not None:
            return bb.const(_dequantized(*known, axis))
    return bb.emit_te(
        ops.dequantize_linear, x, x_scale, x_zero_point, axis, block, code, dtype,
        primfunc_attrs=_coded(code) if plain and code in _INTEGERS else {},
    )  # fmt: skip


def _coded(dtype):
    """The attributes of a kernel between floats and integers of type ``dtype``."""
    return {ops.CODES: dtype}


def _dequantized(x, scale, zero, axis):
    """What :func:`ops.dequantize_linear` computes, of arrays; a model may have hundreds of them."""
    shape = [-1 if k == axis else 1 for k in range(x.ndim)] if scale.size > 1 else []
    value = x.astype("float32")
    if zero is not None:
        value = value - zero.astype("float32").reshape(shape)
    return value * scale.astype("float32").reshape(shape)


@converter("DynamicQuantizeLinear", 11)
def dynamic_quantize_linear(bb, x):
    # Three kernels: each has a form of its own, and the last is element-wise.
    low, high = _both(bb, bb.emit_te(ops.extremes, x))
    scale, zero = _both(bb, bb.emit_te(ops.dynamic_parameters, low, high))
    y = bb.emit_te(ops.quantize_linear, x, scale, zero, 0, 0, "uint8", (0, 255), "float32")
    return y, scale, zero


def _both(bb, pair):
    return [bb.emit(relax.TupleGetItem(pair, k)) for k in range(2)]


@converter("MatMulInteger", 10)
def matmul_integer(bb, a, b, a_zero_point=None, b_zero_point=None):
    return _integer_product(bb, a, b, a_zero_point, b_zero_point)


@converter("QLinearMatMul", 10, 21)
def qlinear_matmul(bb, a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point):
    if "float8" in bb.dtype(a) + bb.dtype(b):
        total = _float_product(bb, a, b, a_zero_point, b_zero_point)
    else:
        total = _integer_product(bb, a, b, a_zero_point, b_zero_point)
    scales = _rows(bb, a_scale, bb.rank(a)), b_scale, _rows(bb, y_scale, bb.rank(a))
    return _requantized(bb, total, *scales, _rows(bb, y_zero_point, bb.rank(a)))


@converter("ConvInteger", 10)
def conv_integer(bb, x, w, x_zero_point=None, w_zero_point=None, *, auto_pad="NOTSET",
                 dilations=None, group=1, kernel_shape=None, pads=None, strides=None):  # fmt: skip
    rows = bb.rank(x) == 3  # kernels of integers are of images
    if rows:
        x, w = (_with_row(bb, value) for value in (x, w))
        dilations, kernel_shape, strides = (
            None if each is None else [1, *each] for each in (dilations, kernel_shape, strides)
        )
        pads = None if pads is None else [0, pads[0], 0, pads[1]]
    # Pads are the zero point, hence zeros once it is subtracted.
    x = _shifted(bb, x, x_zero_point)
    w = _shifted(bb, w, _along(bb, w_zero_point, 0, bb.rank(w)))
    y = convolve(bb, x, w, auto_pad, dilations, group, kernel_shape, pads, strides, "int32")
    n, m, *_, columns = bb.shape(y)
    return bb.reshape(y, [n, m, columns]) if rows else y


def _with_row(bb, x):
    """``x[.., .., W]`` as an image of one row."""
    first, second, columns = bb.shape(x)
    array = constant(bb, x)
    if array is not None:
        return bb.const(array.reshape(first, second, 1, columns))
    return bb.reshape(x, [first, second, 1, columns])


@converter("QLinearConv", 10)
def qlinear_conv(bb, x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point,
                 b=None, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None,
                 pads=None, strides=None):  # fmt: skip
    total = conv_integer(bb, x, w, x_zero_point, w_zero_point, auto_pad=auto_pad,
                         dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads,
                         strides=strides)  # fmt: skip
    w_scale = _along(bb, w_scale, 1, bb.rank(x))  # a scale per output channel
    return _requantized(bb, add_bias(bb, total, b), x_scale, w_scale, y_scale, y_zero_point)


def _integer_product(bb, a, b, a_zero, b_zero):
    a = _shifted(bb, a, None if a_zero is None else _rows(bb, a_zero, bb.rank(a)))
    return product(bb, a, _shifted(bb, b, b_zero))


def _float_product(bb, a, b, a_zero, b_zero):
    """Of float8, whose fractions integers do not hold."""
    pairs = (a, _rows(bb, a_zero, bb.rank(a))), (b, b_zero)
    wide = [[cast(bb, widened(bb, value), "float32") for value in pair] for pair in pairs]
    return product(bb, *(emit_broadcast(bb, relax.op.subtract, arithmetic.sub, *w) for w in wide))


def _shifted(bb, x, zero):
    """``x - zero`` in int32."""
    wide = cast(bb, x, "int32")
    array = None if zero is None else constant(bb, zero)
    if zero is None or (array is not None and not array.any()):
        return wide
    known = constant(bb, wide)
    if known is not None and array is not None:
        return bb.const(known - array.astype("int32"))
    return emit_broadcast(bb, relax.op.subtract, arithmetic.sub, wide, cast(bb, zero, "int32"))


def _requantized(bb, total, left_scale, right_scale, y_scale, y_zero):
    dtype, scales = bb.dtype(y_zero), (left_scale, right_scale, y_scale)
    arrays = [constant(bb, scale) for scale in scales]
    if all(array is not None for array in arrays):
        left, right, y = (array.astype("float32") for array in arrays)
        factor = bb.const(left * right / y)
    else:
        left, right, y = (cast(bb, scale, "float32") for scale in scales)
        product = emit_broadcast(bb, relax.op.multiply, arithmetic.mul, left, right)
        factor = emit_broadcast(bb, relax.op.divide, arithmetic.div, product, y)
    for operand in (factor, y_zero):
        demand_broadcast(bb, operand, bb.shape(total))
    return bb.emit_te(ops.requantize, total, factor, y_zero, dtype, _bounds(dtype))


def _rows(bb, parameter, rank):
    """A per-row vector ``[M]`` of a matrix as ``[M, 1]``; everything else broadcasts already."""
    if bb.rank(parameter) != 1 or bb.shape(parameter) == [1] or rank < 2:
        return parameter
    return bb.reshape(parameter, [bb.shape(parameter)[0], 1])


def _along(bb, parameter, axis, rank):
    """A vector ``[M]`` with dims of 1 around, as ``axis`` of ``rank``; scalars and None stay."""
    if parameter is None or bb.rank(parameter) == 0:
        return parameter
    shape = [*[1] * axis, bb.shape(parameter)[0], *[1] * (rank - axis - 1)]
    array = constant(bb, parameter)
    if array is not None:
        return bb.const(array.reshape(shape))
    return bb.reshape(parameter, shape)


def _granularity(bb, x, scale, zero_point, axis, block_size):
    """The axis that a scale goes along, and the block size (0: not blocked)."""
    if zero_point is not None and bb.rank(scale) > 1:
        bb.demand(zero_point, bb.shape(scale))
    if bb.rank(scale) == 0 or bb.shape(scale) == [1]:
        if zero_point is not None and bb.rank(zero_point):
            bb.demand(zero_point, [1])
        return 0, 0
    axis = placed(axis, bb.rank(x))
    if bb.rank(scale) == 1 and not block_size:
        extent = bb.shape(x)[axis : axis + 1]
        for operand in (scale, zero_point):
            if operand is not None and bb.rank(operand) == 1:
                wanted = demanded_dims(bb, bb.shape(operand), extent)
                if wanted is not None:
                    bb.demand(operand, wanted, MISFIT)
        return axis, 0
    if bb.rank(scale) != bb.rank(x) or not block_size:
        raise NotImplementedError(f"scale of shape {bb.shape(scale)} with block_size {block_size}")
    demand_blocks(bb, bb.shape(scale), bb.shape(x), axis, block_size, "the scale")
    return axis, block_size


def demand_blocks(bb, blocks, dims, axis, block_size, what):
    """Assert that there are as many ``blocks`` as ``dims`` have, of ``block_size`` along ``axis``.

    Raises:
        ValueError: there are fewer, or along other axes.
    """
    if len(blocks) != len(dims):
        raise ValueError(f"{what} has {len(blocks)} axes, not {len(dims)}")
    for k, (number, extent) in enumerate(zip(blocks, dims, strict=True)):
        needed = bb.simplify(-(-as_expr(extent) // (block_size if k == axis else 1)))
        demand_range(bb, number, f"axis {k} of {what}", least=needed)


def _name(onnx_dtype):
    """The numpy name of an ONNX type number."""
    return np.dtype(ir.DataType(onnx_dtype).numpy()).name


def _bounds(dtype):
    if dtype in _INTEGERS:
        info = np.iinfo(dtype)
        return info.min, info.max
    if dtype in INTEGERS:
        info = ml_dtypes.iinfo(dtype)
        return int(info.min), int(info.max)
    if dtype in (FLOAT4, *FLOAT6):
        return None
    if dtype in FORMATS:
        return -FORMATS[dtype].largest, FORMATS[dtype].largest
    raise NotImplementedError(f"quantised type {dtype}")
