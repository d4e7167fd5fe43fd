"""Converters for GreedySearch and Sampling of com.microsoft: a Loop over the decoder, whose state
grows.
"""

import numpy as np
from tvm import relax

from tvm_ext.ops.generation import (
    drawn_tokens,
    greedy_scores,
    nucleus,
    prompt_positions,
    steps_left,
    tempered,
)
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
    """The most probable token at each step, of a decoder like that of GPT-2."""
    _only_decoder(model_type, encoder, init_decoder)
    rules = min_length, repetition_penalty, vocab_mask, prefix_vocab_mask

    def choose(scores, _):
        return cast(bb, bb.emit(relax.op.argmax(scores, -1)), "int32")

    return _generate(bb, decoder, input_ids, max_length, rules, attention_mask, choose, (),
                     no_repeat_ngram_size, eos_token_id, pad_token_id)  # fmt: skip


@microsoft("Sampling")
def sampling(bb, input_ids, max_length, min_length=None, repetition_penalty=None, vocab_mask=None,
             prefix_vocab_mask=None, attention_mask=None, presence_mask=None, seed=None, *,
             custom=0, decoder, decoder_start_token_id=-1, encoder=None, eos_token_id,
             filter_value=-1e20, init_decoder=None, min_tokens_to_keep=0, model_type=0,
             no_repeat_ngram_size=0, pad_token_id, presence_penalty=0.0, temperature=1.0,
             top_p=0.0, vocab_size=-1):  # fmt: skip
    """A token drawn at each step, of a decoder like that of GPT-2; as all random operators here
    reproducibly, by a generator of its own."""
    _only_decoder(model_type, encoder, init_decoder)
    rules = min_length, repetition_penalty, vocab_mask, prefix_vocab_mask
    seed = bb.const(np.array([0], "int32")) if seed is None else seed
    given = [seed] if presence_mask is None else [seed, presence_mask]
    divisor = temperature if temperature > 0 else 1.0

    def choose(scores, state):
        step, seed, *presence = state
        scores = bb.emit_te(tempered, scores, divisor, *presence, penalty=presence_penalty)
        order = bb.emit(relax.op.sort(scores, -1, descending=bool(custom)))
        mass = bb.emit(relax.op.cumsum(bb.emit(relax.op.nn.softmax(order, -1)), -1))
        likely = bb.emit_te(
            nucleus, scores, order, mass, top_p, min_tokens_to_keep, filter_value, bool(custom)
        )
        return bb.emit_te(drawn_tokens, likely, step, seed)

    return _generate(bb, decoder, input_ids, max_length, rules, attention_mask, choose, given,
                     no_repeat_ngram_size, eos_token_id, pad_token_id)  # fmt: skip


def _only_decoder(model_type, encoder, init_decoder):
    if model_type or encoder is not None or init_decoder is not None:
        raise NotImplementedError("an encoder, or a decoder for the first step")


def _generate(bb, decoder, input_ids, max_length, rules, attention_mask, choose, given, ngram, end,
              pad):  # fmt: skip
    """The prompt and a token more at each step: ``choose(scores, [step, *given])`` of the scores of
    all by ``rules``, until all texts ``end``; int32 ``[B, max_length]``.

    The decoder maps ``input_ids``, ``position_ids``, ``attention_mask`` and the past of each layer,
    ``[2, B, heads, P, size]``, to logits and the present of each layer.
    """
    batch, length = bb.shape(input_ids)
    pasts = [empty_past(bb, value, batch) for value in decoder.inputs[3:]]
    if len(decoder.outputs) != 1 + len(pasts):
        raise NotImplementedError(f"{len(decoder.outputs)} results of {len(pasts)} layers")
    found = bb.emit_te(prompt_positions, input_ids, attention_mask, pad)
    mask, positions, lengths = (bb.emit(relax.TupleGetItem(found, k)) for k in range(3))
    finished = bb.emit(relax.op.zeros(relax.ShapeExpr([batch]), "bool"))
    longest = scalar(bb, max_length, "max_length")
    pad = bb.const(np.array(pad, "int32"))
    constant = [*(rule for rule in rules if rule is not None), *given]

    def trip(iteration, _, values):
        tokens, positions, lengths, mask, history, finished, *others = values
        layers = others[: len(pasts)]
        own = iter(others[len(pasts) :])
        logits, *presents = bb.walk.inline(decoder, [tokens, positions, mask, *layers])
        held = [None if rule is None else next(own) for rule in rules]
        scores = bb.emit_te(greedy_scores, logits, history, iteration, *held, end)
        if ngram:
            scores = bb.emit_te(completes_ngram, history, scores, ngram)
        best = choose(scores, [iteration, *own])
        ends = bb.emit(relax.op.equal(best, bb.const(np.array(end, "int32"))))
        finished = bb.emit(relax.op.logical_or(finished, ends))
        chosen = reshaped(
            bb, bb.emit(relax.op.where(finished, pad, best)), [bb.shape(tokens)[0], 1]
        )
        ones = bb.emit(relax.op.ones_like(chosen))
        longer = bb.emit(relax.op.add(lengths, ones))
        grown = (bb.emit(relax.op.concat(pair, 1)) for pair in ((mask, ones), (history, chosen)))
        going = bb.emit(relax.op.logical_not(finished))
        going = bb.emit(relax.op.max(cast(bb, going, "int32"), None))
        return cast(bb, going, "bool"), [chosen, lengths, longer, *grown, finished, *presents]

    trips = bb.emit_te(steps_left, *te_sizes([longest, length]))
    state = [input_ids, positions, lengths, mask, input_ids, finished, *pasts]
    results = run_trips(bb, decoder, trips, bb.const(np.array(True)), state, trip, constant)
    history = results[4]
    missing = bb.simplify(longest - bb.shape(history)[1])
    return place(bb, history, [0, 0], [0, missing], pad)


def empty_past(bb, value, rows, rank=5):
    """The past of a layer before the first step: ``[..., rows, heads, 0, size]``."""
    dims = [] if value.shape is None else list(value.shape)
    if len(dims) != rank or not all(isinstance(d, int) for d in (*dims[:-4], dims[-3], dims[-1])):
        raise NotImplementedError(f"input {value.name!r} of the decoder is of the shape {dims}")
    dims[-4], dims[-2] = rows, 0
    return bb.emit(relax.op.zeros(relax.ShapeExpr(dims), dtype_of(value.dtype, value.name)))
