"""Converters for BeamSearch of com.microsoft: a Loop over its decoder, whose state grows."""

from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
from tvm import relax, tirx

from tvm_ext.ops import beam_search as ops
from tvm_ext.ops.generation import (
    greedy_scores,
    last_token,
    left_padding,
    prompt_positions,
    steps_left,
)
from tvm_ext.ops.ngrams import completes_ngram
from tvm_ext.ops.scan import scan_trips

from ..microsoft import microsoft
from ..precision import cast
from .control_flow import run_trips
from .microsoft_generation import empty_past
from .search import largest_of
from .shape import reshaped, scalar, te_sizes
from .slicing import concat, take_slice

_GPT, _T5, _WHISPER = 0, 1, 2
_TIMESTAMPS = 1  # the logits_processor of Whisper
_LOWEST = float(np.finfo("float32").min)


@microsoft("BeamSearch")
def beam_search(bb, input_ids, max_length, min_length=None, num_beams=None,
                num_return_sequences=None, length_penalty=None, repetition_penalty=None,
                vocab_mask=None, prefix_vocab_mask=None, attention_mask=None,
                decoder_input_ids=None, logits_processor=None, *, decoder,
                decoder_start_token_id=-1, early_stopping=0, encoder=None, eos_token_id,
                init_decoder=None, model_type=_GPT, no_repeat_ngram_size=0, pad_token_id,
                vocab_size=-1):  # fmt: skip
    """The most probable texts that a decoder like that of GPT-2, or an encoder and a decoder like
    those of T5 or Whisper, give.

    The rows of all beams go through the decoder together, whose past follows the beams. A prompt is
    done by its own candidates; onnxruntime compares those of the prompt before it, too.
    """
    alone = model_type == _GPT
    if (encoder is None) != alone or not (init_decoder is None or alone):
        raise NotImplementedError("model_type 0 has no encoder; 1 and 2 have, and no init_decoder")
    if model_type not in (_GPT, _T5, _WHISPER):
        raise NotImplementedError(f"model_type {model_type}")
    if decoder_input_ids is not None and model_type != _WHISPER:
        raise NotImplementedError("tokens that begin the texts; those are for model_type 2")
    settings = eos_token_id, pad_token_id, early_stopping == 1, no_repeat_ngram_size, vocab_size
    search = _search(bb, input_ids, max_length, num_beams, settings, penalty=length_penalty,
                     least=min_length, repetition=repetition_penalty,
                     allowed=vocab_mask)  # fmt: skip
    if model_type == _GPT:
        texts = _like_gpt(search, decoder, init_decoder, input_ids, attention_mask)
    elif model_type == _T5:
        texts = _like_t5(search, encoder, decoder, decoder_start_token_id, input_ids,
                         attention_mask)  # fmt: skip
    else:
        texts = _like_whisper(search, encoder, decoder, decoder_start_token_id, input_ids,
                              decoder_input_ids, logits_processor)  # fmt: skip
    return _results(search, texts, num_return_sequences, prefix_vocab_mask)


@microsoft("WhisperBeamSearch")
def whisper_beam_search(bb, input_ids, max_length, min_length=None, num_beams=None,
                        num_return_sequences=None, length_penalty=None, repetition_penalty=None,
                        vocab_mask=None, prefix_vocab_mask=None, attention_mask=None,
                        decoder_input_ids=None, logits_processor=None, cross_qk_layer_head=None,
                        extra_decoding_ids=None, temperature=None, *,
                        beginning_timestamp_token_id=-1, decoder, decoder_output_cross_qk=0,
                        decoder_start_token_id=-1, early_stopping=0, encoder=None, eos_token_id,
                        init_decoder=None, model_type=_WHISPER, no_repeat_ngram_size=0,
                        no_speech_token_id=-1, no_timestamps_token_id=-1, pad_token_id,
                        start_of_lm_token_id=-1, transcribe_token_id=-1, translate_token_id=-1,
                        vocab_size=-1):  # fmt: skip
    """BeamSearch of model_type 2, by a ``temperature``; without what attention looked at."""
    if encoder is None or init_decoder is not None or model_type != _WHISPER:
        raise NotImplementedError(f"model_type {model_type}, no encoder, or two decoders")
    if decoder_output_cross_qk or extra_decoding_ids is not None:
        raise NotImplementedError("products of attention as results, or tokens to be forced")
    settings = eos_token_id, pad_token_id, early_stopping == 1, no_repeat_ngram_size, vocab_size
    search = _search(bb, input_ids, max_length, num_beams, settings, penalty=length_penalty,
                     least=min_length, repetition=repetition_penalty, allowed=vocab_mask,
                     temperature=temperature)  # fmt: skip
    texts = _like_whisper(search, encoder, decoder, decoder_start_token_id, input_ids,
                          decoder_input_ids, logits_processor)  # fmt: skip
    return _results(search, texts, num_return_sequences, prefix_vocab_mask)


def _search(bb, prompt, longest, beams, settings, **rules):
    search = _Search(
        bb, bb.shape(prompt)[0], _number(bb, beams), scalar(bb, longest, "max_length"), *settings
    )
    if rules["penalty"] is None:
        rules["penalty"] = bb.const(np.array([1], "float32"))
    search.add(**rules)
    return search


def _results(search, texts, wanted, first_allowed):
    bb, wanted = search.bb, _number(search.bb, wanted)
    _check_numbers(bb, search.beams, wanted, search.longest, bb.shape(texts.history)[1])
    first = None if first_allowed is None else search.each(first_allowed)
    return search.run(texts, wanted, first, len(bb.node.outputs) > 2)


def _number(bb, value):
    """A dim, 1 by default."""
    return 1 if value is None else bb.simplify(scalar(bb, value, "a number"))


def _check_numbers(bb, beams, wanted, longest, length):
    """Up to all beams are wanted, and texts get longer: asserted now or at run time."""
    given, least, most = [beams, wanted, longest], [1, 1, length + 1], [beams, beams, longest]
    for number, low, high in zip(given, least, most, strict=True):
        if all(isinstance(d, int) for d in (number, low, high)) and not low <= number <= high:
            raise ValueError(
                f"{wanted} texts of up to {longest} tokens, of {beams} beams from {length} tokens"
            )
    bounded = [bb.simplify(tirx.max(*te_sizes([low, bb.simplify(tirx.min(*te_sizes([d, high])))])))
               for d, low, high in zip(given, least, most, strict=True)]  # fmt: skip
    if not all(map(bb.equal, given, bounded)):
        names = "num_beams", "num_return_sequences", "max_length"
        reasons = [f"{name} is {{given}}, where {{wanted}} is nearest" for name in names]
        bb.demand_dims(given, bounded, *reasons)


# --- what a search goes through ---------------------------------------------------------------


def _like_gpt(search, decoder, init_decoder, prompt, given_mask):
    """The texts of a decoder that maps tokens, their positions, which of all count, and the past of
    each layer, ``[2, N, heads, P, size]``, to logits and the present of each layer."""
    bb, rows, history = search.bb, search.rows, search.each(prompt)
    found = bb.emit_te(prompt_positions, prompt, given_mask, search.pad)
    mask, positions, lengths = (
        search.each(bb.emit(relax.TupleGetItem(found, k))) for k in range(3)
    )
    pasts = [empty_past(bb, value, rows) for value in decoder.inputs[3:]]
    if len(decoder.outputs) != 1 + len(pasts):
        raise NotImplementedError(f"{len(decoder.outputs)} results of {len(pasts)} layers")

    def call(_, state, constant, graph=decoder):
        return bb.walk.inline(graph, state[1:])

    def follow(state, presents, chosen, rows):
        lengths, _, _, mask, *_ = state
        ones = bb.emit(relax.op.ones_like(chosen))
        longer, mask = bb.emit(relax.op.add(lengths, ones)), concat(bb, mask, ones, axis=1)
        presents = (_of_rows(bb, x, rows, 1) for x in presents)
        return [longer, chosen, lengths, mask, *presents]

    state = [lengths, history, positions, mask, *pasts]
    first = None if init_decoder is None else call(history, state, [], init_decoder)
    return _Texts(decoder, call, follow, history, state, [], first)


def _like_t5(search, encoder, decoder, start, prompt, mask):
    """The texts of an encoder of tokens, those that :func:`left_padding` says if there is no
    ``mask``, and a decoder."""
    if mask is None:
        mask = search.bb.emit_te(left_padding, prompt, search.pad)
    return _with_encoder(search, encoder, decoder, _starts(search, start), prompt, mask)


def _like_whisper(search, encoder, decoder, start, prompt, begin, processor):
    """The texts of an encoder of speech and a decoder, which go on from ``begin``."""
    known = np.array(0) if processor is None else search.bb.static(processor)
    if known is None or known.item() == _TIMESTAMPS:
        raise NotImplementedError("timestamps of Whisper (logits_processor 1, or at run time)")
    if begin is None:
        begin = _starts(search, start)
    begin = search.bb.of_shape(begin, [search.batch, search.bb.shape(begin)[1]])
    return _with_encoder(search, encoder, decoder, begin, prompt, None)


def _starts(search, token):
    """The first token of all texts: int32 ``[B, 1]``."""
    if token < 0:
        raise NotImplementedError("an encoder without decoder_start_token_id")
    bb, shape = search.bb, relax.ShapeExpr([search.batch, 1])
    return bb.emit(relax.op.full(shape, bb.const(np.array(token, "int32")), "int32"))


def _with_encoder(search, encoder, decoder, begin, prompt, mask):
    """The texts of an encoder and a decoder.

    The encoder maps the prompt and which of it counts to keys and values ``[B, heads, S, size]``
    that each layer looks at. Another kind takes ``begin``, too, and gives before them the logits
    of the first step, states ``[B, S, C]``, and the present of each layer. The decoder maps tokens,
    which of the prompt counts, the states if it has a name for them, the past of each layer, ``[N,
    heads, P, size]``, and what the encoder gave, to logits and the present of each layer.
    """
    bb, history = search.bb, search.each(begin)
    begins = encoder.outputs[0].name == "logits"
    operands = [x for x in (prompt, mask, begin if begins else None) if x is not None]
    if len(encoder.inputs) != len(operands):
        raise NotImplementedError(f"an encoder of {len(encoder.inputs)} inputs")
    found = [search.each(x) for x in bb.walk.inline(encoder, operands)]
    (logits, states), found = (found[:2], found[2:]) if begins else ((None, None), found)
    known = {"encoder_hidden_states": states}
    if mask is not None:
        known["encoder_attention_mask"] = search.each(mask)
    operands = (known.get(value.name) for value in decoder.inputs[1:])
    fixed = list(takewhile(lambda x: x is not None, operands))
    layers = len(decoder.outputs) - 1
    pasts, crossed = (found[:layers], found[layers:]) if begins else ([], found)
    if len(decoder.inputs) != 1 + len(fixed) + 2 * layers or len(crossed) != layers:
        raise NotImplementedError(f"{len(decoder.inputs)} inputs of a decoder of {layers} results")
    if not begins:
        places = decoder.inputs[1 + len(fixed) :][:layers]
        pasts = [empty_past(bb, value, search.rows, rank=4) for value in places]
    whole = decoder.inputs[0].shape[1] != 1  # it takes all tokens, not the last ones

    def call(history, state, constant):
        before, after = constant[: len(fixed)], constant[len(fixed) :]
        tokens = history if whole else state[0]
        return bb.walk.inline(decoder, [tokens, *before, *state[1:], *after])

    def follow(state, presents, chosen, rows):
        return [chosen, *(_of_rows(bb, x, rows, 0) for x in presents)]

    first = [logits, *pasts] if begins else None
    state, constant = [history, *pasts], [*fixed, *crossed]
    return _Texts(decoder, call, follow, history, state, constant, first)


def _of_rows(bb, x, rows, axis):
    """``x`` whose rows are those that the beams go on from."""
    return bb.emit(relax.op.take(x, rows, axis, mode="clip"))


@dataclass
class _Texts:
    """How texts go on.

    ``call(history, state, constant)`` gives logits and what the decoder ``graph`` keeps of all
    rows; ``follow(state, kept, chosen, rows)`` is the state of the next step. ``history`` are the
    tokens that they begin with; ``first`` are the results of the first step, if that is another
    one.
    """

    graph: object
    call: object
    follow: object
    history: object
    state: list
    constant: list
    first: list | None


# --- the search -------------------------------------------------------------------------------


@dataclass
class _Search:
    """The rules of a search; those that are tensors are ``given``, by ``names``."""

    bb: object
    batch: object
    beams: object
    longest: object
    end: int
    pad: int
    early: bool
    ngram: int
    vocabulary: int
    names: list = field(default_factory=list)
    given: list = field(default_factory=list)

    def __post_init__(self):
        bb = self.bb
        # The number of beams is that of elements: a dim, which the trips know by it.
        self.add(beams=bb.emit(relax.op.zeros(relax.ShapeExpr([self.beams]), "bool")))
        self.rows = bb.simplify(self.batch * self.beams)
        if not isinstance(self.rows, int | tirx.Var):  # a dim of its own, as it is in the trips
            self.rows = scalar(bb, bb.emit_te(scan_trips, self.rows), "", None)

    def add(self, **rules):
        for name, value in rules.items():
            if value is not None:
                self.names.append(name)
                self.given.append(value)

    def each(self, x):
        """``x``, each row as often as there are beams."""
        return self.bb.emit_te(ops.each_beam, x, *te_sizes([self.rows, self.beams]))

    def run(self, texts, wanted, first_allowed, scored):
        """The best texts, ``[B, R, M]``, their scores, ``[B, R]``, and, if ``scored``, those of all
        tokens in each step, ``[M - S, B, K, V]``."""
        bb, length = self.bb, self.bb.shape(texts.history)[1]
        state, going, totals = [texts.history, *self._start(), *texts.state], None, None
        searched, fixed = len(state) - len(texts.state), len(texts.constant)
        if texts.first is None:
            self.add(first=first_allowed)
        else:
            held = dict(zip(self.names, self.given, strict=True)) | {"first": first_allowed}
            zero = bb.const(np.array(0))
            going, state, totals = self._step(texts, texts.first, state, held, zero)

        def trip(iteration, _, values):
            own, values = values[: len(state)], values[len(state) :]
            results = texts.call(own[0], own[searched:], values[:fixed])
            held = dict(zip(self.names, values[fixed:], strict=True))
            going, own, totals = self._step(texts, results, own, held, iteration)
            return going, [*own, *([totals] if scored else [])]

        left = bb.emit_te(steps_left, *te_sizes([self.longest, bb.shape(state[0])[1]]))
        going = bb.const(np.array(True)) if going is None else going
        results = run_trips(bb, texts.graph, left, going, state, trip,
                            [*texts.constant, *self.given])  # fmt: skip
        best = self._best(results[:searched], wanted)
        if not scored:
            return best
        return *best, self._scores(totals, results[-1], bb.simplify(self.longest - length))

    def _start(self):
        """A search without tokens: sums, who is done, and no hypotheses."""
        bb, rows = self.bb, self.rows
        nothing = bb.emit(relax.op.zeros(relax.ShapeExpr([self.batch]), "int32"))
        best = bb.emit(relax.op.zeros(relax.ShapeExpr([rows]), "float32"))
        texts = bb.emit(relax.op.zeros(relax.ShapeExpr([rows, self.longest]), "int32"))
        sums = bb.emit_te(ops.first_sums, *te_sizes([rows, self.beams]))
        return [sums, nothing, texts, best, nothing]

    def _step(self, texts, results, state, held, iteration):
        """A token more of each beam: whether any goes on, the state after it, and the scores of all
        tokens, ``[B, K, V]``."""
        bb, (logits, *kept) = self.bb, results
        history, sums, *hypotheses = state[:6]
        (beams,), penalty = bb.shape(held["beams"]), held["penalty"]
        (batch,) = bb.shape(hypotheses[0])
        totals = self._totals(logits, history, sums, held, iteration, batch, beams)
        words = bb.shape(totals)[2]
        every = most = bb.simplify(beams * words)
        if isinstance(every, int):
            most = min(2 * beams, every)
        values, places = largest_of(bb, reshaped(bb, totals, [batch, every]), most, 1)
        found = bb.emit_te(
            ops.next_beams, values, places, history, penalty, *hypotheses,
            *te_sizes([beams, words]), self.end, self.pad, self.early,
        )  # fmt: skip
        sums, chosen, rows, done, *kept_texts = (
            bb.emit(relax.TupleGetItem(found, k)) for k in range(7)
        )
        chosen = bb.emit(relax.op.expand_dims(chosen, 1))
        history = concat(bb, _of_rows(bb, history, rows, 0), chosen, axis=1)
        following = texts.follow(state[6:], kept, chosen, rows)
        all_done = cast(bb, bb.emit(relax.op.min(done, None)), "bool")
        going = bb.emit(relax.op.logical_not(all_done))
        return going, [history, sums, done, *kept_texts, *following], totals

    def _totals(self, logits, history, sums, held, iteration, *dims):
        bb = self.bb
        last = cast(bb, self._last_token(logits), "float32")
        known = bb.emit(relax.op.nn.log_softmax(last, -1))
        rules = (held.get(name) for name in ("least", "repetition", "allowed", "first"))
        scores = bb.emit_te(greedy_scores, known, history, iteration, *rules, self.end)
        if self.ngram:
            scores = bb.emit_te(completes_ngram, history, scores, self.ngram, _LOWEST)
        return bb.emit_te(ops.totals, scores, sums, held.get("temperature"), *te_sizes(dims))

    def _last_token(self, logits):
        width = words = self.bb.shape(logits)[2]
        if self.vocabulary > 0:
            words = self.vocabulary
            if not isinstance(width, int) or words > width:
                raise NotImplementedError(f"vocab_size {words}, but logits of {width} words")
        return self.bb.emit_te(last_token, logits, words)

    def _best(self, state, wanted):
        bb, (history, sums, done, *hypotheses) = self.bb, state
        penalty = self.given[self.names.index("penalty")]
        found = bb.emit_te(ops.best_texts, sums, history, penalty, done, *hypotheses,
                           *te_sizes([self.beams]), self.pad)  # fmt: skip
        texts, best = (bb.emit(relax.TupleGetItem(found, k)) for k in range(2))
        shape = [self.batch, self.beams, self.longest]
        texts = take_slice(bb, reshaped(bb, texts, shape), [0] * 3, [1] * 3,
                           [self.batch, wanted, self.longest])  # fmt: skip
        best = reshaped(bb, best, shape[:2])
        return texts, take_slice(bb, best, [0] * 2, [1] * 2, [self.batch, wanted])

    def _scores(self, first, trips, steps):
        bb = self.bb
        trips = bb.of_shape(trips, [bb.shape(trips)[0], self.batch, self.beams, bb.shape(trips)[3]])
        return bb.emit_te(ops.step_totals, first, trips, *te_sizes([steps]))
