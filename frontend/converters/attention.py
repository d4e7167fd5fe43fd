"""Converters for attention and rotary embedding.

Attention becomes two batched matrix products around a softmax, the form that fusion recognises.
Query heads that share a key head are rows of one product: keys are never repeated.
"""

from math import inf, sqrt

import onnx_ir as ir
from tvm import relax

from tvm_ext.ops import attention as ops

from ..broadcasting import demanded_dims
from ..indices import demand_indices
from ..precision import cast
from ..run_time import demand_parts
from ..table import converter
from .matmul import product
from .normalization import with_leading_ones
from .slicing import concat


@converter("Attention", 23, 24, 25)
def attention(bb, q, k, v, attn_mask=None, past_key=None, past_value=None, nonpad_kv_seqlen=None,
              *, is_causal=0, kv_num_heads=None, left_window_size=-1, q_num_heads=None,
              qk_matmul_output_mode=0, right_window_size=-1, scale=None, softcap=0.0,
              softmax_precision=None):  # fmt: skip
    dtype, flat = bb.dtype(q), bb.rank(q) == 3
    if flat:
        q = _heads(bb, q, q_num_heads)
        k, v = _heads(bb, k, kv_num_heads), _heads(bb, v, kv_num_heads)
    batch, *_, size = bb.shape(q)
    groups, keys = bb.shape(k)[1:3]
    k, v = _of_heads(bb, k, batch, groups, keys, size), _of_heads(bb, v, batch, groups, keys)
    past = None
    if past_key is not None:
        past = bb.shape(past_key)[2]
        past_key = _of_heads(bb, past_key, batch, groups, past, size)
        past_value = _of_heads(bb, past_value, batch, groups, past, bb.shape(v)[3])
        k = concat(bb, past_key, k, axis=2)
        v = concat(bb, past_value, v, axis=2)

    scores = _grouped(bb, q, bb.emit(relax.op.permute_dims(k, [0, 1, 3, 2])))
    if scale is None and not isinstance(size, int):
        scores = bb.emit_te(ops.over_root, scores, size)
    else:
        scores = _times(bb, scores, 1 / sqrt(size) if scale is None else scale)
    raw = scores
    if softcap:
        capped = relax.op.tanh(_times(bb, scores, 1 / softcap))
        scores = _times(bb, bb.emit(capped), softcap)
    soft = scores
    masked = (attn_mask is not None or nonpad_kv_seqlen is not None or is_causal
              or left_window_size >= 0 or right_window_size >= 0)  # fmt: skip
    if masked:
        mask = None if attn_mask is None else _mask(bb, attn_mask, bb.shape(scores))
        if nonpad_kv_seqlen is not None:
            nonpad_kv_seqlen = bb.of_shape(nonpad_kv_seqlen, [batch])
        scores = _masked(bb, scores, mask, nonpad_kv_seqlen, past, bool(is_causal),
                         left_window_size, right_window_size)  # fmt: skip
    wide = scores
    if softmax_precision == ir.DataType.DOUBLE:
        wide = cast(bb, scores, "float64")
    weights = bb.emit(relax.op.nn.softmax(wide, -1))
    if masked:  # a row that sees nothing is zero, not NaN
        hidden = bb.emit(relax.op.equal(wide, relax.const(-inf, bb.dtype(wide))))
        weights = bb.emit(relax.op.where(hidden, relax.const(0, bb.dtype(wide)), weights))
    weights = cast(bb, weights, dtype)
    y = cast(bb, _grouped(bb, weights, cast(bb, v, dtype)), dtype)
    if flat:
        y = bb.emit(relax.op.permute_dims(y, [0, 2, 1, 3]))
        batch, length, heads, size = bb.shape(y)
        y = bb.reshape(y, [batch, length, heads * size])
    if qk_matmul_output_mode not in range(4):
        raise NotImplementedError(f"qk_matmul_output_mode {qk_matmul_output_mode}")
    shown = (raw, soft, scores, weights)[qk_matmul_output_mode]
    return y, k, v, cast(bb, shown, dtype)


@converter("Attention", 1, domain="tvm_ext")
def recognised_attention(bb, q, k, v, mask=None, *, guarded=0, masked=-inf, scale=1.0):
    """What ``rewrites/attention.py`` recognises; it says how this differs from ai.onnx's."""
    dtype = bb.dtype(q)
    scores = _times(bb, product(bb, q, bb.emit(relax.op.permute_dims(k, [0, 1, 3, 2]))), scale)
    scores = cast(bb, scores, dtype)
    if mask is not None and bb.dtype(mask) == "bool":
        scores = bb.emit(relax.op.where(mask, scores, relax.const(masked, dtype)))
    elif mask is not None:
        scores = bb.emit(relax.op.add(scores, mask))
    weights = bb.emit(relax.op.nn.softmax(scores, -1))
    if guarded:
        is_nan = bb.emit(relax.op.isnan(weights))
        weights = bb.emit(relax.op.where(is_nan, relax.const(0, dtype), weights))
    return cast(bb, product(bb, weights, v), dtype)


@converter("RotaryEmbedding", 23)
def rotary_embedding(bb, x, cos_cache, sin_cache, position_ids=None, *, interleaved=0,
                     num_heads=None, rotary_embedding_dim=0):  # fmt: skip
    heads = _heads(bb, x, num_heads) if bb.rank(x) == 3 else x
    batch, _, length, size = bb.shape(heads)
    rotated = rotary_embedding_dim or size
    half = bb.simplify(rotated // 2)
    if position_ids is None:
        caches = [bb.of_shape(cache, [batch, length, half]) for cache in (cos_cache, sin_cache)]
    else:
        rows = bb.shape(cos_cache)[0]
        caches = [bb.of_shape(cache, [rows, half]) for cache in (cos_cache, sin_cache)]
        demand_indices(bb, position_ids, rows, "a position", negative=False)
        position_ids = bb.of_shape(position_ids, [batch, length])
    y = bb.emit_te(ops.rotary_embedding, heads, *caches, position_ids, rotated, bool(interleaved))
    if bb.rank(x) == 4:
        return y
    return bb.reshape(bb.emit(relax.op.permute_dims(y, [0, 2, 1, 3])), bb.shape(x))


def _heads(bb, x, heads):
    """``x[B, S, H * D]`` as ``[B, H, S, D]``."""
    if not heads:
        raise NotImplementedError("inputs of rank 3 need the number of heads")
    batch, length, width = bb.shape(x)
    demand_parts(bb, width, heads, f"the width of {heads} heads")
    split = bb.reshape(x, [batch, length, heads, width // heads])
    return bb.emit(relax.op.permute_dims(split, [0, 2, 1, 3]))


def _of_heads(bb, x, batch, heads, length, size=None):
    """``x``, which has these dims: provably, or asserted at run time; any size of a head if None.

    What the sizes of queries, keys and values have in common is one dim then, not several.
    """
    return bb.of_shape(x, [batch, heads, length, bb.shape(x)[3] if size is None else size])


def _mask(bb, mask, shape):
    """``mask`` of rank 4, whose dims but the last broadcast to ``shape``."""
    mask = with_leading_ones(bb, mask, 4)
    *outer, keys = bb.shape(mask)
    wanted = demanded_dims(bb, outer, shape[:3])
    return mask if wanted is None else bb.match(mask, [*wanted, keys])


def _masked(bb, scores, mask, lengths, past, causal, left, right):
    """:func:`ops.masked_scores`; where shapes are static, of operators that fusion recognises."""
    dtype, shape = bb.dtype(scores), bb.shape(scores)
    dims = [*shape, *([] if mask is None else bb.shape(mask))]
    narrow, adds = dims[-1] not in (1, shape[3]), mask is not None and bb.dtype(mask) != "bool"
    if not all(isinstance(dim, int) for dim in dims) or (narrow and adds):
        return bb.emit_te(ops.masked_scores, scores, mask, lengths, past, causal, left, right)
    if adds:
        scores, mask = bb.emit(relax.op.add(scores, cast(bb, mask, dtype))), None
    seen = mask
    if narrow or causal or left >= 0 or right >= 0 or lengths is not None:
        seen = bb.emit_te(ops.seen_keys, mask, lengths, *shape[2:], past, causal, left, right)
    if seen is None:
        return scores
    return bb.emit(relax.op.where(seen, scores, relax.const(-inf, dtype)))


def _grouped(bb, a, b):
    """``a[B, H, S, K] @ b[B, G, K, N]``: heads in G groups share one ``b``."""
    batch, heads, length, inner = bb.shape(a)
    groups = bb.shape(b)[1]
    if bb.equal(heads, groups):
        return product(bb, a, b)
    demand_parts(bb, heads, groups, "the number of query heads")
    rows = heads // groups * length
    stacked = bb.reshape(a, [batch, groups, rows, inner])
    y = product(bb, stacked, b)
    return bb.reshape(y, [batch, heads, length, bb.shape(b)[3]])


def _times(bb, x, factor):
    return x if factor == 1 else bb.emit(relax.op.multiply(x, relax.const(factor, bb.dtype(x))))
