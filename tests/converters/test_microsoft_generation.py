"""GreedySearch, Sampling and BeamSearch of com.microsoft, over small decoders; oracle: onnxruntime.

Sampling draws by a generator of its own, so it is compared where one token is left to draw, and by
how often it draws which.
"""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnxruntime_oracle import operands, run_onnxruntime
from tests.uses import record
from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError, RunError

RNG, data, _ = operands(15)
WORDS, SIZE, END, PAD, START = 13, 4, 5, 0, 1
MASK = np.array([[0, 1, 1, 1], [1, 1, 1, 1]], "int32")
SYMBOLIC = {"ids": ["B", "S"], "mask": ["B", "S"], "begin": ["B", "T"]}
TENSOR, NODE = helper.make_tensor_value_info, helper.make_node
CONSTANTS = {
    "words": 2 * data(WORDS, SIZE), "places": data(20, SIZE), "out": 3 * data(SIZE, WORDS),
    "front": np.array([0]), "second": np.array([2]), "zero": np.array(0), "one": np.array([1]),
    "unit": np.float32(1).reshape(()), "far": np.float32(1000).reshape(()),
}  # fmt: skip


def graph(nodes, name, inputs, outputs):
    read = {value for node in nodes for value in node.input}
    held = [numpy_helper.from_array(CONSTANTS[key], key) for key in CONSTANTS if key in read]
    return helper.make_graph(nodes, name, inputs, outputs, held)


def tokens(name, *shape):
    return TENSOR(name, TensorProto.INT32, shape)


def floats(name, *shape):
    return TENSOR(name, TensorProto.FLOAT, shape)


def attention(x, keys, mask=None):
    """Nodes: logits of ``x[B, S, SIZE]`` that looks at ``keys[B, L, SIZE]`` where ``mask`` is 1."""
    hidden = [
        NODE("Cast", [mask or ""], ["seen"], to=TensorProto.FLOAT),
        NODE("Sub", ["seen", "unit"], ["less"]),
        NODE("Mul", ["less", "far"], ["hidden"]),
        NODE("Unsqueeze", ["hidden", "one"], ["hidden_rows"]),
        NODE("Add", ["raw", "hidden_rows"], ["scores"]),
    ]
    return [
        NODE("Transpose", [keys], ["turned"], perm=[0, 2, 1]),
        NODE("MatMul", [x, "turned"], ["raw"]),
        *(hidden if mask else []),
        NODE("Softmax", ["scores" if mask else "raw"], ["weights"], axis=-1),
        NODE("MatMul", ["weights", keys], ["y"]),
    ]


def decoder():
    """One layer of attention over all tokens that count."""
    ints = [
        tokens("input_ids", "B", "S"),
        tokens("position_ids", "B", "S"),
        tokens("attention_mask", "B", "L"),
    ]
    past, present = (floats(name, 2, "B", 1, size, SIZE)
                     for name, size in (("past_0", "P"), ("present_0", "L")))  # fmt: skip
    nodes = [
        NODE("Gather", ["words", "input_ids"], ["a"]),
        NODE("Gather", ["places", "position_ids"], ["b"]),
        NODE("Add", ["a", "b"], ["x"]),
        NODE("Unsqueeze", ["x", "front"], ["kv"]),
        NODE("Concat", ["kv", "kv"], ["both"], axis=0),
        NODE("Unsqueeze", ["both", "second"], ["fresh"]),
        NODE("Concat", ["past_0", "fresh"], ["present_0"], axis=3),
        NODE("Gather", ["present_0", "zero"], ["kept"], axis=0),
        NODE("Squeeze", ["kept", "one"], ["k"]),
        *attention("x", "k", "attention_mask"),
        NODE("MatMul", ["y", "out"], ["logits"]),
    ]
    return graph(nodes, "decoder", [*ints, past], [floats("logits", "B", "S", WORDS), present])


def encoder_and_decoder(kind):
    """A decoder that looks at what its encoder gives and at the mean of its own words.

    The encoder of T5 ``"begins"`` the texts or, in the kind ``"prompts"``, leaves that to the
    decoder; that of ``"whisper"`` begins them by as many words as are given, and has no mask.
    """
    begins, speech = kind != "prompts", kind == "whisper"
    crossed = [floats(f"{name}_cross_0", "B", 1, "E", SIZE) for name in ("key", "value")]
    own = [floats(f"{name}_self_0", "B", 1, "P", SIZE) for name in ("key", "value")]
    states = floats("encoder_hidden_states", "B", "E", SIZE)
    prompt, mask = tokens("encoder_input_ids", "B", "E"), tokens("encoder_attention_mask", "B", "E")
    given = [floats("encoder_input_ids", "B", SIZE, "E")] if speech else [prompt, mask]
    masked = None if speech else "encoder_attention_mask"

    def named(prefix, values):
        return [floats(f"{prefix}_{v.name}", *(d.dim_param or d.dim_value
                       for d in v.type.tensor_type.shape.dim)) for v in values]  # fmt: skip

    encoded = [
        NODE("Transpose", ["encoder_input_ids"], ["encoder_hidden_states"], perm=[0, 2, 1])
        if speech else NODE("Gather", ["words", "encoder_input_ids"], ["encoder_hidden_states"]),
        NODE("Unsqueeze", ["encoder_hidden_states", "one"], ["present_key_cross_0"]),
        NODE("Neg", ["present_key_cross_0"], ["present_value_cross_0"]),
    ]  # fmt: skip
    begun = [
        NODE("Gather", ["words", "decoder_input_ids"], ["x"]),
        NODE("Unsqueeze", ["x", "one"], ["present_key_self_0"]),
        NODE("Neg", ["present_key_self_0"], ["present_value_self_0"]),
        *attention("x", "encoder_hidden_states", masked),
        NODE("MatMul", ["y", "out"], ["logits"]),
    ]
    following = [
        NODE("Gather", ["words", "input_ids"], ["x"]),
        NODE("Unsqueeze", ["x", "one"], ["fresh"]),
        NODE("Concat", ["past_key_self_0", "fresh"], ["present_key_self_0"], axis=2),
        NODE("Neg", ["fresh"], ["against"]),
        NODE("Concat", ["past_value_self_0", "against"], ["present_value_self_0"], axis=2),
        NODE("ReduceMean", ["present_value_self_0", "second"], ["own_row"], keepdims=0),
        NODE("Squeeze", ["past_key_cross_0", "one"], ["k"]),
        *attention("x", "k", masked),
        NODE("Add", ["y", "own_row"], ["sum"]),
        NODE("MatMul", ["sum", "out"], ["logits"]),
    ]
    last, first = floats("logits", "B", 1, WORDS), floats("logits", "B", "T", WORDS)
    started = [tokens("decoder_input_ids", "B", "T" if speech else 1)]
    encoder = graph(
        encoded + (begun if begins else []), "encoder", given + (started if begins else []),
        [*([first, states, *named("present", own)] if begins else []), *named("present", crossed)],
    )  # fmt: skip
    read = [*([] if speech else [mask]), *([states] if begins else [])]
    decoder = graph(
        following, "decoder",
        [tokens("input_ids", "B", 1), *read, *named("past", own), *named("past", crossed)],
        [last, *named("present", own)],
    )  # fmt: skip
    return {"encoder": encoder, "decoder": decoder, "decoder_start_token_id": START,
            "model_type": 2 if speech else 1}  # fmt: skip


def searching(op_type, feeds, outputs, symbolic=False, fixed=(), **attributes):
    """A model of one node; ``feeds`` by the name of the input, None for absent ones."""
    names = [name if array is not None else "" for name, array in feeds.items()]
    while not names[-1]:
        names.pop()
    node = NODE(op_type, names, outputs, "search", domain="com.microsoft", eos_token_id=END,
                pad_token_id=PAD, **attributes)  # fmt: skip
    given = {name: array for name, array in feeds.items() if array is not None}
    inputs = [
        TENSOR(name, helper.np_dtype_to_tensor_dtype(array.dtype),
               SYMBOLIC[name] if symbolic and name in SYMBOLIC and array.ndim == 2 else array.shape)
        for name, array in given.items() if name not in fixed
    ]  # fmt: skip
    ranks = {"tokens": 3 if "Beam" in op_type else 2, "sums": 2, "scores": 4}
    results = [
        TENSOR(name, TensorProto.INT32 if name == "tokens" else TensorProto.FLOAT,
               [None] * ranks[name])
        for name in outputs if name
    ]  # fmt: skip
    held = [numpy_helper.from_array(given[name], name) for name in fixed]
    whole = helper.make_graph([node], "graph", inputs, results, held)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(whole, opset_imports=imports, ir_version=10)


def number(value, dtype="int32"):
    return np.array([value], dtype)


def prompts(count):
    found = [RNG.integers(1, WORDS, (2, 4)).astype("int32") for _ in range(count)]
    found[0][0, 0] = PAD
    return found


def masks(rows=2):
    allowed, first = np.ones(WORDS, "int32"), np.ones((rows, WORDS), "int32")
    allowed[8], first[0, 3:9] = 0, 0
    return allowed, first


@pytest.mark.parametrize("rules, symbolic", [(False, True), (True, False)])
def test_greedy_search(rules, symbolic):
    feeds = {"ids": None, "longest": number(12)}
    if rules:
        allowed, first = masks()
        feeds |= {"least": number(7), "penalty": number(1.3, "float32"), "allowed": allowed,
                  "first": first, "mask": MASK}  # fmt: skip
    attributes = {"no_repeat_ngram_size": 2} if rules else {}
    compiled, lengths = None, []
    for feeds["ids"] in prompts(4):
        if compiled is None:
            model = searching("GreedySearch", feeds, ["tokens"], symbolic, decoder=decoder(),
                              model_type=0, **attributes)  # fmt: skip
            compiled = convert_and_build(model, "llvm")
        (expected,), (got,) = run_onnxruntime(model, feeds), compiled.run(None, feeds)
        # When all have ended, onnxruntime writes no more.
        lengths.append(1 + max(np.flatnonzero((got != PAD).any(0))))
        np.testing.assert_array_equal(got[:, : lengths[-1]], expected[:, : lengths[-1]])
        assert got.shape == expected.shape
    record(model)
    assert max(lengths) > 7


@pytest.mark.parametrize("custom", [0, 1])
def test_sampling(custom):
    """With a small share it is the most probable token; else as often as probable."""
    feeds = {"ids": prompts(2)[1], "longest": number(11)}
    attributes = {"decoder": decoder(), "custom": custom, "temperature": 0.7}
    narrow = searching(
        "Sampling", feeds, ["tokens"], top_p=1e-3, min_tokens_to_keep=1, **attributes
    )
    greedy = searching("GreedySearch", feeds, ["tokens"], decoder=decoder())
    (got,), (expected,) = (
        convert_and_build(narrow, "llvm").run(None, feeds),
        run_onnxruntime(greedy, feeds),
    )
    end = 1 + max(np.flatnonzero((got != PAD).any(0)))
    np.testing.assert_array_equal(got[:, :end], expected[:, :end])


def test_sampling_draws_as_often_as_probable():
    rows = np.repeat(prompts(2)[1][:1], 4000, 0)
    feeds = {"ids": rows, "longest": number(5)}
    absent = dict.fromkeys(["least", "penalty", "allowed", "first", "mask", "presence"])
    feeds |= absent | {"seed": number(3)}
    attributes = {"decoder": decoder(), "top_p": 0.995, "temperature": 2.0, "min_tokens_to_keep": 1}
    model = searching("Sampling", feeds, ["tokens"], **attributes)
    given = {name: array for name, array in feeds.items() if array is not None}
    (got,), (expected,) = (
        convert_and_build(model, "llvm").run(None, given),
        run_onnxruntime(model, given),
    )
    shares = [np.bincount(found[:, 4], minlength=WORDS) / len(rows) for found in (got, expected)]
    assert (shares[0] > 0).sum() > 2
    np.testing.assert_array_equal(shares[0] > 0, shares[1] > 0)
    np.testing.assert_allclose(*shares, atol=0.04)  # 4 standard deviations of a half


def beam_feeds(**given):
    names = """ids longest least beams wanted length penalty allowed first mask begin processor
        pairs forced heat""".split()
    numbers = {"longest": number(12), "beams": number(3), "wanted": number(2),
               "length": number(1, "float32"), "least": number(1)}  # fmt: skip
    return dict.fromkeys(names) | numbers | given


RULES = {"least": number(8), "penalty": number(1.3, "float32"), "allowed": masks()[0],
         "first": masks()[1]}  # fmt: skip
FIXED = "longest", "beams", "wanted"
BEAMS = {
    # what is given, what of it is constant, attributes; and what further runs are given
    "gpt": (
        RULES | {"length": number(0.7, "float32"), "mask": MASK}, FIXED,
        {"decoder": decoder(), "init_decoder": decoder(), "no_repeat_ngram_size": 2}, [{}, {}],
    ),
    "whisper": (
        {"ids": data(2, SIZE, 5), "begin": np.array([[1, 2, 7], [1, 9, 4]], "int32"),
         "heat": number(0.8, "float32")}, (), encoder_and_decoder("whisper"),
        [{"beams": number(1), "wanted": number(1)}, {"beams": number(4), "longest": number(7)}],
    ),
    "t5": (
        {"length": number(0.2, "float32")}, (*FIXED, "length"),
        {**encoder_and_decoder("prompts"), "early_stopping": 1}, [{}, {}],
    ),
    "t5 that begins": (
        {"first": masks()[1]}, FIXED, encoder_and_decoder("begins"), [{}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(BEAMS))
def test_beam_search(kind):
    changes, fixed, attributes, runs = BEAMS[kind]
    feeds = beam_feeds(**{"ids": prompts(1)[0]} | changes)
    op_type = "WhisperBeamSearch" if kind == "whisper" else "BeamSearch"
    outputs = ["tokens", "sums", "scores"][: 2 if "begins" in kind else 3]
    model = searching(op_type, feeds, outputs, symbolic=True, fixed=fixed, **attributes)
    compiled = convert_and_build(model, "llvm")
    for run in [{}, *runs]:
        given = {name: array for name, array in (feeds | run).items()
                 if array is not None and name not in fixed}  # fmt: skip
        check_beams(run_onnxruntime(model, given), compiled.run(None, given))
        if "ids" not in changes:
            feeds["ids"] = prompts(2)[1]
    record(model)
    if "wanted" not in fixed:
        with pytest.raises(RunError, match="num_return_sequences is 5"):
            compiled.run(None, given | {"wanted": number(5)})


def check_beams(expected, got):
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(got[2:], expected[2:], strict=True):
        assert ours.shape == theirs.shape
        ended = (ours == 0).all((1, 2, 3))  # then onnxruntime writes no more
        steps = int(np.argmax(ended)) if ended.any() else len(ended)
        np.testing.assert_allclose(ours[:steps], theirs[:steps], rtol=1e-5, atol=1e-4)


def test_more_texts_than_beams_are_refused():
    feeds = beam_feeds(ids=prompts(2)[1], beams=number(2), wanted=number(3))
    model = searching("BeamSearch", feeds, ["tokens"], fixed=("beams", "wanted", "longest"),
                      decoder=decoder())  # fmt: skip
    with pytest.raises(ConversionError, match=r"3 texts .* 2 beams"):
        convert_and_build(model, "llvm")
