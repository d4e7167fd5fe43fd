"""Converters for n-grams of numbers, or strings: counted and weighted, or forbidden to repeat."""

from collections import defaultdict

import numpy as np
from tvm import relax

from tvm_ext.ops.ngrams import completes_ngram, weigh_ngrams

from ..microsoft import microsoft
from ..precision import cast
from ..table import converter

_LONGEST = 1 << 10  # numbers that are compared by as many formulas


@converter("TfIdfVectorizer", 9)
def tf_idf_vectorizer(
    bb, x, *, max_gram_length, max_skip_count, min_gram_length, mode, ngram_counts, ngram_indexes,
    pool_int64s=None, pool_strings=None, weights=None,
):  # fmt: skip
    if mode not in ("TF", "IDF", "TFIDF"):
        raise NotImplementedError(f"mode {mode}")
    pool = bb.numbers(pool_strings).tolist() if pool_int64s is None else list(pool_int64s)
    grams = _ngrams(pool, list(ngram_counts))
    if len(grams) != len(ngram_indexes):
        raise ValueError(f"{len(grams)} n-grams, {len(ngram_indexes)} ngram_indexes")
    if weights is None or mode == "TF":
        weights = [1.0] * len(grams)
    if len(weights) != len(grams):
        raise ValueError(f"{len(grams)} n-grams, {len(weights)} weights")
    # Of equal n-grams the last counts; those of other lengths never do.
    chosen = {
        gram: (index, weight)
        for gram, index, weight in zip(grams, ngram_indexes, weights, strict=True)
        if min_gram_length <= len(gram) <= max_gram_length
    }
    rows = cast(bb, x, "int64")
    if bb.rank(x) == 1:
        rows = bb.emit(relax.op.expand_dims(rows, 0))
    tables = (bb.const(table) for table in _tables(chosen, max(ngram_indexes) + 1))
    y = bb.emit_te(weigh_ngrams, rows, *tables, max_skip_count, mode == "IDF")
    return y if bb.rank(x) == 2 else bb.emit(relax.op.squeeze(y, [0]))


@microsoft("NGramRepeatBlock")
def ngram_repeat_block(bb, input_ids, scores, *, ngram_size):
    if ngram_size < 1:
        raise ValueError(f"ngram_size {ngram_size}")
    batch, length = bb.shape(input_ids)
    scores = bb.of_shape(scores, [batch, bb.shape(scores)[1]])
    if isinstance(length, int) and length < ngram_size:
        return scores
    if ngram_size > _LONGEST:
        raise NotImplementedError(f"ngram_size {ngram_size}, more than {_LONGEST}")
    return bb.emit_te(completes_ngram, input_ids, scores, ngram_size)


def _ngrams(pool, starts):
    """The n-grams of ``pool``, those of n numbers from ``starts[n - 1]`` on."""
    ends = [*starts[1:], len(pool)]
    return [
        tuple(pool[at : at + n])
        for n, (start, end) in enumerate(zip(starts, ends, strict=True), 1)
        for at in range(start, end - n + 1, n)
    ]


def _tables(chosen, width):
    """N-grams, their lengths and weights, and the n-grams of each of ``width`` results."""
    longest = max(map(len, chosen), default=1)
    ngrams = np.zeros((max(len(chosen), 1), longest), "int64")
    lengths, scale = np.ones(len(ngrams), "int64"), np.ones(len(ngrams), "float32")
    members = defaultdict(list)
    for k, (gram, (index, weight)) in enumerate(chosen.items()):
        ngrams[k, : len(gram)], lengths[k], scale[k] = gram, len(gram), weight
        members[index].append(k)
    slots = np.full((width, max(map(len, members.values()), default=1)), -1, "int64")
    for index, own in members.items():
        slots[index, : len(own)] = own
    return ngrams, lengths, scale, slots
