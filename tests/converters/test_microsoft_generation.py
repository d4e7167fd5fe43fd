"""GreedySearch of com.microsoft, over a small decoder; oracle: onnxruntime."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnxruntime_oracle import operands, run_onnxruntime
from tvm_ext import convert_and_build

RNG, data, _ = operands(15)
WORDS, SIZE, END, PAD = 13, 4, 5, 0


def decoder():
    """One layer of attention over all tokens that count."""
    tensor = helper.make_tensor_value_info
    ints = [tensor(name, TensorProto.INT32, ["B", size]) for name, size in
            (("input_ids", "S"), ("position_ids", "S"), ("attention_mask", "L"))]  # fmt: skip
    layers = [tensor(name, TensorProto.FLOAT, [2, "B", 1, size, SIZE])
              for name, size in (("past_0", "P"), ("present_0", "L"))]  # fmt: skip
    node = helper.make_node
    nodes = [
        node("Gather", ["words", "input_ids"], ["a"]),
        node("Gather", ["places", "position_ids"], ["b"]),
        node("Add", ["a", "b"], ["x"]),
        node("Unsqueeze", ["x", "front"], ["kv"]),
        node("Concat", ["kv", "kv"], ["both"], axis=0),
        node("Unsqueeze", ["both", "second"], ["fresh"]),
        node("Concat", ["past_0", "fresh"], ["present_0"], axis=3),
        node("Gather", ["present_0", "zero"], ["kept"], axis=0),
        node("Squeeze", ["kept", "one"], ["k"]),
        node("Transpose", ["k"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["x", "turned"], ["raw"]),
        node("Cast", ["attention_mask"], ["seen"], to=TensorProto.FLOAT),
        node("Sub", ["seen", "unit"], ["less"]),
        node("Mul", ["less", "far"], ["hidden"]),
        node("Unsqueeze", ["hidden", "one"], ["hidden_rows"]),
        node("Add", ["raw", "hidden_rows"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "k"], ["y"]),
        node("MatMul", ["y", "out"], ["logits"]),
    ]
    constants = {
        "words": 2 * data(WORDS, SIZE), "places": data(20, SIZE), "out": 3 * data(SIZE, WORDS),
        "front": np.array([0]), "second": np.array([2]), "zero": np.array(0), "one": np.array([1]),
        "unit": np.float32(1).reshape(()), "far": np.float32(1000).reshape(()),
    }  # fmt: skip
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    logits = tensor("logits", TensorProto.FLOAT, ["B", "S", WORDS])
    return helper.make_graph(nodes, "decoder", [*ints, layers[0]], [logits, layers[1]], held)


@pytest.mark.parametrize("rules, symbolic", [(False, True), (True, False)])
def test_greedy_search(rules, symbolic):
    prompts = [RNG.integers(1, WORDS, (2, 4)).astype("int32") for _ in range(4)]
    prompts[0][0, 0] = PAD
    feeds = {"ids": prompts[0], "longest": np.array([12], "int32")}
    if rules:
        allowed, first = np.ones(WORDS, "int32"), np.ones((2, WORDS), "int32")
        allowed[8], first[0, 3:9] = 0, 0
        feeds |= {"least": np.array([7], "int32"), "penalty": np.array([1.3], "float32"),
                  "allowed": allowed, "first": first}  # fmt: skip
    attributes = {"no_repeat_ngram_size": 2} if rules else {}
    node = helper.make_node(
        "GreedySearch", list(feeds), ["tokens"], "search", domain="com.microsoft",
        decoder=decoder(), eos_token_id=END, pad_token_id=PAD, model_type=0, **attributes,
    )  # fmt: skip
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype),
            ["B", "S"] if symbolic and name == "ids" else array.shape,
        )
        for name, array in feeds.items()
    ]  # fmt: skip
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT32, [None, None])
    graph = helper.make_graph([node], "graph", inputs, [tokens])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    compiled, lengths = convert_and_build(model, "llvm"), []
    for prompt in prompts:
        feeds["ids"] = prompt
        (expected,), (got,) = run_onnxruntime(model, feeds), compiled.run(None, feeds)
        # When all have ended, onnxruntime writes no more.
        lengths.append(1 + max(np.flatnonzero((got != PAD).any(0))))
        np.testing.assert_array_equal(got[:, : lengths[-1]], expected[:, : lengths[-1]])
        assert got.shape == expected.shape
    assert max(lengths) > 7
