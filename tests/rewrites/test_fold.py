"""What is folded, what is not, and that names and draws survive."""

import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from tvm_ext.frontend.rewrites import steps
from tvm_ext.frontend.rewrites.clean import share_common_subexpressions
from tvm_ext.frontend.rewrites.fold import fold_constants

from .checking import assert_same, model, operators, rewritten


def test_shape_arithmetic_folds():
    proto = model(
        "g (float[2, 3, 4] x) => (float[A, B] y) "
        "{ s = Shape(x) n = Gather(s, one) m = Unsqueeze(n, zero) t = Concat <axis = 0> (m, minus) "
        "y = Reshape(x, t) }",
        one=np.array(1), zero=np.array([0]), minus=np.array([-1]),
    )  # fmt: skip
    assert assert_same(proto, rewritten(proto, 1)) == ["Reshape"]


def test_large_weights_that_are_stored_narrow_are_made_wide():
    codes = np.random.default_rng(0).integers(-127, 128, (8, 40000)).astype("int8")
    proto = model(
        "g (float[3, 8] x) => (float[3, 40000] y) "
        "{ f = Cast <to = 1> (codes) w = Mul(f, scales) y = MatMul(x, w) }",
        codes=codes, scales=np.random.default_rng(1).uniform(0.001, 0.002, 40000).astype("float32"),
    )  # fmt: skip
    assert assert_same(proto, rewritten(proto, 1)) == ["Gemm"]


def test_a_large_constant_transposes_but_is_not_multiplied_out():
    big = np.random.default_rng(0).normal(size=(512, 600)).astype("float32")
    proto = model(
        "g (float[1, 1] x) => (float[600, 512] y, float[512, 512] z) "
        "{ t = Transpose(w) y = Add(x, t) u = Transpose(v) z = MatMul(v, u) }", w=big, v=big,
    )  # fmt: skip
    names = operators(rewritten(proto, 1))
    assert sorted(names) == ["Add", "Gemm"]


def test_a_low_rank_update_of_weights_folds():
    rng = np.random.default_rng(0)
    shapes = {"w": (256, 192), "a": (256, 8), "b": (8, 192)}
    arrays = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    proto = model("g (float[3, 256] x) => (float[3, 192] y) "
                  "{ ab = MatMul(a, b) v = Add(w, ab) y = MatMul(x, v) }", **arrays)  # fmt: skip
    assert len(assert_same(proto, rewritten(proto, 1), rtol=1e-4, atol=1e-4)) == 1


STANDARDISED = """g (float[1, 1024, 3] x) => (float[1, 512, 3] y) {
    m = ReduceMean <axes = [0, 2], keepdims = 0> (w)
    m1 = ReduceMean <axes = [0, 2], keepdims = 1> (w)
    d = Sub(w, m1) e = Mul(d, d) v = ReduceMean <axes = [0, 2], keepdims = 0> (e)
    n, new_m, new_v = BatchNormalization <training_mode = 1, momentum = 1.0> (w, g, b, m, v)
    r = Reshape(n, shape) k, l = Split <axis = 1> (r, half) c = Concat <axis = 1> (l, k)
    y = Conv(x, c)
}"""


def standardised(outputs="float[1, 512, 3] y", momentum=1.0):
    rng = np.random.default_rng(0)
    w, g = (rng.uniform(1, 2, shape).astype("float32") for shape in ((1, 512, 1024), 512))
    text = STANDARDISED.replace("float[1, 512, 3] y", outputs)
    return model(text.replace("momentum = 1.0", f"momentum = {momentum}"), 17, w=w, g=g, b=g,
                 shape=np.array([512, 1024, 1]), half=np.array([512, 512]))  # fmt: skip


def test_standardised_weights_fold():
    """As timm exports them: temporaries larger than what folding may add are forgotten."""
    proto = standardised()
    assert assert_same(proto, rewritten(proto, 1), rtol=1e-3, atol=1e-3) == ["Conv"]


def test_statistics_that_are_read_are_not_forgotten():
    proto = standardised("float[512] new_m, float[512] new_v", 0.25)
    assert_same(proto, rewritten(proto, 1))


@pytest.mark.parametrize("node, opset", [
    ("y = Softmax <axis = 1> (c)", 11),
    ("y = LogSoftmax (c)", 12),
    ("y = Hardmax <axis = 1> (c)", 11),
    ("y = LRN <size = 3> (c)", 17),
    ("y = LpNormalization <p = 1, axis = 1> (c)", 17),
    ("y = LayerNormalization <axis = 2> (c, ones)", 17),
    ("n = BatchNormalization (c, six, six, six, six) y = Neg(n)", 8),
    ("n = BatchNormalization <epsilon = 0.1> (c, six, six, six, six) y = Neg(n)", 9),
    ("n = BatchNormalization <epsilon = 0.1> (c, six, six, six, six) y = Neg(n)", 14),
    ("m = Max(c, ones) y = Mean(m, c)", 17),
])  # fmt: skip
def test_constants_fold_into_what_onnxruntime_computes(node, opset):
    c = np.random.default_rng(0).normal(size=(2, 6, 4, 4)).astype("float32")
    ones = np.ones((4, 4) if "Layer" in node else 1, "float32")
    six = {"six": np.arange(1, 7, dtype="float32")} if "six" in node else {}
    proto = model(f"g () => (float[2, 6, 4, 4] y) {{ {node} }}", opset, c=c, ones=ones, **six)
    assert_same(proto, rewritten(proto, 1))


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 4), (2, 3, 4, 3, 2)])
@pytest.mark.parametrize("operator", ["GlobalMaxPool", "GlobalAveragePool"])
def test_global_pools_of_constants(operator, shape):
    """Numpy's reference of onnx takes the maximum over the wrong axes of all but images."""
    c = np.random.default_rng(0).normal(size=shape).astype("float32")
    dims = ", ".join("23abc"[: len(shape)])
    proto = model(f"g () => (float[{dims}] y) {{ y = {operator} (c) }}", 22, c=c)
    assert_same(proto, rewritten(proto, 1))


def test_a_constant_that_cannot_be_split_is_left_to_the_converter():
    proto = model("g (float[8] x) => (float[4] y) { a, b = Split(w, parts) y = Add(a, b) }",
                  17, w=np.ones(8, "float32"), parts=np.array([4, 4]))  # fmt: skip
    proto.graph.node[0].attribute.append(helper.make_attribute("axis", 3))
    assert operators(fold_constants(ir.from_proto(proto))) == ["Split", "Add"]


def test_normalised_weights_fold():
    v, g = (
        np.random.default_rng(0).normal(size=s).astype("float32") for s in ((64, 96, 9), (64, 1, 1))
    )
    proto = model(
        "g (float[1, 96, 20] x) => (float[1, 64, 12] y) "
        "{ n = ReduceL2 <axes = [1, 2]> (v) s = Div(g, n) w = Mul(v, s) y = Conv(x, w) }",
        17, v=v, g=g,
    )  # fmt: skip
    assert operators(rewritten(proto, 1)) == ["Conv"]


@pytest.mark.parametrize("node, arrays", [
    ("y = Expand(one, shape)", {}),
    ("y = ConstantOfShape(shape)", {}),
    ("y = Tile(one, shape)", {}),
    ("c = Cast <to = 7> (shape) y = Expand(one, c)", {}),
])  # fmt: skip
def test_a_few_bytes_do_not_fold_into_gigabytes(node, arrays):
    proto = model(f"g () => (float[A, B, C] y) {{ {node} }}", one=np.ones((1, 1, 1), "float32"),
                  shape=np.array([1 << 20, 1 << 20, 1 << 10]))  # fmt: skip
    result = fold_constants(ir.from_proto(proto))
    assert result.graph.num_nodes() >= 1
    assert all(v.const_value.nbytes < 1000 for v in result.graph.initializers.values())


@pytest.mark.parametrize("op", ["Bernoulli", "RandomNormalLike", "RandomUniformLike"])
def test_random_operators_are_neither_folded_nor_shared(op):
    proto = model(f"g () => (float[64] y) {{ a = {op}(p) b = {op}(p) y = Sub(a, b) }}",
                  p=np.full(64, 0.5, "float32"))  # fmt: skip
    names = operators(rewritten(proto))  # Bernoulli may have become its body
    assert sum(name == op or name.startswith("Random") for name in names) == 2


def test_training_dropout_is_not_shared_and_that_of_inference_goes():
    proto = model("g (float[64] x) => (float[64] y) { a = Dropout(x, r, t) b = Dropout(x, r, t) "
                  "y = Sub(a, b) }", r=np.float32(0.5).reshape(()), t=np.array(True))  # fmt: skip
    assert operators(rewritten(proto)) == ["Dropout", "Dropout", "Sub"]
    proto = model("g (float[64] x) => (float[64] y) { a = Dropout(x) y = Relu(a) }")
    assert assert_same(proto, rewritten(proto)) == ["Relu"]


@pytest.mark.parametrize("body, outputs", [
    ("a = Relu(x) y = Identity(a)", "float[4] a, float[4] y"),
    ("a = Relu(x) y = Identity(a)", "float[4] y"),
    ("y = Identity(x)", "float[4] y"),
    ("y = Relu(x) z = Relu(x)", "float[4] z, float[4] y"),
    ("y = Identity(c)", "float[4] y"),
])  # fmt: skip
def test_outputs_keep_their_names(body, outputs):
    arrays = {"c": np.arange(4, dtype="float32")} if "c" in body.split("(")[-1] else {}
    proto = model(f"g (float[4] x) => ({outputs}) {{ {body} }}", **arrays)
    assert_same(proto, rewritten(proto))


def test_equal_nodes_are_computed_once():
    proto = model("g (float[4] x) => (float[4] y) { a = Exp(x) b = Exp(x) y = Add(a, b) }")
    result = share_common_subexpressions(ir.from_proto(proto))
    assert sorted(assert_same(proto, result)) == ["Add", "Exp"]


def test_a_branch_reads_a_value_that_is_folded_outside():
    branch = onnx.parser.parse_graph("b () => (float[2] z) { z = Add(x, k) }")
    other = onnx.parser.parse_graph("b () => (float[2] z) { u = Mul(x, k) z = Identity(u) }")
    node = helper.make_node("If", ["p"], ["y"], then_branch=branch, else_branch=other)
    outer = model("g (float[2] x, bool p) => (float[2] y) { k = Neg(c) y = Identity(x) }",
                  c=np.array([1, 2], "float32"))  # fmt: skip
    outer.graph.node[1].CopyFrom(node)
    for flag in True, False:
        feeds = {"x": np.array([3, 5], "float32"), "p": np.array(flag)}
        assert_same(outer, rewritten(outer), feeds)


def test_a_node_that_the_folding_fails_on_is_kept():
    proto = model(
        "g (float[6] x, int64 s) => (float[A] y) { q = SplitToSequence(x, s) "
        "y = SequenceAt(q, one) }", one=np.array(1),
    )  # fmt: skip
    feeds = {"x": np.arange(6, dtype="float32"), "s": np.array(3)}
    assert "SplitToSequence" in assert_same(proto, rewritten(proto), feeds)


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize("size", [2, 4])
def test_a_sequence_of_parts_folds_to_a_split_of_the_opset(opset, size):
    proto = model(
        "g (float[6] x) => (float[A] y) { q = SplitToSequence(x, s) y = SequenceAt(q, one) }",
        opset=opset, s=np.array(size), one=np.array(1),
    )  # fmt: skip
    onnx.checker.check_model(ir.to_proto(rewritten(proto, 1)))
    assert_same(proto, rewritten(proto, 1))


def test_the_names_of_all_steps_differ():
    for level in range(4):
        names = [name for name, _ in steps(level)]
        assert len(set(names)) == len(names)
        assert set(names) >= {"inline-functions", "expand-functions"}


def test_nothing_is_said_of_what_folds_to_nan_or_cannot_be_folded(caplog):
    proto = model(
        "g (float[2] x) => (float[2] y, float[2] z) "
        "{ l = Log (w) y = Add(x, l) r = Reshape (w, to) z = Add (x, r) }",
        w=np.float32([-1, 2]), to=np.array([3]),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "Log" not in operators(rewritten(proto, 1))
    assert not caplog.records
