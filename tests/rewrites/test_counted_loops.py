"""While loops that count: as many trips as before, and results of a known length."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from tvm_ext import convert_and_build
from tvm_ext.executors.static import StaticExecutor
from tvm_ext.executors.symbolic import SymbolicExecutor
from tvm_ext.executors.vm import VMExecutor

NET = """<ir_version: 8, opset_import: ["": {opset}]>
g (float[N, 3] xs, float[3] x0, int64 i0, int64 n, bool b)
  => (float[3] x, int64 i, float[M, 3] sums)
{{
  most = Constant <value = int64 {{4}}> ()
  true = Constant <value = bool {{1}}> ()
  zero = Constant <value = int64 {{0}}> ()
  one = Constant <value = int64 {{1}}> ()
  two = Constant <value = int64 {{2}}> ()
  shape = Shape (xs)
  rows = Gather (shape, zero)
  {begin}
  x, i, sums = Loop ({loop}) <
    body = trip (int64 t, bool g, float[3] v, int64 k)
      => (bool g1, float[3] v1, int64 k1, float[3] s)
    {{
      at = Mod (t, rows)
      row = Gather (xs, at)
      v1 = Add (v, row)
      s = Softmax <axis = 0> (v1)
      {body}
    }}>
}}"""

# What is in front of the loop, what it begins with, and how a trip counts.
COUNTED = {
    "rows": (
        "c = Less (zero, rows)", ", c, x0, zero", "k1 = Add (k, one) g1 = Less (k1, rows)",
    ),
    "converted": (
        "r = Cast <to = 1> (rows) z = Constant <value = float {0}> () c = Less (z, r)",
        ", c, x0, zero",
        "k1 = Add (one, k) f = Cast <to = 1> (k1) r1 = Cast <to = 1> (rows) g1 = Less (f, r1)",
    ),
    "converted to a known bound": (
        "c = Less (i0, most)", ", c, x0, i0",
        "k1 = Add (k, one) f = Cast <to = 1> (k1) r1 = Cast <to = 1> (most) g1 = Less (f, r1)",
    ),
    "from a place": (
        "c = Greater (rows, i0)", ", c, x0, i0", "k1 = Add (k, one) g1 = Greater (rows, k1)",
    ),
    "and the last": (
        "c = LessOrEqual (i0, n)", ", c, x0, i0", "k1 = Add (k, one) g1 = LessOrEqual (k1, n)",
    ),
    "at most four": (
        "c = Less (i0, n)", "most, c, x0, i0",
        "k1 = Add (k, one) l = Less (k1, n) g1 = And (g, l)",
    ),
    "both": (
        "c1 = Less (i0, n) c2 = Less (i0, rows) c = And (c1, c2)", ", c, x0, i0",
        "k1 = Add (k, one) a = Less (k1, n) b1 = GreaterOrEqual (rows, k1) c3 = Less (k1, rows) "
        "d = And (a, b1) g1 = And (d, c3)",
    ),
    "the first anyway": ("", "most, true, x0, i0", "k1 = Add (k, one) g1 = Less (k1, n)"),
    "by another condition": ("", "most, b, x0, i0", "k1 = Add (k, one) g1 = Less (k1, n)"),
}  # fmt: skip
OTHERS = {
    "by two": ("", "most, true, x0, i0", "k1 = Add (k, two) g1 = Less (k1, n)"),
    "before it counts": ("", "most, true, x0, i0", "k1 = Add (k, one) g1 = Less (k, n)"),
    "a bound that moves": (
        "", "most, true, x0, i0", "k1 = Add (k, one) m = Sub (n, t) g1 = Less (k1, m)",
    ),
    "downwards": ("", "most, true, x0, i0", "k1 = Sub (k, one) g1 = Less (k1, n)"),
    "a bound between integers": (
        "", "most, true, x0, i0",
        "k1 = Add (k, one) f = Cast <to = 1> (k1) h = Constant <value = float {2.5}> () "
        "g1 = Less (f, h)",
    ),
    "another counter": (
        "", "most, true, x0, i0", "j = Add (k, one) k1 = Mul (j, two) g1 = Less (j, n)",
    ),
}  # fmt: skip


def network(begin, loop, body, opset=17):
    model = parser.parse_model(NET.format(begin=begin, loop=loop, body=body, opset=opset))
    onnx.checker.check_model(model)
    return model


def feeds(rows=5, begin=0, bound=3, b=True):
    rng = np.random.default_rng(rows)
    values = (rng.standard_normal(shape).astype("float32") for shape in ((rows, 3), (3,)))
    return dict(zip(["xs", "x0"], values, strict=True)) | {
        "i0": np.array(begin), "n": np.array(bound), "b": np.array(b)
    }  # fmt: skip


@pytest.mark.parametrize("name", [*COUNTED, *OTHERS])
def test_there_are_as_many_trips(name):
    model = network(*(COUNTED | OTHERS)[name])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    built = [convert_and_build(model, "llvm", opt_level=level) for level in (1, 3)]
    for given in (feeds(), feeds(begin=2), feeds(begin=3), feeds(begin=4, b=False), feeds(1, 0, 1)):
        for one in built:
            given = {info.name: given[info.name] for info in one.inputs}
            for ours, theirs in zip(one.run(None, given), session.run(None, given), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, strict=True)


def test_the_bound_may_be_a_constant_of_the_body():
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[2] x0, int64 i0, bool b) => (float[2] x, int64 i, float[M, 2] all) {
      x, i, all = Loop (, b, x0, i0) <
        body = trip (int64 t, bool g, float[2] v, int64 k)
          => (bool g1, float[2] v1, int64 k1, float[2] s) <int64 one = {1}, int64 five = {5}> {
          v1 = Add (v, v)
          s = Identity (v)
          k1 = Add (k, one)
          g1 = Less (k1, five)
        }>
    }""")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    built = convert_and_build(model, "llvm")
    for begin, b in ((0, True), (4, True), (9, True), (0, False)):
        given = {"x0": np.ones(2, "f"), "i0": np.array(begin), "b": np.array(b)}
        for ours, theirs in zip(built.run(None, given), session.run(None, given), strict=True):
            np.testing.assert_array_equal(ours, theirs)


EXECUTORS = [
    ("rows", SymbolicExecutor), ("converted to a known bound", SymbolicExecutor),
    ("by two", VMExecutor), ("a bound between integers", VMExecutor),
]  # fmt: skip


@pytest.mark.parametrize("name, executor", EXECUTORS)
def test_results_of_a_counted_loop_have_a_known_length(name, executor):
    built = convert_and_build(network(*(COUNTED | OTHERS)[name]), "llvm")
    assert isinstance(built.executor, executor)


def test_a_loop_over_what_another_stacked_is_counted():
    trip = """(int64 t, bool g, int64 k) => (bool g1, int64 k1, float[2] s)
          <int64 one = {1}> {
          s1 = Gather (xs, k)
          s = Add (s1, s1)
          k1 = Add (k, one)
          g1 = Less (k1, many)
        }"""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[3, 2] x) => (float[M, 2] y) <int64 zero = {{0}}> {{
      shape = Shape (x)
      n = Gather (shape, zero)
      c = Less (zero, n)
      i, ys = Loop (, c, zero) <body = first {trip.replace("xs", "x").replace("many", "n")}>
      shape1 = Shape (ys)
      n1 = Gather (shape1, zero)
      c1 = Less (zero, n1)
      i1, y = Loop (, c1, zero) <body = second {trip.replace("xs", "ys").replace("many", "n1")}>
    }}""")
    built = convert_and_build(model, "llvm")
    x = np.random.default_rng(0).standard_normal((3, 2)).astype("float32")
    np.testing.assert_array_equal(built(x), x * 4)
    assert isinstance(built.executor, StaticExecutor)
