"""Sequences and optionals, against onnxruntime."""

import pickle

import numpy as np
import onnxruntime
import pytest
from onnx import parser

from tests.oracle import check_model
from tvm_ext import InferenceSession, convert_and_build, load
from tvm_ext.errors import InputError, OptionError, RunError
from tvm_ext.export import export

X = np.arange(12, dtype="float32").reshape(4, 3)
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def check(text, feeds):
    model = parser.parse_model(HEAD + text)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    check_model(model, feeds, expected=session.run(None, feeds))


def test_construct_insert_erase_at():
    check(
        """g (float[4,3] x, int64 k) => (float[4,3] y, float[4,3] z, int64 n) {
      two = Constant<value = int64 {-2}>()
      doubled = Add(x, x)
      tripled = Add(doubled, x)
      s = SequenceConstruct(x, doubled)
      t = SequenceInsert(s, tripled)
      y = SequenceAt(t, k)
      u = SequenceErase(t, two)
      z = SequenceAt(u, two)
      n = SequenceLength(t)
    }""",
        {"x": X, "k": np.array(2)},
    )


def test_split_and_concat():
    check(
        """g (float[4,3] x) => (float[m,3] y, float[a,b] z, int64 n) {
      three = Constant<value = int64 {3}>()
      s = SplitToSequence<axis = 0>(x, three)
      y = ConcatFromSequence<axis = 0>(s)
      t = SplitToSequence<axis = 1, keepdims = 0>(x)
      z = ConcatFromSequence<axis = 1, new_axis = 1>(t)
      n = SequenceLength(s)
    }""",
        {"x": X},
    )


def test_concat_of_dims_known_at_run_time():
    check(
        """g (float[a,b] x, float[c,d] y) => (float[e,f] z) {
      s = SequenceConstruct(x, y)
      z = ConcatFromSequence<axis = 0>(s)
    }""",
        {"x": X, "y": X[:1]},
    )


def test_optional_with_an_element():
    check(
        """g (float[4,3] x) => (float[4,3] y, bool b) {
      o = Optional(x)
      b = OptionalHasElement(o)
      y = OptionalGetElement(o)
    }""",
        {"x": X},
    )


def listed(value):
    return [np.asarray(x) for x in value] if isinstance(value, list) else value


def check_values(text, *many, level=3):
    """Run by us and by onnxruntime; outputs may be lists, or None."""
    model = parser.parse_model(HEAD + text)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    compiled = convert_and_build(model, "llvm", opt_level=level)
    for feeds in many:
        for got, want in zip(compiled.run(None, feeds), session.run(None, feeds), strict=True):
            assert type(got) is type(listed(want))
            if isinstance(want, list):
                assert [x.shape for x in got] == [np.shape(x) for x in want]
            got, want = (v if isinstance(v, list) else [v] for v in (got, want))
            for one, other in zip(got, want, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6)
    return compiled


LISTS = """g (seq(float[n,3]) s, float[m,3] x, int64 k) => (
      seq(float[p,3]) t, seq(float[q,3]) u, float[r,3] y, float[v,3] z, int64 c) {
  t = SequenceInsert(s, x, k)
  u = SequenceErase(t)
  at = SequenceAt(t, k)
  y = Exp(at)
  z = ConcatFromSequence<axis = 0>(t)
  c = SequenceLength(t)
}"""


def lists(count, k):
    rng = np.random.default_rng(count)
    given = [rng.standard_normal((n, 3)).astype("float32") for n in range(1, count + 1)]
    return {"s": given, "x": X, "k": np.array(k)}


@pytest.mark.parametrize("level", [0, 3])
def test_sequences_whose_length_is_known_at_run_time(level):
    check_values(LISTS, lists(3, 1), lists(1, -1), lists(0, 0), level=level)


def test_sequences_are_saved_and_pickled(tmp_path):
    model = parser.parse_model(HEAD + LISTS)
    compiled = convert_and_build(model, "llvm", opt_level=0)
    feeds = lists(2, 1)
    compiled.save(tmp_path / "model")
    for other in (load(tmp_path / "model"), pickle.loads(pickle.dumps(compiled))):
        assert str(other) == str(compiled)
        for got, want in zip(other.run(None, feeds), compiled.run(None, feeds), strict=True):
            np.testing.assert_equal(got, want)


def test_split_by_sizes_known_at_run_time():
    check_values(
        """g (float[4,n] x, int64[m] sizes, int64 size) => (
          seq(float[4,a]) s, seq(float[4,b]) t, seq(float[4]) u) {
      s = SplitToSequence<axis = 1>(x, sizes)
      t = SplitToSequence<axis = 1>(x, size)
      u = SplitToSequence<axis = 1, keepdims = 0>(x)
    }""",
        {"x": np.tile(X, 3)[:, :7], "sizes": np.array([2, 0, 5]), "size": np.array(3)},
        {"x": X, "sizes": np.array([3]), "size": np.array(9)},
    )


LOOP = """g (int64 trips, float[n] x) => (seq(float[m]) s, float[a] y) {
  yes = Constant<value = bool {1}>()
  none = SequenceEmpty()
  pair = SequenceConstruct(x, x)
  s = Loop(trips, yes, none) <body = b (int64 i, bool c, seq(float[q]) t) =>
        (bool d, seq(float[q]) u) {
      d = Identity(c)
      one = Constant<value = int64 {1}>()
      zero = Constant<value = int64[1] {0}>()
      head = Add(i, one)
      end = Unsqueeze(head, zero)
      half = SequenceAt(pair, one)
      part = Slice(half, zero, end)
      u = SequenceInsert(t, part)
  }>
  y = ConcatFromSequence<axis = 0>(s)
}"""


def test_a_loop_carries_a_sequence_that_grows():
    x = np.arange(5, dtype="float32")
    check_values(LOOP, {"trips": np.array(4), "x": x}, {"trips": np.array(1), "x": x})


def test_a_loop_carries_a_sequence_whose_type_is_not_declared():
    """As torch's exporter writes loops; onnx_ir's inference then says that it is a tensor."""
    model = parser.parse_model(HEAD + LOOP)
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    loop.attribute[0].g.input[2].ClearField("type")
    feeds = {"trips": np.array(3), "x": np.arange(5, dtype="float32")}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for got, want in zip(
        convert_and_build(model, "llvm").run(None, feeds), session.run(None, feeds), strict=True
    ):
        np.testing.assert_equal(got, want)


def test_branches_give_sequences_of_different_lengths():
    text = """g (bool c, float[n] x) => (seq(float[m]) s, int64 k) {
      s = If(c) <then_branch = a () => (seq(float[p]) t) { t = SequenceConstruct(x, x) },
                 else_branch = b () => (seq(float[q]) u) { u = SequenceConstruct(x) }>
      k = SequenceLength(s)
    }"""
    x = np.arange(3, dtype="float32")
    check_values(text, {"c": np.array(True), "x": x}, {"c": np.array(False), "x": x})


def test_map_over_sequences_known_at_run_time():
    """onnxruntime infers the shapes of the map's body wrongly; numpy judges."""
    model = parser.parse_model(
        HEAD
        + """g (seq(float[n,3]) s, float[3] w) => (seq(float[p,3]) t, seq(int64[2]) z) {
      v = Neg(w)
      t, z = SequenceMap(s, w) <body = b (float[a,3] e, float[3] f) => (float[b,3] y, int64[2] h) {
          g = Add(e, f)
          y = Mul(g, v)
          h = Shape(e)
      }>
    }"""
    )
    feeds = {"s": lists(3, 0)["s"], "w": np.array([1, 2, 3], "float32")}
    compiled = convert_and_build(model, "llvm")
    sums, shapes = compiled(**feeds)
    for x, y, shape in zip(feeds["s"], sums, shapes, strict=True):
        np.testing.assert_allclose(y, -(x + feeds["w"]) * feeds["w"], rtol=1e-6)
        assert shape.tolist() == list(x.shape)
    assert compiled(**feeds | {"s": []}) == ([], [])


OPTIONAL = """g (optional(float[n]) o, float[n] x) => (bool b, float[m] y) {
  b = OptionalHasElement(o)
  y = If(b) <then_branch = s () => (float[p] t) { t = OptionalGetElement(o) },
             else_branch = e () => (float[q] u) { u = Exp(x) }>
}"""


def test_optional_inputs():
    x = np.arange(3, dtype="float32")
    check_values(OPTIONAL, {"o": None, "x": x}, {"o": np.ones(7, "float32"), "x": x})


def test_optional_results():
    model = parser.parse_model(
        HEAD
        + """g (bool c, float[n] x) => (optional(float[n]) o) {
      o = If(c) <then_branch = a () => (optional(float[n]) t) { t = Optional(x) },
                 else_branch = b () => (optional(float[n]) u) {
                   u = Optional<type = optional(float[3])>() }>
    }""".replace("type = optional(float[3])", "type = float[3]")
    )
    compiled = convert_and_build(model, "llvm", opt_level=0)
    x = np.ones(3, "float32")
    assert compiled(np.array(False), x) is None
    np.testing.assert_array_equal(compiled(np.array(True), x), x)
    assert str(compiled.outputs[0]) == "o: optional(float32[n])"


def test_what_does_not_fit_is_refused():
    compiled = convert_and_build(parser.parse_model(HEAD + LISTS), "llvm", opt_level=0)
    good = lists(2, 0)
    with pytest.raises(InputError, match=r"needs rank 2"):
        compiled.run(None, good | {"s": X})
    with pytest.raises(InputError, match=r"'s\[1\]' needs dtype float32"):
        compiled.run(None, good | {"s": [X, X.astype("float64")]})
    with pytest.raises(InputError, match="None does not fit"):
        compiled.run(None, good | {"s": [None]})
    with pytest.raises(InputError, match=r"'s' is .*, of which none is made up"):
        compiled.benchmark()
    with pytest.raises(RunError, match=r"SequenceInsert-11 't' \(opset 17\): position 9 in a"):
        compiled.run(None, good | {"k": np.array(9)})
    with pytest.raises(OptionError, match="not t: seq"):
        export(compiled, "package")


def test_a_session_names_the_types():
    session = InferenceSession(parser.parse_model(HEAD + OPTIONAL), opt_level=0)
    assert [i.type for i in session.get_inputs()] == ["optional(tensor(float))", "tensor(float)"]
    session = InferenceSession(parser.parse_model(HEAD + LISTS), opt_level=0)
    assert session.get_outputs()[0].type == "seq(tensor(float))"
