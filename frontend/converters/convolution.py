"""Converters for convolution.

Conv stays a Relax operator in NCHW/OIHW with its bias as a separate add, the form that layout
and fusion passes recognise. The transposed convolution is a kernel of ours: Relax's own expands
its input with zeros and multiplies them.
"""

from math import prod

import numpy as np
from tvm import relax, tirx

from tvm_ext.ops import arithmetic
from tvm_ext.ops.convolution import conv_transpose, convolution, deform_samples

from .. import window as windows
from ..broadcasting import emit_broadcast
from ..precision import accumulator, cast, constant
from ..table import converter
from .shape import reshaped
from .slicing import concat, take_slice

# Spatial rank -> operator, data layout, kernel layout.
_CONV = {
    1: (relax.op.nn.conv1d, "NCW", "OIW"),
    2: (relax.op.nn.conv2d, "NCHW", "OIHW"),
    3: (relax.op.nn.conv3d, "NCDHW", "OIDHW"),
}


@converter("Conv", 1, 11, 22)
def conv(bb, x, w, b=None, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None,
         pads=None, strides=None):  # fmt: skip
    dtype = bb.dtype(x)
    y = convolve(bb, x, w, auto_pad, dilations, group, kernel_shape, pads, strides,
                 accumulator(dtype))  # fmt: skip
    return cast(bb, add_bias(bb, y, b), dtype)


def convolve(bb, x, w, auto_pad, dilations, group, kernel_shape, pads, strides, out_dtype):
    """``x[N, C, ...]`` with ``w[M, C/group, ...]``, summed in ``out_dtype``.

    Weights of a size known only at run time, or that many groups, are served by a kernel of ours.

    Raises:
        NotImplementedError: other than 1 to 3 spatial axes, or attributes that contradict.
    """
    if bb.rank(x) - 2 not in _CONV:
        raise NotImplementedError(f"{bb.rank(x) - 2} spatial axes, needs 1 to 3")
    w = sized_weights(bb, w, kernel_shape)
    shape, (_, depth, *kernel) = bb.shape(x), bb.shape(w)
    window = windows.resolve(shape[2:], kernel, strides, dilations, pads, auto_pad)
    x = bb.of_shape(x, [shape[0], bb.simplify(depth * group), *shape[2:]])
    if not all(isinstance(size, int) for size in (*kernel, group)):
        outputs = [bb.simplify(size) for size in window.outputs(shape[2:])]
        return bb.emit_te(convolution, x, w, outputs, window.before, window.strides,
                          window.dilations, group, out_dtype)  # fmt: skip
    pads = window.pads
    if not window.static:
        x, pads = windows.padded(bb, x, window), [0] * len(pads)
    operator, data_layout, kernel_layout = _CONV[bb.rank(x) - 2]
    return bb.emit(
        operator(
            x, w, window.strides, pads, window.dilations, group, data_layout, kernel_layout,
            out_dtype=None if out_dtype == bb.dtype(x) else out_dtype,
        )
    )  # fmt: skip


def sized_weights(bb, w, kernel_shape):
    """``w[M, C/group, K...]``; ``kernel_shape`` may repeat its spatial dims, or tell them."""
    dims = bb.shape(w)
    if kernel_shape is None:
        return w
    known = [
        k if isinstance(k, int) else told for k, told in zip(dims[2:], kernel_shape, strict=False)
    ]
    if list(kernel_shape) != known:
        raise NotImplementedError(f"kernel_shape {list(kernel_shape)}, but W has {dims[2:]}")
    return bb.of_shape(w, [*dims[:2], *kernel_shape])


def add_bias(bb, y, b):
    """``y[N, C, ...] + b[C]``; a constant bias takes its broadcast shape now."""
    if b is None:
        return y
    filters, beside = bb.shape(y)[1], [1] * (bb.rank(y) - 2)
    bb.demand(b, [filters])
    array = constant(bb, b)
    if array is not None:
        b = bb.const(array.reshape([1, -1, *beside]).astype(bb.dtype(y)))
    else:
        b = cast(bb, bb.reshape(b, [1, filters, *beside]), bb.dtype(y))
    return emit_broadcast(bb, relax.op.add, arithmetic.add, y, b)


@converter("CausalConvWithState", 27)
def causal_conv_with_state(bb, x, w, b=None, past_state=None, *, activation="none"):
    """Depthwise over ``x[N, C, L]`` behind the last positions of what was before, or zeros."""
    return causal_convolution(bb, x, w, b, past_state, activation, 1)


def causal_convolution(bb, x, w, b, past_state, activation, dilation):
    """The same with ``dilation`` positions between taps: the result, and the last positions."""
    if activation not in ("none", "silu", "swish"):
        raise NotImplementedError(f"activation {activation!r}")
    dtype, (batch, channels, length) = bb.dtype(x), bb.shape(x)
    w = bb.of_shape(w, [bb.shape(w)[0] if bb.static_shape(w) else channels, 1, bb.shape(w)[2]])
    channels, _, kernel = bb.shape(w)
    state = [batch, channels, bb.simplify((kernel - 1) * dilation)]
    if past_state is None:
        past_state = bb.emit(relax.op.zeros(relax.ShapeExpr(state), dtype))
    past_state = bb.of_shape(past_state, state)
    x = concat(bb, past_state, x, axis=2)
    y = convolve(bb, x, w, "NOTSET", [dilation], channels, None, None, None, accumulator(dtype))
    y = add_bias(bb, y, None if b is None else bb.of_shape(b, [channels]))
    if activation != "none":
        y = bb.emit(relax.op.nn.silu(y))
    return cast(bb, y, dtype), take_slice(bb, x, [0, 0, length], [1] * 3, state)


@converter("ConvTranspose", 1, 11, 22)
def conv_transpose_(bb, x, w, b=None, *, auto_pad="NOTSET", dilations=None, group=1,
                    kernel_shape=None, output_padding=None, output_shape=None, pads=None,
                    strides=None):  # fmt: skip
    w = sized_weights(bb, w, kernel_shape)
    spatial, kernel = bb.shape(x)[2:], bb.shape(w)[2:]
    w = bb.of_shape(w, [bb.shape(x)[1], *bb.shape(w)[1:]])
    rank = len(spatial)
    explicit = pads if auto_pad == "NOTSET" and output_shape is None else None
    window = windows.resolve(spatial, kernel, strides, dilations, explicit, "NOTSET")
    extra = list(output_padding or [0] * rank)
    # Without pads, the last window ends here.
    full = [
        stride * (size - 1) + more + extent
        for stride, size, more, extent in zip(
            window.strides, spatial, extra, window.extents, strict=True
        )
    ]
    if output_shape is not None:
        outputs = list(output_shape)[-rank:]
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        # No more than there is: windows that leave gaps between them reach less far.
        outputs = [
            _smaller(size * stride, whole)
            for size, stride, whole in zip(spatial, window.strides, full, strict=True)
        ]
    else:
        outputs = [f - p - q for f, p, q in zip(full, window.before, window.after, strict=True)]
    before = window.before
    if output_shape is not None or auto_pad.startswith("SAME"):
        totals = [f - out for f, out in zip(full, outputs, strict=True)]
        before = [_first_pad(total, auto_pad) for total in totals]
    y = bb.emit_te(conv_transpose, x, w, outputs, before, window.strides, window.dilations, group)
    return cast(bb, add_bias(bb, y, b), bb.dtype(x))


def _smaller(a, b):
    return min(a, b) if isinstance(a, int) else tirx.min(a, b)


def _first_pad(total, auto_pad):
    """The begin pad: SAME_UPPER puts the odd one at the end, everything else at the begin."""
    total = max(total, 0) if isinstance(total, int) else tirx.max(total, 0)
    return total // 2 if auto_pad == "SAME_UPPER" else total - total // 2


@converter("DeformConv", 19, 22)
def deform_conv_(bb, x, w, offset, b=None, mask=None, *, dilations=None, group=1,
                 kernel_shape=None, offset_group=1, pads=None, strides=None):  # fmt: skip
    if bb.rank(x) != 4:
        raise NotImplementedError(f"rank {bb.rank(x)}, needs [N, C, H, W]")
    w = sized_weights(bb, w, kernel_shape)
    (batch, _, *spatial), (_, depth, *kernel) = bb.shape(x), bb.shape(w)
    x = bb.of_shape(x, [batch, bb.simplify(depth * group), *spatial])
    window = windows.resolve(spatial, kernel, strides, dilations, pads, "NOTSET")
    taps, outputs = offset_group * prod(kernel), window.outputs(spatial)
    offset = bb.of_shape(offset, [batch, bb.simplify(2 * taps), *map(bb.simplify, outputs)])
    if mask is not None:
        mask = bb.of_shape(mask, [batch, bb.simplify(taps), *bb.shape(offset)[2:]])
    dtype = bb.dtype(x)
    x = bb.emit(relax.op.permute_dims(x, [0, 2, 3, 1]))
    samples = bb.emit_te(deform_samples, x, offset, mask, kernel, window.before, window.strides,
                         window.dilations, group, offset_group)  # fmt: skip
    y = _of_samples(bb, samples, cast(bb, w, bb.dtype(samples)), group)
    return cast(bb, add_bias(bb, y, b), dtype)


def _of_samples(bb, samples, w, group):
    """``samples[N, group, oh, ow, kh, kw, ..]``, channels last, times ``w[M, C/group, kh, kw]``."""
    batch, _, height, width, *_ = bb.shape(samples)
    outputs, depth, *kernel = bb.shape(w)
    area, terms = bb.simplify(height * width), bb.simplify(depth * prod(kernel))
    per_group = bb.simplify(outputs // group)
    shape = [group, per_group, depth, *kernel]
    array = constant(bb, w)
    if array is not None:
        w = bb.const(np.moveaxis(array.reshape(shape), [1, 2], [4, 3]).reshape(group, terms, -1))
    else:
        w = bb.emit(relax.op.permute_dims(reshaped(bb, w, shape), [0, 3, 4, 2, 1]))
    leading = [batch, group] if group > 1 else [batch]
    w = reshaped(bb, w, [*leading[1:], terms, per_group])
    y = bb.emit(relax.op.matmul(reshaped(bb, samples, [*leading, area, terms]), w))
    order = [*range(len(leading)), len(leading) + 1, len(leading)]
    y = bb.emit(relax.op.permute_dims(y, order))
    return reshaped(bb, y, [batch, outputs, height, width])
