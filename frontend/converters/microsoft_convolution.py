"""Converters for the convolutions of com.microsoft, and for its pooling under a mask."""

from tvm import relax

from tvm_ext.ops.packed_sequences import causal_convolution as packed_convolution
from tvm_ext.ops.packed_sequences import last_rows
from tvm_ext.ops.pooling import max_pool_with_mask

from .. import window as windows
from ..arithmetic import added
from ..microsoft import activated, microsoft
from ..precision import cast
from .convolution import causal_convolution, conv, conv_transpose_
from .shape import reshaped, shape_whole
from .slicing import slice_inputs


@microsoft("FusedConv")
def fused_conv(bb, x, w, b=None, z=None, *, activation="", activation_params=(), auto_pad="NOTSET",
               dilations=None, group=1, kernel_shape=None, pads=None, strides=None):  # fmt: skip
    y = conv(bb, x, w, b, auto_pad=auto_pad, dilations=dilations, group=group,
             kernel_shape=kernel_shape, pads=pads, strides=strides)  # fmt: skip
    y = y if z is None else added(bb, y, z)
    return activated(bb, y, activation, tuple(activation_params))


@microsoft("NhwcConv")
def nhwc_conv(bb, x, w, b=None, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None,
              pads=None, strides=None):  # fmt: skip
    """Channels are the last axis of ``x``, of ``w`` and of the result."""
    last = bb.rank(x) - 1
    x, w = (bb.emit(relax.op.permute_dims(v, [0, last, *range(1, last)])) for v in (x, w))
    y = conv(bb, x, w, b, auto_pad=auto_pad, dilations=dilations, group=group,
             kernel_shape=kernel_shape, pads=pads, strides=strides)  # fmt: skip
    return bb.emit(relax.op.permute_dims(y, [0, *range(2, last + 1), 1]))


@microsoft("NhwcFusedConv")
def nhwc_fused_conv(bb, x, w, b=None, z=None, *, activation="", activation_params=(),
                    auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, pads=None,
                    strides=None):  # fmt: skip
    """Channels are the last axis of ``x``, of ``z`` and of the result; ``w`` is as in ai.onnx."""
    last = bb.rank(x) - 1
    first = [0, last, *range(1, last)]
    x, z = (v if v is None else bb.emit(relax.op.permute_dims(v, first)) for v in (x, z))
    y = fused_conv(bb, x, w, b, z, activation=activation, activation_params=activation_params,
                   auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
                   pads=pads, strides=strides)  # fmt: skip
    return bb.emit(relax.op.permute_dims(y, [0, *range(2, last + 1), 1]))


@microsoft("ConvTransposeWithDynamicPads")
def conv_transpose_with_dynamic_pads(bb, x, w, pads=None, b=None, *, auto_pad="NOTSET",
                                     dilations=None, group=1, kernel_shape=None,
                                     output_padding=None, strides=None):  # fmt: skip
    """Pads that are read at run time take away from the result without pads."""
    known = pads is None or bb.static(pads) is not None
    y = conv_transpose_(
        bb, x, w, b, auto_pad=auto_pad, dilations=dilations, group=group,
        kernel_shape=kernel_shape, output_padding=output_padding, strides=strides,
        pads=bb.ints(pads, "pads") if known and pads is not None else None,
    )  # fmt: skip
    if known:
        return y
    spatial = bb.rank(x) - 2
    pads = bb.of_shape(pads, [2 * spatial])
    before, after = (
        bb.emit(relax.op.strided_slice(pads, [0], [k * spatial], [(k + 1) * spatial]))
        for k in range(2)
    )
    sizes = bb.emit(relax.op.strided_slice(shape_whole(bb, y), [0], [2], [2 + spatial]))
    ends = bb.emit(relax.op.subtract(sizes, after))
    return slice_inputs(bb, y, before, ends, bb.const(list(range(2, 2 + spatial)), "int64"))


@microsoft("CausalConvWithState")
def causal_conv_with_state(bb, x, w, b=None, past_state=None, *, activation="none",
                           channels_last=0, dilation=1, input_channel_offset=0, input_channels=0,
                           ndim=1, state_channels_last=-1, state_length=0,
                           state_update_capacity=0, state_window=0):  # fmt: skip
    """Depthwise over ``x[N, C, L]``, or ``[N, L, C...]``, behind the last positions before it."""
    if ndim != 1 or state_window or state_update_capacity or input_channels or state_length:
        raise NotImplementedError(
            f"ndim {ndim}, state_window {state_window}, or what onnxruntime has on GPUs only: "
            "input_channels, state_length, state_update_capacity"
        )
    if state_channels_last not in (-1, channels_last):
        raise NotImplementedError(
            f"state_channels_last {state_channels_last} beside channels_last {channels_last}, "
            "which onnxruntime has on GPUs only"
        )
    if not channels_last:
        return causal_convolution(bb, x, w, b, past_state, activation, dilation)
    channels, (batch, length, *own) = bb.shape(w)[0], bb.shape(x)
    x, past_state = (
        v if v is None else _exchanged(bb, reshaped(bb, v, [batch, bb.shape(v)[1], channels]))
        for v in (x, past_state)
    )
    y, state = (
        _exchanged(bb, v) for v in causal_convolution(bb, x, w, b, past_state, activation, dilation)
    )
    return reshaped(bb, y, [batch, length, *own]), reshaped(bb, state, [batch, bb.shape(state)[1],
                                                                        *own])  # fmt: skip


@microsoft("VarlenCausalConvWithState")
def varlen_causal_conv_with_state(
    bb, x, w, offsets, b, initial_state, capture_count=None, kernel_delta=None,
    previous_mask=None, *, activation="none", delta_offset=0, dilation=1, group_size=1,
    state_update_capacity=0,
):  # fmt: skip
    """Over sequences behind each other, ``x[N, C]``; ``offsets`` are their ends, behind a 0."""
    if kernel_delta is not None or previous_mask is not None or state_update_capacity:
        raise NotImplementedError("kernel_delta and state_update_capacity, which are for GPUs")
    if activation not in ("none", "silu", "swish"):
        raise NotImplementedError(f"activation {activation!r}")
    y = bb.emit_te(packed_convolution, x, w, b, initial_state, offsets, dilation)
    if activation != "none":
        y = bb.emit(relax.op.nn.silu(y))
    return cast(bb, y, bb.dtype(x)), bb.emit_te(last_rows, x, initial_state, offsets)


@microsoft("MaxpoolWithMask")
def maxpool_with_mask(bb, x, mask, *, auto_pad="NOTSET", kernel_shape=None, pads=None,
                      storage_order=0, strides=None):  # fmt: skip
    """A window ends, along the last axis, before the first element whose ``mask[1, 1, ...]`` is
    0."""
    spatial = bb.shape(x)[2:]
    mask = bb.of_shape(mask, [1, 1, *spatial])
    window = windows.resolve(spatial, kernel_shape, strides, None, pads, auto_pad)
    outputs = [bb.simplify(dim) for dim in window.outputs(spatial)]
    return bb.emit_te(max_pool_with_mask, x, mask, window.kernel, window.strides, window.before,
                      outputs)  # fmt: skip


def _exchanged(bb, x):
    return bb.emit(relax.op.permute_dims(x, [0, 2, 1]))
