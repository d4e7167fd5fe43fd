"""Transforms of signals, and windows."""

from .choice import operand
from .graph import Rejected

_SIZES = [1, 2, 3, 5, 8, 12, 17, (6, 9)]


def dft(g):
    n = g.pick(*_SIZES)
    width = g.pick(1, 2)
    onesided, inverse = g.pick(None, 0, 1), g.pick(None, 0, 1)
    if g.chance(0.4):
        extents, axis = (g.pick(1, 2), n, g.pick(1, 3), width), 1
    else:
        extents, axis = (g.pick(1, (2, 3)), n, width), 1
    x = operand(g, extents)
    if onesided and inverse and n == 1:
        raise Rejected  # a signal of no points
    least = min(n) if isinstance(n, tuple) else n
    length = None
    if g.chance(0.4) and not (onesided and inverse):  # of which onnxruntime reads too many bins
        length = g.const(g.rng.integers(1, 2 * least + 1), "int64")
    if g.opset < 20:
        return g.node("DFT", x, length, axis=axis, onesided=onesided, inverse=inverse)
    at = g.const(axis - (len(extents) if g.chance(0.3) else 0), "int64")
    return g.node("DFT", x, length, at, onesided=onesided, inverse=inverse)


def stft(g):
    frame, step = g.pick(2, 4, 7, 8, 16), g.pick(1, 3, 8)
    x = operand(g, (g.pick(1, (2, 3)), g.pick(16, 31, (24, 37)), 1))
    window = operand(g, (frame,)) if g.chance(0.6) else None
    length = g.const(frame, "int64") if window is None or g.chance(0.3) else None
    return g.node("STFT", x, g.const(step, "int64"), window, length, onesided=g.pick(None, 0, 1))


def window(g):
    """A window, of a size that is mostly computed, and a product with what has this size."""
    op = g.pick("HannWindow", "HammingWindow", "BlackmanWindow")
    x = g.choose(lambda v: v.ndim and v.dtype == "float32")
    size = g.node("Gather", g.node("Shape", x), g.const(x.ndim - 1, "int64"))
    w = g.node(op, size, periodic=g.pick(None, 0, 1), output_datatype=g.pick(None, 1))
    return g.node("Mul", x, w)


def mel_weights(g):
    return g.node(
        "MelWeightMatrix",
        g.const(g.pick(3, 8), "int64"),
        g.const(g.pick(16, 33), "int64"),
        g.const(g.pick(8000, 16000), "int64"),
        g.const(g.pick(0.0, 20.0), "float32"),
        g.const(4000.0, "float32"),
    )


#: What makes a node, and how often it is chosen.
SIGNALS = [(dft, 2), (stft, 1), (window, 1), (mel_weights, 0.3)]
