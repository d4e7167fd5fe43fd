"""Converters for Fourier transforms, their windows and mel filter banks."""

import numpy as np
import onnx_ir as ir
from tvm import relax

from tvm_ext.ops import shape as shapes
from tvm_ext.ops import signal as ops

from ..axes import placed
from ..run_time import demand_range
from ..table import converter
from .shape import around_axis, reshaped, scalar, te_sizes

# The coefficients of the cosine terms.
_WINDOWS = {
    "HannWindow": (0.5, 0.5),
    "HammingWindow": (25 / 46, 21 / 46),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


def _register(op_type, coefficients):
    @converter(op_type, 17)
    def window(bb, size, *, output_datatype=1, periodic=1):
        return bb.emit_te(ops.cosine_window, scalar(bb, size, "size"), coefficients, bool(periodic),
                          _name(output_datatype))  # fmt: skip


for _op_type, _coefficients in _WINDOWS.items():
    _register(_op_type, _coefficients)


@converter("DFT", 17)
def dft_17(bb, x, dft_length=None, *, axis=1, inverse=0, onesided=0):
    return _dft(bb, x, dft_length, bb.const(np.array(axis)), inverse, onesided)


@converter("DFT", 20)
def dft(bb, x, dft_length=None, axis=None, *, inverse=0, onesided=0):
    axis = bb.const(np.array(-2)) if axis is None else axis
    return _dft(bb, x, dft_length, axis, inverse, onesided)


def _dft(bb, x, dft_length, axis, inverse, onesided):
    """Along a scalar tensor ``axis``: as [before, along, after, parts] every axis is one case."""
    *dims, parts = bb.shape(x)
    least = 2 if inverse and onesided else 1
    demand_range(bb, parts, "the last axis, of real and imaginary parts,", least, most=2)
    rank = len(dims) + 1
    around = around_axis(bb, axis, dims, rank)
    rows = reshaped(bb, x, [*around, parts])
    length = around[1] if dft_length is None else scalar(bb, dft_length, "dft_length", 1)
    real = bool(inverse and onesided)
    if real and dft_length is None:
        length = 2 * (around[1] - 1)
    bins = length // 2 + 1 if onesided and not real else length
    factors = _factors(length, bool(inverse), parts)
    if factors is not None:
        y = _by_factors(bb, rows, factors, bins, real)
    elif real:
        y = bb.emit_te(ops.inverse_real_dft, rows, 1, length)
    else:
        y = bb.emit_te(ops.dft, rows, 1, length, bins, bool(inverse))
    return reshaped(bb, y, [*_with_dim(bb, axis, bb.shape(y)[1], dims, rank), bb.shape(y)[3]])


def _factors(length, inverse, parts):
    """How to transform so many points by matrix products; None where sizes are not known."""
    known = isinstance(length, int) and isinstance(parts, int) and length > 0
    return ops.Factors.of(length, inverse) if known else None


def _by_factors(bb, x, factors, bins, real):
    """The transform of ``x[before, n, after, parts]``; ``real``: of its half, without a rest."""
    before, extent, after, parts = bb.shape(x)
    if after != 1:
        x = bb.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
    x = reshaped(bb, x, [bb.simplify(before * after), extent, parts])
    y, results = bb.emit_te(ops.spread, x, factors.rows, factors.columns, real), 1 if real else 2
    if factors.rows > 1:
        y = bb.emit(relax.op.matmul(y, bb.const(factors.first(parts))))
        y, parts = bb.emit_te(ops.twisted, y, bb.const(factors.twist())), 2
    else:
        y = reshaped(bb, y, [bb.shape(y)[0], 1, factors.columns * parts])
    y = bb.emit(relax.op.matmul(y, bb.const(factors.second(parts, bins, results))))
    y = bb.emit_te(ops.collected, y, factors.rows, bins, results, bb.dtype(x))
    y = reshaped(bb, y, [before, after, bins, results])
    if after != 1:
        return bb.emit(relax.op.permute_dims(y, [0, 2, 1, 3]))
    return reshaped(bb, y, [before, bins, after, results])


def _with_dim(bb, axis, size, dims, rank):
    """``dims`` with ``size`` at the scalar tensor ``axis``."""
    if bb.static(axis) is None:
        size, *dims = te_sizes([size, *dims])
        whole = bb.emit_te(shapes.with_dim, axis, size, *dims, rank=rank)
        return bb.dims(whole, least=None)
    at = placed(bb.ints(axis, "axis")[0], rank)
    return [*dims[:at], size, *dims[at + 1 :]]


@converter("STFT", 17)
def stft(bb, signal, frame_step, window=None, frame_length=None, *, onesided=1):
    if frame_length is not None:
        length = scalar(bb, frame_length, "frame_length", 1)
    elif window is not None:
        length = bb.shape(window)[0]
    else:
        raise NotImplementedError("neither window nor frame_length")
    bins = length // 2 + 1 if onesided else length
    if signal.ty.ndim == 2:  # torch's exporter leaves out the last axis, and onnxruntime takes that
        signal = bb.emit(relax.op.expand_dims(signal, 2))
    step, (_, extent, parts) = scalar(bb, frame_step, "frame_step", 1), bb.shape(signal)
    demand_range(bb, length, "a frame", most=extent)
    window = None if window is None else bb.of_shape(window, [length])
    factors = _factors(length, False, parts)
    if factors is None:
        return bb.emit_te(ops.stft, signal, window, step, length, bins)
    framed = bb.emit_te(ops.frames, signal, window, step, length)
    batch, count, *_ = bb.shape(framed)
    rows = reshaped(bb, framed, [bb.simplify(batch * count), length, 1, parts])
    y = _by_factors(bb, rows, factors, bins, real=False)
    return reshaped(bb, y, [batch, count, bins, 2])


@converter("MelWeightMatrix", 17)
def mel_weight_matrix(bb, num_mel_bins, dft_length, sample_rate, lower_edge_hertz,
                      upper_edge_hertz, *, output_datatype=1):  # fmt: skip
    bins, length = scalar(bb, num_mel_bins, "num_mel_bins"), scalar(bb, dft_length, "dft_length")
    return bb.emit_te(ops.mel_filters, sample_rate, lower_edge_hertz, upper_edge_hertz, bins,
                      length, _name(output_datatype))  # fmt: skip


def _name(onnx_dtype):
    return np.dtype(ir.DataType(onnx_dtype).numpy()).name
