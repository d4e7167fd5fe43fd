"""If, Loop and Scan, against onnxruntime."""

import numpy as np
import onnxruntime
import pytest
from onnx import parser

from tests.oracle import check_model
from tvm_ext import convert_and_build
from tvm_ext.errors import ConversionError, RunError

X = np.arange(6, dtype="float32").reshape(2, 3)
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def check(text, feeds, opt_levels=(0, 1)):
    model = parser.parse_model(HEAD + text)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    check_model(model, feeds, expected=session.run(None, feeds), opt_levels=opt_levels)


BRANCHES = """<then_branch = t () => (float[a,b] o) { o = Concat<axis=0>(x, x) },
              else_branch = e () => (float[a,b] p) { p = Transpose(x) }>"""


@pytest.mark.parametrize("flag", [True, False])
def test_branches_of_different_shapes(flag):
    check(
        f"""g (bool c, float[n,3] x) => (float[m,k] y) {{
      y = If (c) {BRANCHES}
    }}""",
        {"c": np.array(flag), "x": X},
    )


def test_the_first_loop():
    text = """g (int64 n, bool go, float[2] x) => (float[2] last, float[k,2] all) {
      last, all = Loop (n, go, x) <body = b (int64 i, bool c, float[2] s) =>
                                          (bool d, float[2] t, float[2] u) {
        d = Identity (c)  t = Add (s, s)  u = Identity (t)
      }>
    }"""
    model = parser.parse_model(HEAD.replace("17", "10") + text)
    feeds = {"n": np.array(3), "go": np.array(True), "x": X[0, :2]}
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    check_model(model, feeds, expected=wanted)


RANKS = """g (bool c, float[n,3] x, float[1] w) => (float[n,3] y) {
  s = If (c) <then_branch = t () => (o) { o = ReduceSum<keepdims=0>(x) },
              else_branch = e () => (p) { p = ReduceSum<keepdims=1>(w) }>
  z = Mul(x, s)
  y = Add(z, w)
}"""


@pytest.mark.parametrize("flag", [True, False])
def test_branches_of_different_ranks_that_are_broadcast(flag):
    check(RANKS, {"c": np.array(flag), "x": X, "w": np.float32([2])})


@pytest.mark.parametrize(
    "use, refused", [("Mul(s, s)", "Mul-14"), ("MatMul(x, s)", "If-16 .* which MatMul takes")]
)
def test_branches_of_different_ranks_are_refused_where_it_shows(use, refused):
    model = parser.parse_model(HEAD + RANKS.replace("Mul(x, s)", use))
    with pytest.raises(ConversionError, match=f"{refused}.*known only at run time"):
        convert_and_build(model, "llvm", opt_level=0)


# The products of w with a vector and with a matrix: what follows the If is another in each branch.
CONTINUED = """
g (bool c, bool d, float[n,3] x, float[4,n] w) => (float y, float[a,b] z, int64[k] s) {
  one = Constant<value_ints = [1]>()
  a = If (c) <then_branch = t () => (o) { o = ReduceSum<keepdims = 0>(x, one) },
              else_branch = e () => (p) { p = Neg(x) }>
  z = Relu(x)
  b = If (d) <then_branch = t () => (q) { q = Unsqueeze(a, one) },
              else_branch = e () => (r) { r = Sin(a) }>
  m = MatMul(w, b)
  s = Shape(m)
  y = ReduceMax<keepdims = 0>(m)
}"""


def test_branches_of_different_ranks_hold_what_follows():
    model = parser.parse_model(HEAD + CONTINUED)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    w = np.linspace(-1, 1, 8, dtype="float32").reshape(4, 2)
    for opt_level in (0, 3):
        compiled = convert_and_build(model, "llvm", opt_level=opt_level)
        for c, d in ((True, True), (True, False), (False, False)):
            feeds = {"c": np.array(c), "d": np.array(d), "x": X, "w": w}
            for got, wanted in zip(
                compiled.run(None, feeds), session.run(None, feeds), strict=True
            ):
                assert got.shape == wanted.shape
                np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("opt_level", [0, 3])
@pytest.mark.parametrize(
    "nodes",
    [
        "y = If (c) <then_branch = t () => (o) { o = Neg (x) }, else_branch = SUM>",
        "a = If (c) <then_branch = t () => (o) { o = Neg (x) }, else_branch = SUM>  y = Exp (a)",
        """zero = Constant <value_ints = [0]> ()  one = Constant <value_ints = [1]> ()
           s = Shape (x)
           rows = Gather (s, zero)  row = Equal (rows, one)  single = Squeeze (row)
           a = If (single) <then_branch = t () => (o) { o = Squeeze (x, zero) },
                            else_branch = e () => (p) { p = Identity (x) }>
           y = Softmax <axis = -1> (a)""",
    ],
)
def test_a_result_whose_rank_a_branch_decides(nodes, opt_level):
    total = "e () => (p) { p = ReduceSum <keepdims = 0> (x) }"
    model = parser.parse_model(
        f"{HEAD} g (bool c, float[n,3] x) => (float y) {{ {nodes.replace('SUM', total)} }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    compiled = convert_and_build(model, "llvm", opt_level=opt_level)
    assert str(compiled.outputs[0]) == "y: float32[...]"
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for flag, x in ((True, X), (False, X), (True, X[:1]), (False, X[:1])):
        feeds = {"c": np.array(flag), "x": x}
        (got,), (wanted,) = compiled.run(None, feeds), session.run(None, feeds)
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_a_branch_that_nothing_can_follow_is_refused_when_it_is_taken(caplog):
    text = CONTINUED.replace("Relu(x)", "Transpose<perm = [1, 0]>(a)")
    model = parser.parse_model(HEAD + text)
    compiled = convert_and_build(model, "llvm")
    w = np.ones((4, 2), "float32")
    feeds = {"c": np.array(False), "d": np.array(False), "x": X, "w": w}
    np.testing.assert_array_equal(compiled.run(None, feeds)[1], -X.T)
    assert "then_branch of a is refused when it is taken: Transpose-13 'z'" in caplog.text
    with pytest.raises(RunError, match=r"If-\d+ 'a' .*: Transpose-13 'z'"):
        compiled.run(None, {**feeds, "c": np.array(True)})


@pytest.mark.parametrize("flag", [True, False])
def test_branches_whose_sizes_are_found_at_run_time(flag):
    text = """
        graph (float[6] x, bool c) => (int64[n, 1] y) {
            y = If (c)
                <then_branch = t () => (int64[a, 1] p)
                    { z = NonZero (x)  p = Transpose <perm = [1, 0]> (z) },
                 else_branch = e () => (int64[b, 1] q)
                    { r = Relu (x)  s = NonZero (r)  q = Transpose <perm = [1, 0]> (s) }>
        }"""
    x = np.array([1, -1, 0, 2, 3, 0], "float32")
    check(text, {"x": x, "c": np.array(flag)}, (0, 1, 3))


@pytest.mark.parametrize("flag", [1, 0])
def test_a_constant_condition_picks_the_branch(flag):
    check(
        f"""g (float[n,3] x) => (float[m,k] y) {{
      c = Constant<value = bool {{{flag}}}>()
      y = If (c) {BRANCHES}
    }}""",
        {"x": X},
    )


@pytest.mark.parametrize("trips", [4, 0])
def test_loop_with_a_growing_state_and_captured_values(trips):
    check(
        """g (int64 n, float[2,3] x) => (float[m,3] y, float[q,2,3] s) {
      c = Constant<value = bool {1}>()
      y, s = Loop (n, c, x) <body = b (int64 i, bool ci, float[k,3] v)
                                      => (bool co, float[k2,3] vo, float[2,3] so) {
        co = Identity(ci)
        vo = Concat<axis=0>(v, x)
        so = Identity(x)
      }>
    }""",
        {"n": np.array(trips), "x": X},
    )


def test_many_trips_do_not_recurse():
    check(
        """g (float[2] x) => (float[2] y) {
      n = Constant<value = int64 {5000}>()
      c = Constant<value = bool {1}>()
      y = Loop (n, c, x) <body = b (int64 i, bool ci, float[2] v) => (bool co, float[2] vo) {
        co = Identity(ci)
        vo = Transpose(v)
      }>
    }""",
        {"x": X[0, :2]},
        opt_levels=(0,),
    )


def test_if_inside_a_loop():
    check(
        """g (int64 n, float[5] x) => (float[5] z, float[q,2] s) {
      c = Constant<value = bool {1}>()
      z, s = Loop (n, c, x) <body = b (int64 i, bool ci, float[5] v)
                                      => (bool co, float[5] vo, float[2] so) {
        co = Identity(ci)
        e = Constant<value = int64[2] {0,1}>()
        so = Gather(v, e)
        last = Constant<value = int64[1] {-1}>()
        end = Constant<value = int64[1] {-9}>()
        zero = Constant<value = int64[1] {0}>()
        vo = If(ci) <then_branch = t () => (float[5] o) { o = Slice(v, last, end, zero, last) },
                     else_branch = f () => (float[5] o2) { o2 = Identity(v) }>
      }>
    }""",
        {"n": np.array(3), "x": np.arange(5, dtype="float32")},
    )


def test_scan_along_other_axes_backwards():
    check(
        """g (float[3] s0, float[3,n] x) => (float[3] s, float[3,n] y) {
      s, y = Scan<num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1],
                  scan_output_axes=[1], scan_output_directions=[1],
                  body = b (float[3] a, float[3] v) => (float[3] ao, float[3] vo) {
        ao = Identity(v)
        vo = Identity(a)
      }>(s0, x)
    }""",
        {"s0": np.float32([7, 8, 9]), "x": np.arange(12, dtype="float32").reshape(3, 4)},
    )


SCAN_8 = """<ir_version: 3, opset_import: ["" : 8]>
g (int64[b] lengths, float[b,2] state, float[b,n,2] x, float[b,n] w) => (
    float[b,2] last, float[b,n,2] sums) {
  last, sums = Scan<num_scan_inputs = 2, directions = [0, 1], body = f (
      float[2] s, float[2] e, float k) => (float[2] t, float[2] u) {
    scaled = Mul(e, k)
    t = Add(s, scaled)
    u = Identity(t)
  }>(lengths, state, x, w)
}"""


def test_the_first_scan_scans_each_member_of_a_batch():
    """onnxruntime serves it no more; numpy judges."""
    rng = np.random.default_rng(8)
    lengths = np.array([2, 5, 0], "int64")
    state, x = rng.standard_normal((3, 2)), rng.standard_normal((3, 5, 2))
    w = rng.standard_normal((3, 5))
    sums, last = np.zeros((3, 5, 2)), state.copy()
    for b, n in enumerate(lengths):
        for k in range(n):
            last[b] += x[b, k] * w[b, n - 1 - k]
            sums[b, k] = last[b]
    model = convert_and_build(parser.parse_model(SCAN_8), "llvm")
    feeds = [v.astype("float32") for v in (state, x, w)]
    for got, want in zip(model(lengths, *feeds), (last, sums), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_what_a_loop_gives_is_sorted():
    """Its shape is known by a cast alone."""
    text = """g (float[9] x) => (float[a] y, int64[b] at, int64[c] p)
      <int64 n = {2}, bool go = {1}, int64[1] k = {2}> {
        w = Loop (n, go, x) <body = b (int64 i, bool c, float[9] v) => (bool d, float[9] u) {
            d = Identity (c)
            u = Add (v, x) }>
        y, at = TopK (w, k)
        distinct, p = Unique (w)
    }"""
    check(text, {"x": np.random.default_rng(4).standard_normal(9).astype("float32")}, (0, 2, 3))


def test_a_carried_value_that_grows_from_declared_nothing():
    """As torchvision's Mask R-CNN is exported: the body declares the dims of the first trip."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[5,4] x) => (float[a,b] y) <float[0,4] init = {}, bool yes = {1}, int64 n = {5}> {
      y = Loop(n, yes, init) <body = b (int64 i, bool c, float[0,4] r) => (bool d, float[u,v] s) {
        d = Identity(c)
        first = Constant<value = int64[1] {0}>()
        row = Gather(x, i)
        wide = Unsqueeze(row, first)
        s = Concat<axis = 0>(r, wide)
      }>
    }"""
    x = np.arange(20, dtype="float32").reshape(5, 4)
    np.testing.assert_array_equal(convert_and_build(parser.parse_model(text), "llvm")(x), x)


OTHER_RANK = """g (int64 n, float[a,3] x) => (float[b,c] y) {
  go = Constant<value = bool {1}>()
  none = Constant<value = float {7}>()
  y, left = Loop(n, go, none, none) <
    body = f (int64 i, bool g, float[p,q] old, float[r] other) => (bool h, float[s,t] v, float[u] w) {
      h = Identity(g)
      k = Cast<to = 1>(i)
      v = Add(x, k)
      w = ReduceSum<keepdims = 0>(v)
  }>
}"""  # noqa: E501


def test_a_loop_begins_with_another_rank_of_what_it_does_not_read():
    """As PaddlePaddle writes variables that only the loop defines."""
    x = np.arange(6, dtype="float32").reshape(2, 3)
    check(OTHER_RANK, {"n": np.array(3), "x": x})
    compiled = convert_and_build(parser.parse_model(HEAD + OTHER_RANK), "llvm")
    with pytest.raises(RunError, match=r"Loop-\d+ 'y' .*no trip, and 'y' .* of rank 0, not of 2"):
        compiled(np.array(0), x)


def test_a_loop_whose_rank_changes_where_nothing_reads_the_result():
    text = OTHER_RANK.replace("y, left", "left, y").replace("(float[b,c] y)", "(float y)")
    text = text.replace("float[u] w", "float w").replace("float[r] other", "float other")
    x = np.arange(6, dtype="float32").reshape(2, 3)
    for trips in (0, 4):
        check(text, {"n": np.array(trips), "x": x})


SCALAR_THEN_ONE = """g (int64 n, bool go, float s, float[1] x) => (float[] y, float[a,b] all) {
  y, all = Loop(n, go, s) <body = f (int64 i, bool c, float[] v) => (bool d, float[] w, float[] u) {
      d = Identity(c)
      w = Add(v, x)
      u = Concat<axis = 0>(x, w)
  }>
}"""


@pytest.mark.parametrize("trips", [1, 4])
def test_a_carried_value_whose_rank_the_first_trip_changes(trips):
    feeds = {
        "n": np.array(trips),
        "go": np.array(True),
        "s": np.array(2, "float32"),
        "x": np.float32([3]),
    }
    check(SCALAR_THEN_ONE, feeds)


def test_a_carried_value_whose_rank_every_trip_changes_is_refused():
    text = SCALAR_THEN_ONE.replace(
        "w = Add(v, x)", "z = Constant<value = int64[1] {0}>() w = Unsqueeze(v, z)"
    )
    text = text.replace("Concat<axis = 0>(x, w)", "Identity(x)")
    with pytest.raises(
        ConversionError, match="rank of a carried value changes after the first trip"
    ):
        convert_and_build(parser.parse_model(HEAD + text), "llvm")


def test_trips_whose_results_do_not_stack_are_refused():
    """As in onnxruntime; the number of inner trips differs."""
    model = parser.parse_model(
        HEAD
        + """g (int64 n) => (int64[p,q] y) {
      t = Constant<value = bool {1}>()
      y = Loop(n, t) <body = b (int64 i, bool c) => (bool c2, int64[k] row) {
          c2 = Constant<value = bool {1}>()
          row = Loop(i, t) <body = d (int64 j, bool e) => (bool e2, int64 item) {
              e2 = Constant<value = bool {1}>()
              item = Identity(j)
          }>
      }>
    }"""
    )
    compiled = convert_and_build(model, "llvm")
    with pytest.raises(RunError, match=r"Loop-\d+ 'y' .*trip 0 gives \[0\].*, trip 1 \[1\]"):
        compiled(np.array(2))
