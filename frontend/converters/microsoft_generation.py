"""Converter for GreedySearch of com.microsoft: a Loop over its decoder, whose state grows."""

import numpy as np
from tvm import relax

from tvm_ext.ops.generation import greedy_scores, prompt_positions, steps_left
from tvm_ext.ops.ngrams import completes_ngram

from ..declared import dtype_of
from ..microsoft import microsoft
from ..precision import cast
from .control_flow import run_trips
from .padding import place
from .shape import reshaped, scalar, te_sizes


@microsoft("GreedySearch")
def greedy_search(bb, input_ids, max_length, min_length=None, repetition_penalty=None,
                  vocab_mask=None, prefix_vocab_mask=None, attention_mask=None, *, decoder,
                  decoder_start_token_id=-1, encoder=None, eos_token_id, init_decoder=None,
                  model_type=0, no_repeat_ngram_size=0, pad_token_id, vocab_size=-1):  # fmt: skip
    """The most probable token at each step, of a decoder like that of GPT-2.

    It maps ``input_ids``, ``position_ids``, ``attention_mask`` and the past of each layer,
    ``[2, B, heads, P, size]``, to logits and the present of each layer.
    """
    if model_type or encoder is not None or init_decoder is not None:
        raise NotImplementedError("an encoder, or a decoder for the first step")
    batch, length = bb.shape(input_ids)
    pasts = [_empty(bb, value, batch) for value in decoder.inputs[3:]]
    if len(decoder.outputs) != 1 + len(pasts):
        raise NotImplementedError(f"{len(decoder.outputs)} results of {len(pasts)} layers")
    pair = bb.emit_te(prompt_positions, input_ids, attention_mask, pad_token_id)
    mask, positions = (bb.emit(relax.TupleGetItem(pair, k)) for k in range(2))
    finished = bb.emit(relax.op.zeros(relax.ShapeExpr([batch]), "bool"))
    longest = scalar(bb, max_length)
    pad = bb.const(np.array(pad_token_id, "int32"))
    rules = min_length, repetition_penalty, vocab_mask, prefix_vocab_mask
    given = [rule for rule in rules if rule is not None]

    def trip(iteration, _, values):
        tokens, positions, mask, history, finished, *others = values
        layers = others[: len(pasts)]
        own = iter(others[len(pasts) :])
        logits, *presents = bb.walk.inline(decoder, [tokens, positions, mask, *layers])
        held = [None if rule is None else next(own) for rule in rules]
        scores = bb.emit_te(greedy_scores, logits, history, iteration, *held, eos_token_id)
        if no_repeat_ngram_size:
            scores = bb.emit_te(completes_ngram, history, scores, no_repeat_ngram_size)
        best = cast(bb, bb.emit(relax.op.argmax(scores, -1)), "int32")
        ends = bb.emit(relax.op.equal(best, bb.const(np.array(eos_token_id, "int32"))))
        finished = bb.emit(relax.op.logical_or(finished, ends))
        chosen = reshaped(
            bb, bb.emit(relax.op.where(finished, pad, best)), [bb.shape(tokens)[0], 1]
        )
        following = bb.emit(relax.op.sum(mask, [1], keepdims=True))
        ones = bb.emit(relax.op.ones_like(chosen))
        grown = (bb.emit(relax.op.concat(pair, 1)) for pair in ((mask, ones), (history, chosen)))
        going = bb.emit(relax.op.logical_not(finished))
        going = bb.emit(relax.op.max(cast(bb, going, "int32"), None))
        return cast(bb, going, "bool"), [chosen, following, *grown, finished, *presents]

    trips = bb.emit_te(steps_left, *te_sizes([longest, length]))
    state = [input_ids, positions, mask, input_ids, finished, *pasts]
    results = run_trips(bb, decoder, trips, bb.const(np.array(True)), state, trip, given)
    history = results[3]
    missing = bb.simplify(longest - bb.shape(history)[1])
    return place(bb, history, [0, 0], [0, missing], pad)


def _empty(bb, value, batch):
    """The past of a layer before the first step."""
    shape = value.shape
    if shape is None or len(shape) != 5 or not all(isinstance(shape[k], int) for k in (0, 2, 4)):
        raise NotImplementedError(f"input {value.name!r} of the decoder is of the shape {shape}")
    dims = [shape[0], batch, shape[2], 0, shape[4]]
    return bb.emit(relax.op.zeros(relax.ShapeExpr(dims), dtype_of(value.dtype, value.name)))
