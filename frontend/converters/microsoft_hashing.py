"""Converters for the hashes of com.microsoft."""

import numpy as np
from tvm import relax

from tvm_ext.interface import TensorType
from tvm_ext.ops import hashing as ops
from tvm_ext.ops.narrow import STRING

from .. import host
from ..microsoft import microsoft
from .shape import reshaped


@microsoft("MurmurHash3")
def murmur_hash_3(bb, x, *, positive=1, seed=0):
    """Of the bytes of an element; strings are hashed on the host, as UTF-8."""
    dtype = "uint32" if positive else "int32"
    if bb.element(x) == STRING:
        kind = TensorType(dtype, host.kind_of(bb, x).shape)
        hashes = host.call_for_tensor(bb, "murmur_hash", x, seed, dtype, kind=kind)
        return bb.match(hashes, bb.shape(x))
    if np.dtype(bb.dtype(x)).itemsize not in (4, 8):
        raise NotImplementedError(f"elements of type {bb.dtype(x)}")
    return bb.emit_te(ops.murmur_hash, x, seed % (1 << 32), dtype)


@microsoft("NGramHashMapping")
def ngram_hash_mapping(bb, input_ids, multipliers, vocab_sizes, past_ids=None, head_offsets=None,
                       eos_token_id=None, segment_ids=None, *, max_ngram_size, n_head_per_ngram,
                       pad_id, reset_on_eos=0):  # fmt: skip
    """``[B, S]`` tokens to ``[B, S, heads]``, and the last tokens, for the next call."""
    batch, length = bb.shape(input_ids)
    flat, segments = (
        None if x is None else reshaped(bb, x, [bb.simplify(batch * length)])
        for x in (input_ids, segment_ids)
    )
    hashes, present, *_ = _hashed(
        bb, flat, multipliers, vocab_sizes, past_ids, head_offsets, eos_token_id, segments, None,
        (batch, length), longest=max_ngram_size, heads=n_head_per_ngram, pad=pad_id,
        reset=bool(reset_on_eos),
    )  # fmt: skip
    return reshaped(bb, hashes, [batch, length, bb.shape(hashes)[1]]), present


@microsoft("VarlenNGramHashMapping")
def varlen_ngram_hash_mapping(
    bb, input_ids, multipliers, vocab_sizes, cumulative_sequence_length, past_ids=None,
    head_offsets=None, eos_token_id=None, segment_ids=None, past_segment_ids=None,
    capture_count=None, *, max_ngram_size, n_head_per_ngram, pad_id, reset_on_eos=0,
    state_update_capacity=0,
):  # fmt: skip
    """The same of sequences behind each other, ``[N]``."""
    if state_update_capacity:
        raise NotImplementedError("state_update_capacity: the states of several steps")
    return _hashed(
        bb, input_ids, multipliers, vocab_sizes, past_ids, head_offsets, eos_token_id, segment_ids,
        past_segment_ids, cumulative_sequence_length, longest=max_ngram_size,
        heads=n_head_per_ngram, pad=pad_id, reset=bool(reset_on_eos),
    )  # fmt: skip


def _hashed(bb, ids, multipliers, sizes, past, offsets, eos, segments, past_segments, rows,
            *, longest, **options):  # fmt: skip
    if longest < 2:
        raise ValueError(f"max_ngram_size {longest}")
    results = (longest - 1) * options["heads"]
    sizes, offsets = (None if x is None else bb.of_shape(x, [results]) for x in (sizes, offsets))
    eos = None if eos is None else reshaped(bb, eos, [])
    found = bb.emit_te(ops.hash_ngrams, ids, multipliers, sizes, past, offsets, eos, segments,
                       past_segments, rows, longest=longest, **options)  # fmt: skip
    count = 2 if segments is None else 3
    return tuple(bb.emit(relax.TupleGetItem(found, k)) for k in range(count))
