"""GreedySearch and Sampling of com.microsoft, over a small decoder; oracle: onnxruntime.

Sampling draws by a generator of its own, so it is compared where one token is left to draw, and by
how often it draws which.
"""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnxruntime_oracle import operands, run_onnxruntime
from tvm_ext import convert_and_build

RNG, data, _ = operands(15)
WORDS, SIZE, END, PAD = 13, 4, 5, 0
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


def attention(x, keys, mask):
    """Nodes: logits of ``x[B, S, SIZE]`` that looks at ``keys[B, L, SIZE]`` where ``mask`` is 1."""
    return [
        NODE("Transpose", [keys], ["turned"], perm=[0, 2, 1]),
        NODE("MatMul", [x, "turned"], ["raw"]),
        NODE("Cast", [mask], ["seen"], to=TensorProto.FLOAT),
        NODE("Sub", ["seen", "unit"], ["less"]),
        NODE("Mul", ["less", "far"], ["hidden"]),
        NODE("Unsqueeze", ["hidden", "one"], ["hidden_rows"]),
        NODE("Add", ["raw", "hidden_rows"], ["scores"]),
        NODE("Softmax", ["scores"], ["weights"], axis=-1),
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


def searching(op_type, feeds, symbolic=False, **attributes):
    """A model of one node; ``feeds`` by the name of the input, None for absent ones."""
    node = NODE(op_type, [name if array is not None else "" for name, array in feeds.items()],
                ["tokens"], "search", domain="com.microsoft", eos_token_id=END, pad_token_id=PAD,
                **attributes)  # fmt: skip
    given = {name: array for name, array in feeds.items() if array is not None}
    inputs = [
        TENSOR(name, helper.np_dtype_to_tensor_dtype(array.dtype),
               ["B", "S"] if symbolic and name == "ids" else array.shape)
        for name, array in given.items()
    ]  # fmt: skip
    result = TENSOR("tokens", TensorProto.INT32, [None, None])
    whole = helper.make_graph([node], "graph", inputs, [result])
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
                  "first": first}  # fmt: skip
    attributes = {"no_repeat_ngram_size": 2} if rules else {}
    compiled, lengths = None, []
    for feeds["ids"] in prompts(4):
        if compiled is None:
            model = searching("GreedySearch", feeds, symbolic, decoder=decoder(),
                              model_type=0, **attributes)  # fmt: skip
            compiled = convert_and_build(model, "llvm")
        (expected,), (got,) = run_onnxruntime(model, feeds), compiled.run(None, feeds)
        # When all have ended, onnxruntime writes no more.
        lengths.append(1 + max(np.flatnonzero((got != PAD).any(0))))
        np.testing.assert_array_equal(got[:, : lengths[-1]], expected[:, : lengths[-1]])
        assert got.shape == expected.shape
    assert max(lengths) > 7


@pytest.mark.parametrize("custom", [0, 1])
def test_sampling(custom):
    """With a small share it is the most probable token; else as often as probable."""
    feeds = {"ids": prompts(2)[1], "longest": number(11)}
    attributes = {"decoder": decoder(), "custom": custom, "temperature": 0.7}
    narrow = searching("Sampling", feeds, top_p=1e-3, min_tokens_to_keep=1, **attributes)
    greedy = searching("GreedySearch", feeds, decoder=decoder())
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
    model = searching("Sampling", feeds, **attributes)
    given = {name: array for name, array in feeds.items() if array is not None}
    (got,), (expected,) = (
        convert_and_build(model, "llvm").run(None, given),
        run_onnxruntime(model, given),
    )
    shares = [np.bincount(found[:, 4], minlength=WORDS) / len(rows) for found in (got, expected)]
    assert (shares[0] > 0).sum() > 2
    np.testing.assert_array_equal(shares[0] > 0, shares[1] > 0)
    np.testing.assert_allclose(*shares, atol=0.04)  # 4 standard deviations of a half
