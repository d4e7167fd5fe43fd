"""Converters for hyper-connections: several residual streams, which each block mixes.

Streams are ``[..., C, H]``, or with ``num_branches`` side by side, ``[..., C * H]``. Sums and
products run in float32. https://arxiv.org/abs/2409.19606
"""

from math import sqrt

import numpy as np
from tvm import relax

from tvm_ext.ops.activation import sigmoid

from ..arithmetic import added, multiplied, scaled
from ..microsoft import microsoft
from ..precision import cast
from .activation import swish
from .matmul import matmul
from .microsoft_normalization import branchwise_rms_norm
from .shape import reshaped


@microsoft("HyperConnectionPreMix")
def hyper_connection_pre_mix(bb, streams, pre_mix, *, num_branches=0, reduction_scale=1.0):
    """The sum of the streams, each by its gate."""
    grouped = _grouped(bb, streams, num_branches)
    gated = multiplied(bb, grouped, _gates(bb, pre_mix, grouped))
    total = bb.emit(relax.op.sum(gated, -2))
    return cast(bb, scaled(bb, total, reduction_scale), bb.dtype(streams))


@microsoft("HyperConnectionPostMix")
def hyper_connection_post_mix(bb, streams, block_output, post_mix, stream_mix=None, *,
                              num_branches=0):  # fmt: skip
    """The streams mixed among each other, plus the output of a block by a gate of each."""
    mixed = _grouped(bb, streams, num_branches)
    gates = _gates(bb, post_mix, mixed)
    if stream_mix is not None:
        order = list(range(bb.rank(stream_mix)))
        order[-2:] = order[:-3:-1]
        turned = bb.emit(relax.op.permute_dims(cast(bb, stream_mix, "float32"), order))
        mixed = matmul(bb, turned, mixed)
    injected = bb.emit(relax.op.expand_dims(cast(bb, block_output, "float32"), -2))
    y = added(bb, mixed, multiplied(bb, gates, injected))
    return reshaped(bb, cast(bb, y, bb.dtype(streams)), bb.shape(streams))


@microsoft("HyperConnectionLowRankMix")
def hyper_connection_low_rank_mix(
    bb, streams, norm_scale, down_weight, up_weight, inject_weight, prev_block_output=None,
    prev_post_gate=None, *, epsilon=1e-5, gate_div=1.0, gate_mul=1.0, num_branches,
    reduction_scale=1.0, silu_alpha=1.0,
):  # fmt: skip
    """A block of normalised streams, whose gates come of a product of low rank."""
    if prev_block_output is not None:
        streams = hyper_connection_post_mix(bb, streams, prev_block_output, prev_post_gate,
                                            num_branches=num_branches)  # fmt: skip
    normed = branchwise_rms_norm(bb, streams, norm_scale, epsilon=epsilon,
                                 num_branches=num_branches)  # fmt: skip
    hidden = swish(bb, scaled(bb, matmul(bb, normed, down_weight), silu_alpha))
    gates = bb.emit_te(sigmoid, matmul(bb, hidden, up_weight))
    y = hyper_connection_pre_mix(bb, normed, gates, num_branches=num_branches,
                                 reduction_scale=reduction_scale)  # fmt: skip
    logits = scaled(bb, matmul(bb, normed, inject_weight), 1 / gate_div)
    return y, scaled(bb, bb.emit_te(sigmoid, logits), gate_mul), streams


@microsoft("EngramGate")
def engram_gate(bb, key, query, value, key_norm_scale, query_norm_scale, conv_norm_scale=None, *,
                epsilon=1e-5):  # fmt: skip
    """``value[B, S, H]`` by a gate per stream: how much ``key`` and ``query`` agree."""
    dtype, width = bb.dtype(key), bb.shape(key)[-1]
    key, query = (
        branchwise_rms_norm(bb, cast(bb, x, "float32"), scale, epsilon=epsilon)
        for x, scale in ((key, key_norm_scale), (query, query_norm_scale))
    )
    total = bb.emit(relax.op.sum(multiplied(bb, key, query), -1, keepdims=True))
    if not isinstance(width, int):
        raise NotImplementedError("rows of a size known only at run time")
    dot = scaled(bb, total, 1 / sqrt(width))
    least = bb.const(np.float32(1e-6))
    root = bb.emit(relax.op.sqrt(bb.emit(relax.op.maximum(bb.emit(relax.op.abs(dot)), least))))
    gate = bb.emit_te(sigmoid, bb.emit(relax.op.multiply(bb.emit(relax.op.sign(dot)), root)))
    y = multiplied(bb, gate, bb.emit(relax.op.expand_dims(cast(bb, value, "float32"), -2)))
    if conv_norm_scale is None:
        return cast(bb, y, dtype)
    normed = branchwise_rms_norm(bb, y, conv_norm_scale, epsilon=epsilon)
    return cast(bb, y, dtype), cast(bb, normed, dtype)


def _grouped(bb, streams, branches):
    """``[..., C, H]`` in float32."""
    wide = cast(bb, streams, "float32")
    if not branches:
        return wide
    *outer, width = bb.shape(wide)
    return reshaped(bb, wide, [*outer, branches, bb.simplify(width // branches)])


def _gates(bb, gates, streams):
    """``[..., C]``, ``[..., C, 1]``, ``[..., C, H]`` or ``[..., C * H]`` to broadcast to them."""
    wide, rank = cast(bb, gates, "float32"), bb.rank(streams)
    if bb.rank(wide) == rank:
        return wide
    *outer, branches, width = bb.shape(streams)
    own = 1 if bb.equal(bb.shape(wide)[-1], branches) else width
    return reshaped(bb, wide, [*outer, branches, own])
