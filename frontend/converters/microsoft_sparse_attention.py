"""Converters for attention of com.microsoft in which a query sees some of the keys."""

from tvm import relax

from tvm_ext.ops import attention_cache as cache
from tvm_ext.ops import attention_sparse as ops

from ..arithmetic import added, shifted
from ..microsoft import microsoft
from ..precision import cast
from .attention import attention as attention_of_onnx
from .matmul import matmul
from .microsoft_attention import flat_heads, heads_apart, rotated_heads, split_last


@microsoft("SparseAttention")
def sparse_attention(bb, query, key, value, past_key, past_value, block_row_indices,
                     block_col_indices, total_sequence_length, key_total_sequence_lengths,
                     cos_cache=None, sin_cache=None, *, do_rotary=0, kv_num_heads, num_heads,
                     rotary_interleaved=0, scale=None, sparse_block_size):  # fmt: skip
    """Causal, over blocks of keys that each block of queries has in a list, by layout of heads.

    The buffers of the past are as long as the present: new keys go behind the
    ``key_total_sequence_lengths`` less their number.
    """
    if key is None:
        size = bb.simplify(bb.shape(query)[2] // (num_heads + 2 * kv_num_heads))
        widths = [num_heads * size, kv_num_heads * size, kv_num_heads * size]
        query, key, value = split_last(bb, query, widths)
    query = heads_apart(bb, query, num_heads)
    key, value = (heads_apart(bb, x, kv_num_heads) for x in (key, value))
    batch, _, count, _ = bb.shape(query)
    lengths = bb.of_shape(key_total_sequence_lengths, [batch])
    lengths = shifted(bb, cast(bb, lengths, "int32"), -1)
    if do_rotary:
        positions = bb.emit_te(cache.cache_positions, lengths, count, bb.shape(cos_cache)[0])
        query, key = (
            rotated_heads(bb, x, cos_cache, sin_cache, positions, rotary_interleaved)
            for x in (query, key)
        )
    extent = bb.shape(past_key)[2]
    keys, values = (
        bb.emit_te(cache.updated_cache, past, fresh, lengths, extent)
        for past, fresh in ((past_key, key), (past_value, value))
    )
    seen = bb.emit_te(ops.listed_blocks, block_row_indices, block_col_indices)
    mask = bb.emit_te(ops.block_mask, lengths, seen, num_heads, count, extent, sparse_block_size,
                      bb.dtype(query))  # fmt: skip
    y, *_ = attention_of_onnx(bb, query, keys, values, mask, scale=scale or None)
    return flat_heads(bb, y), keys, values


@microsoft("LongformerAttention")
def longformer_attention(bb, x, weight, bias, mask, global_weight, global_bias, flags, *,
                         num_heads, window):  # fmt: skip
    """A token sees ``window`` others to each side, and those with a flag, which see all.

    Tokens with a flag have queries, keys and values of their own for what they see; the mask (less
    than 0: padding) hides keys. https://arxiv.org/abs/2004.05150
    """
    local, wide = (
        [heads_apart(bb, part, num_heads) for part in split_last(bb, projected, 3)]
        for projected in (added(bb, matmul(bb, x, weight), bias),
                          added(bb, matmul(bb, x, global_weight), global_bias))
    )  # fmt: skip
    batch, length, _ = bb.shape(x)
    flags, mask = bb.of_shape(flags, [batch, length]), bb.of_shape(mask, [batch, length])
    near = bb.emit_te(ops.window_mask, mask, flags, window)
    everywhere = bb.emit_te(ops.window_mask, mask, flags, None)
    y, *_ = attention_of_onnx(bb, *local, near)
    every, *_ = attention_of_onnx(bb, *wide, everywhere)
    chosen = bb.emit(relax.op.expand_dims(cast(bb, flags, "bool"), -1))
    return bb.emit(relax.op.where(chosen, flat_heads(bb, every), flat_heads(bb, y)))
