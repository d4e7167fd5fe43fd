"""Converters for transformers of com.microsoft whose batches have no padding.

The rows of all sequences lie behind each other, ``[N, H]``; ``token_offset[B, S]`` says where in
the padded batch each stands, then where the padding does. Attention itself runs padded.
"""

from math import prod

from tvm import relax

from tvm_ext.ops.packed_sequences import rows_without_padding

from ..arithmetic import added
from ..microsoft import microsoft
from ..precision import cast
from .gather_scatter import gather, scatter_nd_replace
from .matmul import matmul
from .microsoft_attention import biased, multi_head_attention, split_last
from .shape import reshaped
from .slicing import take_slice


@microsoft("RemovePadding")
def remove_padding(bb, x, sequence_token_count):
    """``x[B, S, H]`` without what stands behind the tokens that count."""
    batch, length, width = bb.shape(x)
    counts = bb.of_shape(cast(bb, sequence_token_count, "int32"), [batch])
    pair = bb.emit_te(rows_without_padding, counts, length)
    places, offsets = (bb.emit(relax.TupleGetItem(pair, k)) for k in range(2))
    (total,) = bb.dims(_part(bb, offsets, batch, 1))
    rows = reshaped(bb, x, [bb.simplify(batch * length), width])
    longest = bb.emit(relax.op.max(counts, [0], keepdims=True))
    return gather(bb, rows, _first(bb, places, total)), places, offsets, longest


@microsoft("RestorePadding")
def restore_padding(bb, x, token_offset):
    """The rows of ``x[N, H]`` where they stood, zeros elsewhere: ``[B, S, H]``."""
    rows, width = bb.shape(x)
    batch, length = bb.shape(token_offset)
    zeros = bb.emit(relax.op.zeros(relax.ShapeExpr([bb.simplify(batch * length), width]),
                                   bb.dtype(x)))  # fmt: skip
    places = reshaped(bb, cast(bb, _first(bb, token_offset, rows), "int64"), [rows, 1])
    return reshaped(bb, scatter_nd_replace(bb, zeros, places, x), [batch, length, width])


@microsoft("PackedAttention")
def packed_attention(bb, x, weights, bias, token_offset, cumulative_sequence_length,
                     attention_bias=None, *, num_heads, qkv_hidden_sizes=(),
                     scale=None):  # fmt: skip
    packed = added(bb, matmul(bb, x, weights), bias)
    q, k, v = split_last(bb, packed, list(qkv_hidden_sizes) or 3)
    return packed_multi_head_attention(
        bb, q, k, v, None, token_offset, cumulative_sequence_length, attention_bias,
        num_heads=num_heads, scale=scale,
    )  # fmt: skip


@microsoft("PackedMultiHeadAttention")
def packed_multi_head_attention(bb, query, key, value, bias, token_offset,
                                cumulative_sequence_length, attention_bias=None, *,
                                mask_filter_value=-10000.0, num_heads, scale=None):  # fmt: skip
    """Of padded rows, whose scores are ``mask_filter_value`` less."""
    if key is None:
        query, key, value = _unpacked(bb, query)
    if bias is not None:
        query, key, value = biased(bb, [query, key, value], bias)
    rows, batch = bb.shape(query)[0], bb.shape(token_offset)[0]
    ends = bb.of_shape(cumulative_sequence_length, [bb.simplify(batch + 1)])
    counts = bb.emit(relax.op.subtract(_part(bb, ends, 1, batch), _part(bb, ends, 0, batch)))
    padded = [restore_padding(bb, x, token_offset) for x in (query, key, value)]
    y, *_ = multi_head_attention(
        bb, *padded, None, counts, attention_bias, mask_filter_value=mask_filter_value,
        num_heads=num_heads, scale=scale,
    )  # fmt: skip
    flat = reshaped(bb, y, [bb.simplify(prod(bb.shape(y)[:2])), bb.shape(y)[2]])
    return gather(bb, flat, _first(bb, token_offset, rows))


def _unpacked(bb, x):
    """Queries, keys and values of ``x[N, heads, 3, size]``, each ``[N, heads * size]``."""
    rows, heads, parts, size = bb.shape(x)
    pieces = bb.emit(relax.op.split(x, parts, 2))
    return [reshaped(bb, bb.emit(pieces[k]), [rows, heads * size]) for k in range(parts)]


def _first(bb, places, count):
    """The first ``count`` of ``places[B, S]``, as a vector."""
    flat = reshaped(bb, places, [bb.simplify(prod(bb.shape(places)))])
    return _part(bb, flat, 0, count)


def _part(bb, x, begin, count):
    """``x[begin : begin + count]`` of a vector."""
    return take_slice(bb, x, [begin], [1], [count])
