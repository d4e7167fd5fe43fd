"""Converters for operators of com.microsoft on words, and on pairs of sequences of tokens."""

from tvm import relax

from tvm_ext.ops import words as ops

from ..microsoft import microsoft
from .shape import reshaped
from .slicing import concat, take_slice


@microsoft("WordConvEmbedding")
def word_conv_embedding(bb, sequence, w, b, c, *, char_embedding_size=None, conv_window_size=None,
                        embedding_size=None):  # fmt: skip
    """The sizes are those of the weights: ``w[embedding, 1, window, char_embedding]``."""
    told = embedding_size, 1, conv_window_size, char_embedding_size
    w = bb.of_shape(w, [dim if size is None else size
                        for dim, size in zip(bb.shape(w), told, strict=True)])  # fmt: skip
    window, length = bb.shape(w)[2], bb.shape(sequence)[1]
    if all(isinstance(dim, int) for dim in (window, length)) and length < window:
        raise ValueError(f"a window of {window} over words of {length} characters")
    return bb.emit_te(ops.word_embedding, sequence, w, b, c)


@microsoft("DynamicTimeWarping")
def dynamic_time_warping(bb, x):
    """The places of a cheap path through ``x[M, N]`` or ``[1, M, N]``: ``[2, steps]``."""
    costs = reshaped(bb, x, bb.shape(x)[1:]) if bb.rank(x) == 3 else x
    results = bb.emit_te(ops.time_warping, costs)
    path, count = (bb.emit(relax.TupleGetItem(results, k)) for k in range(2))
    (steps,) = bb.dims(count)
    longest = bb.shape(path)[1]
    return take_slice(bb, path, [0, bb.simplify(longest - steps)], [1, 1], [2, steps])


@microsoft("BifurcationDetector")
def bifurcation_detector(bb, src_tokens, cur_tokens, prev_suffix_match_idx, pred_tokens=None, *,
                         max_ngram_size=3, min_ngram_size=1):  # fmt: skip
    """The tokens with those of the prediction that agree with the source, and one more; and where
    the source goes on after them."""
    if not 0 < min_ngram_size <= max_ngram_size:
        raise ValueError(f"n-grams of {min_ngram_size} to {max_ngram_size}")
    tokens, shape = cur_tokens, bb.shape(prev_suffix_match_idx)
    if pred_tokens is not None:
        start = reshaped(bb, prev_suffix_match_idx, [1])
        (agreeing,) = bb.dims(bb.emit_te(ops.agreement, src_tokens, start, pred_tokens))
        taken = take_slice(bb, pred_tokens, [0], [1], [bb.simplify(agreeing + 1)])
        tokens = concat(bb, cur_tokens, taken, axis=0)
    index = bb.emit_te(ops.suffix_match, src_tokens, tokens, shape, min_ngram_size, max_ngram_size)
    return tokens, index
