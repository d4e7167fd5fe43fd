"""Converters for operators of com.microsoft that tell attention where tokens stand."""

from math import log

import numpy as np
from tvm import relax

from tvm_ext.ops.activation import sigmoid
from tvm_ext.ops.attention import distance_bias

from ..arithmetic import added, multiplied, shifted
from ..microsoft import microsoft
from ..precision import cast
from .matmul import matmul
from .microsoft_packed_attention import restore_padding
from .shape import reshaped, scalar, te_sizes


@microsoft("RelativePositionBias")
def relative_position_bias(bb, bias_table, query_length, key_length, *, is_bidirectional=0,
                           max_distance):  # fmt: skip
    """T5's: ``[1, heads, queries, keys]`` of a row per bucket of distances.

    The table is declared ``[buckets, heads]``, and holds the rows of its transpose.
    """
    buckets, heads = bb.shape(bias_table)
    if not isinstance(buckets, int) or max_distance < 1:
        raise NotImplementedError(f"{buckets} buckets, max_distance {max_distance}")
    given = ("query_length", query_length), ("key_length", key_length)
    lengths = te_sizes([scalar(bb, length, name) for name, length in given])
    table = reshaped(bb, bias_table, [heads, buckets])
    numbers = bb.const(_buckets(buckets, max_distance, bool(is_bidirectional)))
    return bb.emit_te(distance_bias, table, numbers, *lengths)


def _buckets(count, furthest, both_ways):
    """The bucket of each distance, key less query, from ``-furthest`` to ``furthest``.

    As in transformers' T5, in float32: half of the buckets of a direction are of one distance each,
    the others grow by a factor. https://arxiv.org/abs/1910.10683
    """
    distance = np.arange(-furthest, furthest + 1)
    start = np.zeros_like(distance)
    if both_ways:
        count //= 2
        start = np.where(distance > 0, count, 0)
        distance = abs(distance)
    else:
        distance = -np.minimum(distance, 0)
    exact = count // 2
    ratio = np.log(np.maximum(distance, 1).astype("float32") / np.float32(max(exact, 1)))
    grown = exact + (ratio / np.float32(log(furthest / max(exact, 1))) * (count - exact)).astype(
        int
    )
    own = np.where(distance < exact, distance, np.minimum(grown, count - 1))
    return (start + own).astype("int64")


@microsoft("GatedRelativePositionBias")
def gated_relative_position_bias(bb, query_layer, query_bias, rel_pos, weight, bias, eco_a,
                                 token_offset=None, *, num_heads):  # fmt: skip
    """``rel_pos`` times a gate of each query, of WavLM: https://arxiv.org/abs/2110.13900"""
    if token_offset is not None:
        query_layer = restore_padding(bb, query_layer, token_offset)
    query = added(bb, query_layer, query_bias)
    batch, length, width = bb.shape(query)
    heads = reshaped(bb, query, [batch, length, num_heads, bb.simplify(width // num_heads)])
    heads = bb.emit(relax.op.permute_dims(heads, [0, 2, 1, 3]))
    gates = added(bb, matmul(bb, heads, weight), bias)
    half = bb.simplify(bb.shape(gates)[-1] // 2)
    gates = bb.emit(relax.op.sum(reshaped(bb, gates, [*bb.shape(gates)[:3], 2, half]), -1))
    pair = bb.emit(relax.op.split(bb.emit_te(sigmoid, gates), 2, -1))
    update, reset = (bb.emit(pair[k]) for k in range(2))
    gate = shifted(bb, multiplied(bb, reset, eco_a), -1.0)
    return multiplied(bb, shifted(bb, multiplied(bb, update, gate), 2.0), rel_pos)


@microsoft("GemmaRotaryEmbedding")
def gemma_rotary_embedding(bb, emb, q, q_rot, k, k_rot):
    """``q cos(emb) + q_rot sin(emb)``, and the same of k; the angles are those of all heads."""
    sin, cos = (
        bb.emit(relax.op.expand_dims(cast(bb, bb.emit(turn(emb)), bb.dtype(q)), 1))
        for turn in (relax.op.sin, relax.op.cos)
    )
    return tuple(
        added(bb, multiplied(bb, x, cos), multiplied(bb, turned, sin))
        for x, turned in ((q, q_rot), (k, k_rot))
    )
