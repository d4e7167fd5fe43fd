"""Converters for operators that ONNX had as experimental and took back.

Models that converters of CoreML and Caffe2 wrote hold them; onnx has no schema of them any more,
onnxruntime's is followed.
"""

import numpy as np

from tvm_ext.ops.activation import softplus
from tvm_ext.ops.math import tanh

from ..arithmetic import scaled, shifted
from ..table import converter, refuse
from .shape import identity
from .slicing import slice_inputs, take_slice

for _copy in "MemcpyFromHost", "MemcpyToHost":
    converter(_copy, 1)(identity)
refuse("GivenTensorFill", "", "a constant that ONNX took back; export it as an initializer")
refuse("GRUUnit", "", "one step of a recurrence that ONNX took back; export it as GRU")


@converter("Affine", 1)
def affine(bb, x, *, alpha=1.0, beta=0.0):
    return shifted(bb, scaled(bb, x, alpha), beta)


@converter("Scale", 1)
def scale_(bb, x, *, scale=1.0):
    return scaled(bb, x, scale)


@converter("ScaledTanh", 1)
def scaled_tanh(bb, x, *, alpha=None, beta=None):
    """``alpha tanh(beta x)``."""
    _required(alpha=alpha, beta=beta)
    return scaled(bb, bb.emit_te(tanh, scaled(bb, x, beta)), alpha)


@converter("ParametricSoftplus", 1)
def parametric_softplus(bb, x, *, alpha=None, beta=None):
    """``alpha log(1 + exp(beta x))``."""
    _required(alpha=alpha, beta=beta)
    return scaled(bb, bb.emit_te(softplus, scaled(bb, x, beta)), alpha)


@converter("ImageScaler", 1)
def image_scaler(bb, x, *, bias=(), scale=1.0):
    """``x[N, C, H, W]`` times ``scale``, plus the ``bias`` of its channel."""
    channels = bb.shape(x)[1]
    if isinstance(channels, int) and channels != len(bias):
        raise ValueError(f"{len(bias)} biases for {channels} channels")
    return shifted(bb, scaled(bb, x, scale), np.reshape(bias, [1, -1, 1, 1]))


@converter("Crop", 1)
def crop(bb, x, *, border=(), scale=()):
    """``x[N, C, H, W]`` from left and top of ``border`` on: of size ``scale``, or to its right and
    bottom."""
    if bb.rank(x) != 4 or len(border) != 4 or len(scale) not in (0, 2):
        raise ValueError(f"rank {bb.rank(x)}, border {list(border)}, scale {list(scale)}")
    left, top, right, bottom = border
    *outer, height, width = bb.shape(x)
    sizes = list(scale) or [bb.simplify(height - top - bottom), bb.simplify(width - left - right)]
    for dim, start, size in zip((height, width), (top, left), sizes, strict=True):
        whole = all(isinstance(v, int) for v in (dim, size))
        if min(border) < 0 or (whole and not 0 <= size <= dim - start):
            raise ValueError(f"{size} elements from {start} on of {dim}")
    return take_slice(bb, x, [0, 0, top, left], [1] * 4, [*outer, *sizes])


@converter("DynamicSlice", 1)
def dynamic_slice(bb, x, starts, ends, axes=None):
    return slice_inputs(bb, x, starts, ends, axes)


def _required(**attributes):
    missing = sorted(name for name, value in attributes.items() if value is None)
    if missing:
        raise ValueError(f"without {' and '.join(missing)}")
