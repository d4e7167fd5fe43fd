"""Converters for the complex products and Fourier transforms of com.microsoft.

The last axis of a complex tensor holds real and imaginary parts.
"""

from tvm import relax

from tvm_ext.ops import signal as ops

from ..broadcasting import emit_broadcast
from ..microsoft import microsoft
from .signal import dft


@microsoft("ComplexMul")
def complex_mul(bb, a, b):
    return _product(bb, a, b, conjugate=False)


@microsoft("ComplexMulConj")
def complex_mul_conj(bb, a, b):
    """``a`` times the conjugate of ``b``."""
    return _product(bb, a, b, conjugate=True)


def _product(bb, a, b, conjugate):
    (a, ai), (b, bi) = (_parts(bb, x) for x in (a, b))
    sign = -1 if conjugate else 1
    real = emit_broadcast(bb, None, ops.complex_part, a, b, ai, bi, sign=-sign)
    imaginary = emit_broadcast(bb, None, ops.complex_part, ai, b, a, bi, sign=sign)
    parts = [bb.emit(relax.op.expand_dims(x, -1)) for x in (real, imaginary)]
    return bb.emit(relax.op.concat(parts, -1))


def _parts(bb, x):
    if not bb.equal(bb.shape(x)[-1], 2):
        raise ValueError(f"the shape {bb.shape(x)} ends in no real and imaginary part")
    pair = bb.emit(relax.op.split(x, 2, -1))
    return [bb.emit(relax.op.squeeze(bb.emit(pair[k]), -1)) for k in range(2)]


@microsoft("Rfft")
def rfft(bb, x, *, normalized=0, onesided=1, signal_ndim=1):
    """``[..., n]`` to the first ``n // 2 + 1`` bins: ``[..., n // 2 + 1, 2]``."""
    _plain(normalized, onesided, signal_ndim)
    return dft(bb, bb.emit(relax.op.expand_dims(x, -1)), onesided=1)


@microsoft("Irfft")
def irfft(bb, x, *, normalized=0, onesided=1, signal_ndim):
    """Its inverse: ``[..., bins, 2]`` to ``[..., 2 (bins - 1)]``."""
    _plain(normalized, onesided, signal_ndim)
    return bb.emit(relax.op.squeeze(dft(bb, x, inverse=1, onesided=1), -1))


def _plain(normalized, onesided, signal_ndim):
    if (normalized, onesided, signal_ndim) != (0, 1, 1):
        raise NotImplementedError(
            f"normalized {normalized}, onesided {onesided}, signal_ndim {signal_ndim}"
        )
