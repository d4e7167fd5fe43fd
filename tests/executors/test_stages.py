"""Models that compute sizes run in stages: what is read behind one are the sizes of the next."""

import numpy as np
import pytest
from onnx import parser

from tests.oracle import reference
from tvm_ext import convert_and_build, load
from tvm_ext.errors import RunError
from tvm_ext.executors.symbolic import SymbolicExecutor
from tvm_ext.executors.vm import VMExecutor

LEVELS = (0, 3)


def check(text, *feeds, levels=LEVELS, executor=SymbolicExecutor):
    """Build a model, and run it on each of ``feeds`` in turn; the last build."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    expected = [reference(model, given) for given in feeds]
    for level in levels:
        built = convert_and_build(model, "llvm", opt_level=level)
        assert isinstance(built.executor, executor)
        for _ in range(2):  # what is kept of other sizes does not serve
            for given, want in zip(feeds, expected, strict=True):
                spoil(built)
                for ours, theirs in zip(built.run(None, given), want, strict=True):
                    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
                    assert ours.shape == np.shape(theirs)
    return built


def spoil(built):
    """Have memory that is kept hold what no size may be."""
    if isinstance(built.executor, SymbolicExecutor):
        for stage in built.executor._workspace.stages:
            stage.memory[:] = 1


def rows(*counts):
    """Of 24 numbers, so many of them positive."""
    rng = np.random.default_rng(0)
    for count in counts:
        signs = rng.permutation(np.where(np.arange(24) < count, 1, -1))
        yield {"x": (signs * rng.integers(1, 5, 24)).astype("float32")}


# Some are chosen, of these what differs, of these those below their mean, as often as there are.
CHAIN = """g (float[a] x) => (float[p] some, float[u] each, float[q, m] table, float[a] soft)
<float zero = {0}, int64[1] flat = {-1}> {
  positive = Greater (x, zero)
  some = Compress (x, positive)
  each = Unique (some)
  mean = ReduceMean <keepdims = 0> (x)
  low = Greater (each, mean)
  below = Compress (each, low)
  count = Shape (below)
  shape = Concat <axis = 0> (count, count)
  table = Expand (below, shape)
  soft = Softmax (x)
}"""


def test_sizes_follow_from_sizes_that_were_computed():
    built = check(CHAIN, *rows(7, 24, 1, 0, 11))
    assert len(built.executor.plan.read) == 3


def test_a_saved_model_has_its_stages(tmp_path):
    built = check(CHAIN, *rows(5), levels=(3,))
    built.save(tmp_path / "m.tvmx")
    again = load(tmp_path / "m.tvmx")
    assert again.executor.plan == built.executor.plan
    for given in rows(9, 2):
        for ours, theirs in zip(again.run(None, given), built.run(None, given), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    kernels, seconds = again.executor.time_kernels([given["x"]], repeat=2)
    assert seconds.shape == (2, len(kernels)) and (seconds > 0).all()


# What is written before its place can be known: a part of a result, and a result of another shape.
EARLY = """g (float[a] x) => (float[n] joined, float[r, c] folded)
<float zero = {0}, int64[1] flat = {-1}, int64[1] two = {2}, int64[1] one = {1}> {
  soft = Softmax (x)
  hard = LogSoftmax (x)
  positive = Greater (x, zero)
  some = Compress (x, positive)
  sharp = Softmax (some)
  joined = Concat <axis = 0> (soft, sharp)
  count = Shape (some)
  even = Mod (count, two)
  columns = Add (even, one)
  shape = Concat <axis = 0> (flat, columns)
  folded = Reshape (hard, shape)
}"""


def test_what_is_written_before_its_size_is_known_is_copied():
    check(EARLY, *rows(7, 24, 0, 12))


# Parts that lie in the whole that they are joined to, where that can be allocated before them.
JOINED = """g (float[a, 16] x, bool[a] keep) => (float[n, 16] y, float[m, 16] z) {
  soft = Softmax (x)
  some = Compress <axis = 0> (x, keep)
  sharp = Softmax (some)
  y = Concat <axis = 0> (soft, sharp)
  flat = Softmax (sharp)
  z = Concat <axis = 0> (flat, some)
}"""


def test_parts_of_a_whole_whose_size_is_computed():
    x = np.random.default_rng(0).normal(size=(5, 16)).astype("float32")
    keeps = [np.arange(5) % n == 0 for n in (1, 2, 3)] + [np.zeros(5, bool)]
    check(JOINED, *({"x": x, "keep": keep} for keep in keeps))


# A number is a size only after another has been written that is none.
LATE = """
g (float[a] x) => (float[k] y, int64[a] z)
<float zero = {0}, int64 far = {1125899906842624}> {
  positive = Greater (x, zero)
  ones = Cast <to = 7> (positive)
  total = ReduceSum (ones)
  whole = CastLike (x, far)
  high = Mul (whole, far)
  top = ReduceMax (high)
  z = Sub (whole, top)
  y = ConstantOfShape (total)
}"""


def test_a_number_lasts_until_it_is_a_size():
    check(LATE, *rows(7, 24, 0))


# Both branches compute sizes, and read one that was computed before them. In memory there may be
# the top where the one that is not taken would have written a size.
BRANCHES = """
g (float[a] x, bool c, bool d) => (float[n] y, float[n] z, float[m] w, int64[a] v)
<float zero = {0}, float two = {2}, int64 far = {1125899906842624}> {
  positive = Greater (x, zero)
  some = Compress (x, positive)
  whole = CastLike (x, far)
  high = Mul (whole, far)
  top = ReduceMax (high)
  v = Sub (whole, top)
  y = If (c) <
    then_branch = chosen () => (float[k] t) {
      big = Greater (some, two)
      large = Compress (some, big)
      t = Neg (large)
    },
    else_branch = other () => (float[k] e) {
      e = If (d) <
        then_branch = inner () => (float[k] f) { f = Abs (some) },
        else_branch = constant () => (float[k] h) { h = Constant <value_floats = [3.0, 4.0]> () }>
    }>
  z = Exp (y)
  w = Concat <axis = 0> (z, some)
}"""


def test_branches_of_which_one_computes_its_size():
    flags = [{"c": np.bool_(c), "d": np.bool_(d)} for c in (True, False) for d in (True, False)]
    check(BRANCHES, *(given | flag for given in rows(13, 0, 24) for flag in flags))


# A size that is needed in one branch first, then in the other, and then behind both.
SHARED = """g (float[a] x, bool c) => (float[r, k] y, float[k] z)
<float zero = {0}, int64[1] three = {3}> {
  positive = Greater (x, zero)
  some = Compress (x, positive)
  count = Shape (some)
  y = If (c) <
    then_branch = ones () => (float[r, k] t) {
      s = Concat <axis = 0> (three, count)
      t = ConstantOfShape <value = float[1] {1}> (s)
    },
    else_branch = twos () => (float[r, k] e) {
      u = Concat <axis = 0> (three, count)
      e = ConstantOfShape <value = float[1] {2}> (u)
    }>
  z = ConstantOfShape (count)
}"""


def test_a_size_that_branches_share_is_read_whichever_is_taken():
    flags = [{"c": np.bool_(c)} for c in (True, False)]
    check(SHARED, *(given | flag for given in rows(5, 0, 24) for flag in flags))


# Known sizes that differ.
OF_TWO_SIZES = """g (float[24] x, bool c) => (float[n] y, float z) {
  y = If (c) <
    then_branch = once () => (float[24] t) { t = Exp (x) },
    else_branch = twice () => (float[48] e) { e = Concat <axis = 0> (x, x) }>
  z = ReduceSum <keepdims = 0> (y)
}"""


def test_branches_of_two_sizes():
    check(OF_TWO_SIZES, *({"c": np.bool_(c), **next(rows(9))} for c in (True, False)))


# Each trip computes a size anew.
IN_A_LOOP = """g (float[a] x, int64 n) => (float y) <float zero = {0}, bool yes = {1}> {
  y = Loop (n, yes, zero) <
    body = trip (int64 i, bool go, float s) => (bool on, float t) {
      on = Identity (go)
      least = CastLike (i, x)
      positive = Greater (x, least)
      some = Compress (x, positive)
      sum = ReduceSum <keepdims = 0> (some)
      t = Add (s, sum)
    }>
}"""


@pytest.mark.parametrize("count", [0, 3])
def test_sizes_that_each_trip_computes_are_left_to_the_vm(count):
    check(IN_A_LOOP, {"n": np.int64(count), **next(rows(9))}, executor=VMExecutor)


# As many trips as are counted, each of which gives a row.
STACKED = """g (float[a] x, float[3] s0) => (float[3] s, float[n, 3] rows, float[n] sums)
<float zero = {0}, bool yes = {1}, int64[1] axis = {1}> {
  positive = Greater (x, zero)
  ones = Cast <to = 7> (positive)
  count = ReduceSum <keepdims = 0> (ones)
  s, rows = Loop (count, yes, s0) <
    body = trip (int64 i, bool go, float[3] t) => (bool on, float[3] u, float[3] row) {
      on = Identity (go)
      row = Softmax (t)
      u = Add (t, row)
    }>
  sums = ReduceSum <keepdims = 0> (rows, axis)
}"""


def test_a_loop_of_as_many_trips_as_are_counted():
    start = {"s0": np.array([1, -2, 0.5], "float32")}
    built = check(STACKED, *(given | start for given in rows(3, 1, 24)))
    state, stacked, sums = built.run(None, next(rows(0)) | start)
    np.testing.assert_array_equal(state, start["s0"])
    assert stacked.shape == (0, 3) and sums.shape == (0,)


# What is checked of a number is checked of the one that it is in the end.
CHOSEN_SIZE = """g (float[a] x, bool c, int64[1] n) => (float[k] y) <int64[1] one = {1}> {
  size = If (c) <
    then_branch = more () => (int64[1] t) { t = Add (n, one) },
    else_branch = less () => (int64[1] e) { e = Sub (n, one) }>
  y = ConstantOfShape (size)
}"""
COUNTED_SIZE = """g (float[a] x, bool c, int64[1] n) => (float[k] y)
<int64[1] one = {1}, int64 three = {3}, bool yes = {1}> {
  size = Loop (three, yes, n) <
    body = trip (int64 i, bool go, int64[1] s) => (bool on, int64[1] t) {
      on = Identity (go)
      t = Add (s, one)
    }>
  y = ConstantOfShape (size)
}"""


@pytest.mark.parametrize(
    ("text", "sizes", "refused"),
    [(CHOSEN_SIZE, {(True, -1): 0, (True, 0): 1, (False, 1): 0, (False, 4): 3},
      [(True, -2), (False, 0)]),
     (COUNTED_SIZE, {(True, -3): 0, (True, -1): 2, (True, 5): 8}, [(True, -4)])],
)  # fmt: skip
def test_a_size_that_a_branch_or_a_loop_gives(text, sizes, refused):
    def feeds(c, n):
        return {"x": np.ones(2, "float32"), "c": np.bool_(c), "n": np.array([n])}

    built = check(text, *(feeds(*each) for each in sizes))
    for each, size in sizes.items():
        assert len(built.run(None, feeds(*each))[0]) == size
    for each in refused:
        with pytest.raises(RunError, match=r"a size is -1, less than 0"):
            built.run(None, feeds(*each))
