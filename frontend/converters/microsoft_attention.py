"""Converters for attention in com.microsoft: all end in that of ai.onnx.

What an operator calls a mask, padding, window or sink becomes a number added to the scores.
"""

import numpy as np
from tvm import relax

from tvm_ext.ops import attention as rotation
from tvm_ext.ops import attention_cache as ops

from ..arithmetic import added
from ..indices import demand_between, demand_indices
from ..known import as_expr
from ..microsoft import microsoft
from ..precision import cast, constant
from ..run_time import demand_range
from .attention import attention as attention_of_onnx
from .matmul import matmul
from .microsoft_matmul import matmul_integer_to_float


@microsoft("Attention")
def attention(bb, x, weights, bias=None, mask_index=None, past=None, attention_bias=None,
              past_sequence_length=None, *, do_rotary=0, mask_filter_value=-10000.0, num_heads,
              past_present_share_buffer=0, qkv_hidden_sizes=(), rotary_embedding_dim=0,
              scale=None, unidirectional=0):  # fmt: skip
    """``weights`` project to queries, keys and values; ``past[2, B, N, P, H]`` and the new ones
    are in the second result."""
    if do_rotary or past_present_share_buffer:
        raise NotImplementedError("do_rotary and past_present_share_buffer")
    packed = matmul(bb, x, weights)
    packed = packed if bias is None else _plus(bb, packed, bias)
    return _self_attention(bb, packed, qkv_hidden_sizes or 3, num_heads, mask_index, attention_bias,
                           past, mask_filter_value, scale, unidirectional)  # fmt: skip


def _self_attention(bb, packed, sizes, heads, mask, bias, past, hidden, scale, causal):
    """The attention of queries, keys and values side by side; with it keys and values, if asked."""
    q, k, v = split_last(bb, packed, sizes)
    old = (None, None) if past is None else _halves(bb, past)
    y, keys, values, _ = _multi_head(bb, q, k, v, heads, mask, bias, old, hidden, scale,
                                     causal)  # fmt: skip
    if len(bb.node.outputs) < 2:
        return y
    pair = [bb.emit(relax.op.expand_dims(value, 0)) for value in (keys, values)]
    return y, bb.emit(relax.op.concat(pair, 0))


@microsoft("QAttention")
def q_attention(bb, x, weight, bias, input_scale, weight_scale, mask_index=None,
                input_zero_point=None, weight_zero_point=None, past=None, *, do_rotary=0,
                mask_filter_value=-10000.0, num_heads, past_present_share_buffer=0, scale=None,
                unidirectional=0):  # fmt: skip
    """:func:`attention` of a projection by 8-bit weights, one scale per column or one of all."""
    if do_rotary or past_present_share_buffer:
        raise NotImplementedError("do_rotary and past_present_share_buffer")
    packed = matmul_integer_to_float(bb, x, weight, input_scale, weight_scale, input_zero_point,
                                     weight_zero_point, bias)  # fmt: skip
    return _self_attention(bb, packed, 3, num_heads, mask_index, None, past, mask_filter_value,
                           scale, unidirectional)  # fmt: skip


@microsoft("DecoderMaskedSelfAttention")
def decoder_masked_self_attention(
    bb, x, weights, bias, mask_index=None, past=None, attention_bias=None,
    past_sequence_length=None, beam_width=None, cache_indirection=None, *, do_rotary=0,
    mask_filter_value=-10000.0, num_heads, past_present_share_buffer=0, scale=None,
):  # fmt: skip
    """:func:`attention` of one new token; ``past[2, B, N, P, H]`` may be longer than its tokens."""
    if do_rotary or cache_indirection is not None:
        raise NotImplementedError("do_rotary and cache_indirection")
    if not past_present_share_buffer:
        return attention(bb, x, weights, bias, mask_index, past, attention_bias,
                         mask_filter_value=mask_filter_value, num_heads=num_heads,
                         scale=scale)  # fmt: skip
    parts = split_last(bb, _plus(bb, matmul(bb, x, weights), bias), 3)
    y, *pair = _in_shared_buffer(bb, *parts, *_halves(bb, past), past_sequence_length, num_heads,
                                 mask_index, attention_bias, scale)  # fmt: skip
    return y, bb.emit(relax.op.concat([bb.emit(relax.op.expand_dims(v, 0)) for v in pair], 0))


@microsoft("DecoderMaskedMultiHeadAttention")
def decoder_masked_multi_head_attention(
    bb, query, key=None, value=None, mask_index=None, attention_bias=None, past_key=None,
    past_value=None, past_sequence_length=None, beam_width=None, cache_indirection=None,
    bias=None, *, mask_filter_value=-10000.0, num_heads, output_qk=0,
    past_present_share_buffer=0, scale=None,
):  # fmt: skip
    """One new token; keys with four axes are those of an encoder, to which nothing is added."""
    if cache_indirection is not None or output_qk:
        raise NotImplementedError("cache_indirection and output_qk")
    if key is None:
        query, key, value = split_last(bb, query, 3)
    fresh = bb.rank(key) == 3
    if bias is not None:
        parts = split_last(bb, bias, 3)
        query = _plus(bb, query, parts[0])
        if fresh:
            key, value = _plus(bb, key, parts[1]), _plus(bb, value, parts[2])
    if past_present_share_buffer and fresh:
        return _in_shared_buffer(bb, query, key, value, past_key, past_value, past_sequence_length,
                                 num_heads, mask_index, attention_bias, scale)  # fmt: skip
    query = query if fresh else heads_apart(bb, query, num_heads)
    y, keys, values, _ = _multi_head(
        bb, query, key, value, num_heads, mask_index, attention_bias, (past_key, past_value),
        mask_filter_value, scale, 0,
    )  # fmt: skip
    return (flat_heads(bb, y) if bb.rank(y) == 4 else y), keys, values


def _in_shared_buffer(bb, query, key, value, past_key, past_value, length, heads, padding, bias,
                      scale):  # fmt: skip
    """The new key and value go into the buffers of the past, behind its ``length``."""
    query, key, value = (heads_apart(bb, x, heads) for x in (query, key, value))
    batch, _, count, _ = bb.shape(query)
    extent = bb.shape(past_key)[2]
    lengths = bb.emit(relax.op.reshape(cast(bb, length, "int32"), [1]))
    lengths = bb.emit(relax.op.broadcast_to(lengths, [batch]))
    keys, values = (
        _updated(bb, past, new, lengths, extent)
        for past, new in ((past_key, key), (past_value, value))
    )
    mask = bb.emit_te(ops.cache_mask, lengths, None, heads, count, extent, True, -1,
                      bb.dtype(query))  # fmt: skip
    if padding is not None or bias is not None:
        raise NotImplementedError("a mask or a bias with past_present_share_buffer")
    y, *_ = attention_of_onnx(bb, query, keys, values, mask, scale=scale or None)
    return flat_heads(bb, y), keys, values


@microsoft("MultiHeadAttention")
def multi_head_attention(bb, query, key=None, value=None, bias=None, key_padding_mask=None,
                         attention_bias=None, past_key=None, past_value=None,
                         past_sequence_length=None, cache_indirection=None, *,
                         mask_filter_value=-10000.0, num_heads, scale=None,
                         unidirectional=0):  # fmt: skip
    """Queries, keys and values may come packed: ``[B, S, N, 3, H]``, or keys and values
    ``[B, T, N, 2, H]``; keys and values may have their heads apart already."""
    if cache_indirection is not None or past_sequence_length is not None:
        raise NotImplementedError("cache_indirection and past_sequence_length")
    if key is None:
        query, key, value = _unpacked(bb, query)
    elif value is None:
        key, value = _unpacked(bb, key)
    if bb.rank(key) == 4:
        query = heads_apart(bb, query, num_heads)
        if bias is not None:
            raise NotImplementedError("a bias for keys whose heads are apart")
    if bias is not None:
        query, key, value = biased(bb, [query, key, value], bias)
    y, keys, values, scores = _multi_head(
        bb, query, key, value, num_heads, key_padding_mask, attention_bias,
        (past_key, past_value), mask_filter_value, scale, unidirectional,
    )  # fmt: skip
    return (flat_heads(bb, y) if bb.rank(y) == 4 else y), keys, values, scores


def biased(bb, parts, bias):
    """Queries, keys and values plus their parts of ``bias``, whose size says what no dim does."""
    widths = _widths([bb.shape(part)[-1] for part in parts], bb.shape(bias)[0])
    parts = [
        bb.of_shape(part, [*bb.shape(part)[:-1], width])
        for part, width in zip(parts, widths, strict=True)
    ]
    pieces = split_last(bb, bias, widths)
    return [_plus(bb, part, piece) for part, piece in zip(parts, pieces, strict=True)]


def _widths(dims, total):
    """The sizes of queries, keys and values: queries are as wide as keys, all together ``total``.

    Where only that is known they are alike.
    """
    *rest, last, total = (dim if isinstance(dim, int) else None for dim in (*dims, total))
    width = next((size for size in rest if size is not None), None)
    if None in (width, last) and total is None:
        raise NotImplementedError(f"a bias of unknown size for rows of {dims}")
    if width is None:
        width = total // 3 if last is None else (total - last) // 2
    return width, width, total - 2 * width if last is None else last


@microsoft("GroupQueryAttention")
def group_query_attention(bb, query, key, value, past_key, past_value, seqlens_k,
                          total_sequence_length, cos_cache=None, sin_cache=None,
                          position_ids=None, attention_bias=None, head_sink=None, k_scale=None,
                          v_scale=None, q_norm_weight=None, k_norm_weight=None,
                          query_seqlens=None, *, causal=1, do_rotary=0, k_norm_epsilon=None,
                          k_quant_type="NONE", kv_cache_bit_width=0, kv_num_heads,
                          local_window_size=-1, num_heads, q_norm_epsilon=None,
                          qk_norm_epsilon=1e-6, qk_output=0, rotary_interleaved=0, scale=None,
                          sliding_window_cache=0, smooth_softmax=-1, softcap=0.0,
                          v_quant_type="NONE"):  # fmt: skip
    """New keys and values go into the cache behind the ``seqlens_k`` of each sequence."""
    unserved = {"k_scale": k_scale, "v_scale": v_scale, "q_norm_weight": q_norm_weight,
                "k_norm_weight": k_norm_weight, "query_seqlens": query_seqlens}  # fmt: skip
    given = [name for name, operand in unserved.items() if operand is not None]
    if given or qk_output or sliding_window_cache or {k_quant_type, v_quant_type} != {"NONE"}:
        raise NotImplementedError(f"{given or 'qk_output, sliding window or quantised cache'}")
    if key is None:
        head = bb.simplify(bb.shape(query)[2] // (num_heads + 2 * kv_num_heads))
        query, key, value = split_last(
            bb, query, [num_heads * head, kv_num_heads * head, kv_num_heads * head]
        )
    query = heads_apart(bb, query, num_heads)
    key, value = (heads_apart(bb, operand, kv_num_heads) for operand in (key, value))
    batch, _, count, _ = bb.shape(query)
    lengths = bb.reshape(seqlens_k, [batch])
    if do_rotary:
        if position_ids is None:
            limit = bb.shape(cos_cache)[0]
            position_ids = bb.emit_te(ops.cache_positions, lengths, count, limit)
        else:
            demand_indices(bb, position_ids, bb.shape(cos_cache)[0], "a position", negative=False)
        query, key = (
            rotated_heads(bb, x, cos_cache, sin_cache, position_ids, rotary_interleaved)
            for x in (query, key)
        )
    extent = _extent(bb, past_key, total_sequence_length)
    keys, values = (
        _updated(bb, past, fresh, lengths, extent)
        for past, fresh in ((past_key, key), (past_value, value))
    )
    sink = head_sink
    if sink is None and smooth_softmax == 1:
        sink = bb.const(np.zeros(num_heads, "float32"))
    mask = bb.emit_te(ops.cache_mask, lengths, sink, num_heads, count, extent, bool(causal),
                      local_window_size, bb.dtype(query))  # fmt: skip
    if attention_bias is not None:
        mask = _plus(bb, mask, attention_bias)
    seen = [keys, values] if sink is None else [_with_zeros(bb, x) for x in (keys, values)]
    y, *_ = attention_of_onnx(bb, query, *seen, mask, scale=scale or None, softcap=softcap)
    return flat_heads(bb, y), keys, values


@microsoft("RotaryEmbedding")
def rotary_embedding(bb, x, position_ids, cos_cache, sin_cache, *, interleaved=0,
                     is_packed_batching=0, num_heads=0, rotary_embedding_dim=0,
                     scale=1.0):  # fmt: skip
    """One position is that of the first element, others follow."""
    rotated = rotary_embedding_dim or 2 * bb.shape(cos_cache)[1]
    heads = x
    if bb.rank(x) == 3:
        heads = heads_apart(bb, x, num_heads or bb.simplify(bb.shape(x)[2] // rotated))
    batch, _, length, _ = bb.shape(heads)
    if bb.rank(position_ids) == 1:
        last = bb.simplify(bb.shape(cos_cache)[0] - as_expr(length))
        demand_between(bb, position_ids, 0, last, "the first position")
        steps = bb.emit(relax.op.arange(0, length, 1, "int64"))
        row = bb.emit(relax.op.expand_dims(_plus(bb, steps, position_ids), 0))
        position_ids = bb.emit(relax.op.broadcast_to(row, [batch, length]))
    else:
        demand_indices(bb, position_ids, bb.shape(cos_cache)[0], "a position", negative=False)
    y = rotated_heads(bb, heads, cos_cache, sin_cache, position_ids, interleaved)
    return flat_heads(bb, y) if bb.rank(x) == 3 else y


@microsoft("MRotaryEmbedding")
def m_rotary_embedding(bb, x, position_ids, cos_cache, sin_cache, *, interleaved=0,
                       is_packed_batching=0, mrope_layout=0, mrope_section, num_heads=0,
                       rotary_embedding_dim=0, scale=1.0):  # fmt: skip
    """Each pair of elements follows the position in time, height or width: ``[3, B, S]``."""
    half = bb.shape(cos_cache)[1]
    if len(mrope_section) != 3 or mrope_layout not in (0, 1) or is_packed_batching:
        raise NotImplementedError(
            f"mrope_section {mrope_section}, mrope_layout {mrope_layout}, "
            f"is_packed_batching {is_packed_batching}"
        )
    if not bb.equal(half, sum(mrope_section)):
        raise ValueError(f"sections {mrope_section} of {half} angles")
    demand_indices(bb, position_ids, bb.shape(cos_cache)[0], "a position", negative=False)
    streams = np.repeat(np.arange(3), mrope_section)
    if mrope_layout:
        streams = np.zeros(half, "int64")
        for stream in (1, 2):
            streams[stream : 3 * mrope_section[stream] : 3] = stream
    cos, sin = (
        bb.emit_te(rotation.section_angles, cache, position_ids, bb.const(streams.astype("int64")))
        for cache in (cos_cache, sin_cache)
    )
    heads = x
    if bb.rank(x) == 3:
        width = rotary_embedding_dim or 2 * half
        heads = heads_apart(bb, x, num_heads or bb.simplify(bb.shape(x)[2] // width))
    y = bb.emit_te(rotation.rotary_embedding, heads, cos, sin, None, 2 * half, bool(interleaved))
    return flat_heads(bb, y) if bb.rank(x) == 3 else y


def _of_keys(bb, padding, batch, queries, keys):
    """``padding``, of rank 1 to 4, which has these sizes; of rank 4 it may be larger."""
    rank = bb.rank(padding)
    if rank == 4:
        for side in bb.shape(padding)[2:]:
            demand_range(bb, side, "a side of the mask", least=keys)
        return bb.of_shape(padding, [batch, 1, *bb.shape(padding)[2:]])
    return bb.of_shape(padding, [batch, *[queries, keys][3 - rank :]])


def _multi_head(bb, q, k, v, heads, padding, bias, past, hidden, scale, causal):
    """The attention of ai.onnx with what masks and biases add to the scores."""
    mask = bias
    if padding is not None:
        batch, queries = bb.shape(q)[0], bb.shape(q)[-2]
        keys = bb.shape(k)[-2]
        if past[0] is not None:
            keys = bb.simplify(keys + bb.shape(past[0])[2])
        spans = bb.rank(padding) == 1 and bb.equal(bb.shape(padding)[0], 2 * batch)
        padding = _of_keys(bb, padding, 2 * batch if spans else batch, queries, keys)
        mask = bb.emit_te(ops.key_padding, padding, batch, queries, keys, hidden, bb.dtype(q),
                          spans)  # fmt: skip
        mask = mask if bias is None else _plus(bb, mask, bias)
    return attention_of_onnx(bb, q, k, v, mask, *past, is_causal=causal, kv_num_heads=heads,
                             q_num_heads=heads, scale=scale or None)  # fmt: skip


def _updated(bb, past, fresh, lengths, extent):
    """The cache with ``fresh[B, G, S, H]`` in it; ``past`` may be None."""
    if past is not None:
        batch, heads, _, size = bb.shape(fresh)
        past = bb.of_shape(past, [batch, heads, bb.shape(past)[2], size])
    return bb.emit_te(ops.updated_cache, past, fresh, lengths, extent)


def _extent(bb, past, total):
    """The keys that the cache holds: as many as before, or ``total`` if that is more."""
    known, before = constant(bb, total), 0 if past is None else bb.shape(past)[2]
    if known is not None and isinstance(before, int):
        return max(before, int(known.item()))
    total = cast(bb, bb.emit(relax.op.reshape(total, [1])), "int64")
    (extent,) = bb.dims(total if past is None else bb.emit_te(ops.cache_extent, past, total))
    return extent


def _with_zeros(bb, x):
    """``x[B, G, T, H]`` with one more key, of zeros."""
    batch, heads, _, size = bb.shape(x)
    zeros = bb.emit(relax.op.zeros([batch, heads, 1, size], bb.dtype(x)))
    return bb.emit(relax.op.concat([x, zeros], 2))


def rotated_heads(bb, x, cos, sin, positions, interleaved):
    positions = cast(bb, positions, "int64")
    return bb.emit_te(rotation.rotary_embedding, x, cos, sin, positions, 2 * bb.shape(cos)[1],
                      bool(interleaved))  # fmt: skip


def heads_apart(bb, x, heads):
    """``x[B, S, N * H]`` as ``[B, N, S, H]``."""
    if bb.rank(x) == 4:
        return x
    batch, length, width = bb.shape(x)
    split = bb.reshape(x, [batch, length, heads, bb.simplify(width // heads)])
    return bb.emit(relax.op.permute_dims(split, [0, 2, 1, 3]))


def flat_heads(bb, x):
    """``x[B, N, S, H]`` as ``[B, S, N * H]``."""
    batch, heads, length, size = bb.shape(x)
    x = bb.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
    return bb.reshape(x, [batch, length, heads * size])


def _unpacked(bb, x):
    """The parts ``[B, S, N * H]`` of ``x[B, S, N, parts, H]``."""
    batch, length, heads, parts, size = bb.shape(x)
    pieces = bb.emit(relax.op.split(x, parts, 3))
    return [bb.reshape(bb.emit(pieces[k]), [batch, length, heads * size]) for k in range(parts)]


def _halves(bb, past):
    """Keys and values of ``past[2, B, N, P, H]``."""
    pieces = bb.emit(relax.op.split(past, 2, 0))
    return [bb.emit(relax.op.squeeze(bb.emit(pieces[k]), 0)) for k in range(2)]


def split_last(bb, x, sizes):
    """``x`` cut along its last axis, in so many equal parts or at the ends of ``sizes``."""
    if not isinstance(sizes, int):
        sizes = [int(end) for end in np.cumsum(sizes)[:-1]]
    pieces = bb.emit(relax.op.split(x, sizes, -1))
    count = sizes if isinstance(sizes, int) else len(sizes) + 1
    return [bb.emit(pieces[k]) for k in range(count)]


def _plus(bb, a, b):
    return added(bb, a, cast(bb, b, bb.dtype(a)))
