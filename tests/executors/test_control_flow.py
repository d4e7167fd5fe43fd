"""If, Loop and Scan as regions of a memory plan: no virtual machine, and nothing of TVM."""

import subprocess
import sys
import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import parser
from onnxruntime import InferenceSession

import tvm_ext
from tests.export.programs import compiled, ran
from tvm_ext import convert_and_build, load
from tvm_ext.errors import RunError
from tvm_ext.executors.static import StaticExecutor
from tvm_ext.executors.symbolic import SymbolicExecutor
from tvm_ext.executors.vm import VMExecutor


def model(text):
    parsed = parser.parse_model('<ir_version: 8, opset_import: ["": 17]>\n' + text)
    onnx.checker.check_model(parsed)
    return parsed


def check(parsed, executor, *feeds, levels=(0, 1, 3), rtol=1e-5, atol=1e-6):
    """At each level ``parsed`` is run by such an executor, and gives what onnxruntime does."""
    session = InferenceSession(parsed.SerializeToString())
    for level in levels:
        built = convert_and_build(parsed, "llvm", opt_level=level)
        assert isinstance(built.executor, executor)
        for given in feeds:
            for ours, theirs in zip(built.run(None, given), session.run(None, given), strict=True):
                assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
                np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)
    return built


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


# The branches write and pass on, both what is outside and what is theirs.
CHOICE = """g (bool c, float[{0}, 4] x) => (float[{0}, 4] y, float[{0}, 4] z, float[{0}, 4] u) {{
  r = Relu (x)
  a, z, u = If (c) <
    then_branch = t () => (float[{0}, 4] e, float[{0}, 4] r1, float[{0}, 4] e1) {{
      e0 = Exp (r)
      e = Softmax (e0)
      e1 = Identity (e)
      r1 = Identity (r)
    }},
    else_branch = f () => (float[{0}, 4] n, float[{0}, 4] x1, float[{0}, 4] n2) {{
      n = Neg (r)
      x1 = Identity (x)
      n2 = Softmax (n)
    }}>
  y = Mul (a, a)
}}"""


@pytest.mark.parametrize("rows", ["5", "N"])
def test_a_branch_writes_where_its_if_is_read(rows):
    executor = StaticExecutor if rows == "5" else SymbolicExecutor
    sizes = [5] if rows == "5" else [1, 5, 0, 33]
    feeds = [
        {"c": np.array(taken), "x": values(size, 4)} for size in sizes for taken in (True, False)
    ]
    check(model(CHOICE.format(rows)), executor, *feeds)


SWAP = """g (int64 n, int64 a0, int64 b0, float[3] p0, float[3] q0, float[3] r0)
  => (int64 a, int64 b, float[3] p, float[3] q, float[3] r) {
  go = Constant <value = bool {1}> ()
  a, b, p, q, r = Loop (n, go, a0, b0, p0, q0, r0) <
    body = trip (int64 i, bool g, int64 x, int64 y, float[3] u, float[3] v, float[3] w)
      => (bool g1, int64 y1, int64 sum, float[3] v1, float[3] w1, float[3] u1) {
      g1 = Identity (g)
      y1 = Identity (y)
      sum = Add (x, y)
      v1 = Identity (v)
      w1 = Softmax (w)
      u1 = Identity (u)
    }>
}"""


def test_what_trips_exchange_is_read_before_it_is_overwritten():
    p, q, r = values(3, 3)
    given = {"a0": np.array(0), "b0": np.array(1), "p0": p, "q0": q, "r0": r}
    feeds = [{"n": np.array(n), **given} for n in (0, 1, 2, 3, 50)]
    built = check(model(SWAP), StaticExecutor, *feeds)
    assert built.run(["a"], feeds[-1])[0] == 12586269025  # Fibonacci


NUMBERED = """g (bool c, int64 n) => (int64 sum) {
  go = Constant <value = bool {1}> ()
  zero = Constant <value = int64 {0}> ()
  hundred = Constant <value = int64 {100}> ()
  sum = Loop (n, go, zero) <
    body = trip (int64 i, bool g, int64 s) => (bool g1, int64 s2) {
      y = If (c) <
        then_branch = t () => (int64 p) { p = Identity (i) },
        else_branch = f () => (int64 q) { q = Identity (hundred) }>
      g1 = Identity (g)
      s1 = Add (s, y)
      s2 = Add (s1, i)
    }>
}"""


def test_no_branch_overwrites_the_number_of_a_trip():
    feeds = [{"c": np.array(c), "n": np.array(n)} for c in (True, False) for n in (0, 1, 5)]
    check(model(NUMBERED), StaticExecutor, *feeds)


READ_AGAIN = """g (int64 n, float[64] x0, float[64] w) => (float[64] x) {
  go = Constant <value = bool {1}> ()
  e = Softmax (w)
  x = Loop (n, go, x0) <
    body = trip (int64 i, bool g, float[64] v) => (bool g1, float[64] v1) {
      g1 = Identity (g)
      i0 = Constant <value = int64 {0}> ()
      s = Add (v, e)
      a = Softmax (s)
      b = CumSum (a, i0)
      c = Softmax (b)
      d = CumSum (c, i0)
      v1 = Softmax (d)
    }>
}"""


def test_what_each_trip_reads_is_not_overwritten_by_one():
    feeds = [{"n": np.array(n), "x0": values(64), "w": values(64, seed=1)} for n in (1, 2, 5)]
    check(model(READ_AGAIN), StaticExecutor, *feeds)


ONE_FOR_TWO = """g (float[3] a0, float[3] b0, float[3] c0)
  => (float[3] a, float[3] b, float[3] c, float[T, 3] as, float[T, 3] olds, float[T] positions) {
  n = Constant <value = int64 {4}> ()
  go = Constant <value = bool {1}> ()
  a, b, c, as, olds, positions = Loop (n, go, a0, b0, c0) <
    body = trip (int64 i, bool g, float[3] x, float[3] y, float[3] z)
      => (bool g1, float[3] s, float[3] s1, float[3] z1, float[3] s2, float[3] x1, float p) {
      g1 = Identity (g)
      t = Add (x, y)
      u = Mul (t, z)
      s = Softmax (u)
      s1 = Identity (s)
      s2 = Identity (s)
      z1 = Identity (z)
      x1 = Identity (x)
      p = Cast <to = 1> (i)
    }>
}"""


def test_one_value_for_two_and_results_of_all_trips():
    a, b, c = values(3, 3)
    check(model(ONE_FOR_TWO), StaticExecutor, {"a0": a, "b0": b, "c0": c})


LENGTH = """g (float[N, 3] xs, float[3] x0) => (float[3] x, float[N, 3] sums) {
  shape = Shape (xs)
  zero = Constant <value = int64 {0}> ()
  n = Gather (shape, zero)
  go = Constant <value = bool {1}> ()
  x, sums = Loop (n, go, x0) <
    body = trip (int64 i, bool g, float[3] v) => (bool g1, float[3] v1, float[3] v2) {
      g1 = Constant <value = bool {1}> ()
      row = Gather (xs, i)
      v1 = Add (v, row)
      v2 = Softmax (v1)
    }>
}"""


def test_results_of_as_many_trips_as_there_are_rows():
    feeds = [{"xs": values(n, 3), "x0": values(3)} for n in (1, 5, 0)]
    check(model(LENGTH), SymbolicExecutor, *feeds)


COUNTED = """g (float[2] x0, float most) => (float[2] x, int64 k) {
  n = Constant <value = int64 {9000000000}> ()
  zero = Constant <value = int64 {0}> ()
  one = Constant <value = int64 {1}> ()
  s0 = ReduceSum <keepdims = 0> (x0)
  go = Less (s0, most)
  x, k = Loop (n, go, x0, zero) <
    body = trip (int64 i, bool g, float[2] x1, int64 k1) => (bool g2, float[2] x2, int64 k2) {
      k2 = Add (k1, one)
      e = Exp (x1)
      e1 = Abs (x1)
      m = Min (e, e1)
      e2 = Sign (m)
      x2 = Add (x1, e2)
      s = ReduceSum <keepdims = 0> (x2)
      g2 = Less (s, most)
    }>
}"""


def test_a_loop_ends_by_what_it_computes_and_takes_no_memory_for_its_trips():
    feeds = [{"x0": np.ones(2, "f"), "most": np.array(most, "f")} for most in (0, 2, 3, 100)]
    built = check(model(COUNTED), StaticExecutor, *feeds)
    tracemalloc.start()
    _, trips = built.run(None, {"x0": np.ones(2, "f"), "most": np.array(2e5, "f")})
    assert trips == 99999
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


NESTED = """g (float[N, 3] x0, float[L, 3] xs, bool c, int64 n)
  => (float[N, 3] y, float[L, N, 3] ys) {
  go = Constant <value = bool {1}> ()
  y, ys = Scan (x0, xs) <num_scan_inputs = 1,
    body = step (float[N, 3] h, float[3] row) => (float[N, 3] h1, float[N, 3] out) {
      sum = Add (h, row)
      h1 = If (c) <
        then_branch = t () => (float[N, 3] r) {
          r = Loop (n, go, sum) <
            body = trip (int64 i, bool g, float[N, 3] v) => (bool g1, float[N, 3] v1) {
              f = Cast <to = 1> (i)
              five = Constant <value = int64 {5}> ()
              g1 = Less (i, five)
              w = Add (v, f)
              v1 = Tanh (w)
            }>
        },
        else_branch = f () => (float[N, 3] r) { r = Tanh (h) }>
      out = Softmax (h1)
    }>
}"""


def test_loops_and_branches_in_each_other():
    feeds = [
        {"x0": values(n, 3), "xs": values(length, 3), "c": np.array(c), "n": np.array(trips)}
        for n, length, c, trips in [
            (2, 4, True, 3),
            (2, 4, False, 3),
            (5, 1, True, 9),
            (1, 7, True, 0),
        ]
    ]
    check(model(NESTED), SymbolicExecutor, *feeds)


# A part of the branch's Concat comes from outside, and is read behind the If, too.
JOINED = """g (bool c, float[N, 4] x) => (float[M, 4] y, float[N, 4] z) {
  a = Exp (x)
  b = Softmax (a)
  y = If (c) <
    then_branch = t () => (float[M, 4] j) {
      s = Neg (b)
      d = Softmax (s)
      j = Concat <axis = 0> (b, d)
    },
    else_branch = f () => (float[M, 4] k) {
      k = Concat <axis = 0> (b, b)
    }>
  z = Softmax (b)
}"""


def test_parts_of_a_concat_in_a_branch_come_from_outside():
    feeds = [{"c": np.array(c), "x": values(n, 4)} for c in (True, False) for n in (3, 1, 0)]
    check(model(JOINED), SymbolicExecutor, *feeds)


# Halves that only one branch reads: there the number of rows has to be even.
HALVES = """g (bool c, float[N, 4] x) => (float[4] y) {
  two = Constant <value = int64[3] {-1, 2, 4}> ()
  y = If (c) <
    then_branch = t () => (float[4] s) {
      r = Reshape (x, two)
      e = Softmax <axis = 0> (r)
      axes = Constant <value = int64[2] {0, 1}> ()
      s = ReduceSum <keepdims = 0> (e, axes)
    },
    else_branch = f () => (float[4] m) {
      axes = Constant <value = int64[1] {0}> ()
      m = ReduceSum <keepdims = 0> (x, axes)
    }>
}"""


def test_sizes_are_refused_by_the_branch_that_is_taken_alone():
    feeds = [{"c": np.array(c), "x": values(n, 4)} for c, n in [(True, 6), (False, 6), (False, 7)]]
    built = check(model(HALVES), SymbolicExecutor, *feeds)
    with pytest.raises(RunError, match=r"\b(7|28)\b"):
        built.run(None, {"c": np.array(True), "x": values(7, 4)})
    again = built.run(None, feeds[0])  # no harm is done
    np.testing.assert_array_equal(again[0], built.run(None, feeds[0])[0])


# A batch whose kernels run strip after strip, in a loop.
STRIPS = """g (float[8, 8, 64, 64] x0, int64 n) => (float[8, 8, 64, 64] x, float[8, 8, 64, 64] z) {
  go = Constant <value = bool {1}> ()
  w0 = Constant <value = float {0.01}> ()
  ws = Constant <value = int64[4] {8, 8, 3, 3}> ()
  w1 = Expand (w0, ws)
  x = Loop (n, go, x0) <
    body = trip (int64 i, bool g, float[8, 8, 64, 64] v) => (bool g1, float[8, 8, 64, 64] v1) {
      g1 = Identity (g)
      a = Conv <pads = [1, 1, 1, 1]> (v, w1)
      b = Sin (a)
      c = Conv <pads = [1, 1, 1, 1]> (b, w1)
      d = Cos (c)
      v1 = Add (d, v)
    }>
  z = Conv <pads = [1, 1, 1, 1]> (x, w1)
}"""


def test_a_loop_over_a_batch():
    feeds = [{"x0": values(8, 8, 64, 64), "n": np.array(n)} for n in (0, 1, 3)]
    check(model(STRIPS), StaticExecutor, *feeds, levels=(1, 3), rtol=1e-4, atol=1e-4)


COUNT_AND_STACK = """g (float[2] x0, float most) => (float[2] x, float[T, 2] xs) {
  n = Constant <value = int64 {100}> ()
  go = Constant <value = bool {1}> ()
  x, xs = Loop (n, go, x0) <
    body = trip (int64 i, bool g, float[2] x1) => (bool g2, float[2] x2, float[2] x3) {
      x2 = Add (x1, x1)
      x3 = Softmax (x1)
      s = ReduceSum <keepdims = 0> (x2)
      g2 = Less (s, most)
    }>
}"""


def test_as_many_results_as_trips_that_are_computed_need_the_virtual_machine():
    feeds = [{"x0": np.ones(2, "f"), "most": np.array(most, "f")} for most in (0, 10, 1e4)]
    check(model(COUNT_AND_STACK), VMExecutor, *feeds, levels=(3,))


@pytest.mark.parametrize(
    "text, node, given",
    [
        (SWAP, "Softmax w1", {"n": np.array(5), "a0": np.array(0), "b0": np.array(1)}
         | dict(zip(["p0", "q0", "r0"], values(3, 3), strict=True))),
        (NESTED, "Tanh v1", {
            "x0": values(2, 3), "xs": values(4, 3), "c": np.array(True), "n": np.array(2)
        }),
    ],
)  # fmt: skip
def test_it_is_saved_and_timed(text, node, given, tmp_path):
    built = convert_and_build(model(text), "llvm")
    built.save(tmp_path / "m.tvmx")
    again = load(tmp_path / "m.tvmx")
    for ours, theirs in zip(again.run(None, given), built.run(None, given), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    table = again.profile(given)
    assert table.seconds > 0 and "(check)" not in str(table)
    assert node in [label for kernel in table.kernels for label in kernel.nodes]
    script = (
        "import sys, numpy, tvm_ext; tvm_ext.load(sys.argv[1]); assert 'tvm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "m.tvmx"], check=True)


def test_a_loop_is_a_c_package(tmp_path):
    package = tvm_ext.export(model(COUNTED), tmp_path / "counted", name="counted")
    text = ran(compiled(package, ["main.c"], "-fsanitize=address,undefined"), package)
    assert text.splitlines()[-1] == "correct"


AXIS_OF_A_BRANCH = """<ir_version: 8, opset_import: ["": 18]>
g (float[4, 5] x, bool c, int64 n) => (float[4, 5] y) <int64 one = {1}> {
  axis = If (c) <
    then_branch = more () => (int64 t) { t = Add (n, one) },
    else_branch = less () => (int64 e) { e = Sub (n, one) }>
  y = CumSum (x, axis)
}"""


def test_what_a_branch_gives_is_checked_whichever_is_taken(tmp_path):
    proto = parser.parse_model(AXIS_OF_A_BRANCH)
    feeds = [
        {"x": np.ones((4, 5), "float32"), "c": np.array(c), "n": np.array(n)}
        for c, n in [(True, 0), (False, 1), (False, 2), (True, -1)]
    ]
    built = check(proto, SymbolicExecutor, *feeds)
    built.save(tmp_path / "m.tvmx")
    for each in built, load(tmp_path / "m.tvmx"):
        for c, n in [(True, 1), (False, 3), (True, -4)]:
            given = feeds[0] | {"c": np.array(c), "n": np.array(n)}
            with pytest.raises(RunError, match=r"CumSum-\d+ 'y' .*the axis is"):
                each.run(None, given)
