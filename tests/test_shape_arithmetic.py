"""Shape arithmetic is evaluated at conversion; symbolic dims stay symbolic."""

import numpy as np
import pytest
from onnx import parser
from tvm import relax, tirx
from tvm.sym import Analyzer
from tvm_ext.frontend.known import Known
from tvm_ext.frontend.shape_arithmetic import evaluate

from tvm_ext import convert_and_build, frontend
from tvm_ext.errors import RunError

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
N = tirx.Var("n", "int64")


def result_shape(text):
    """The dims of the only output, as text, after conversion."""
    conversion = frontend.convert(frontend.load(parser.parse_model(HEAD + text)))
    (ty,) = conversion.outputs.values()
    calls = []
    relax.analysis.post_order_visit(conversion.module["main"], calls.append)
    run_time = [c for c in calls if isinstance(c, relax.Call) and "tensor_to_shape" in str(c.op)]
    assert not run_time, "a shape is computed at run time"
    return [str(dim).replace("T.int64", "").strip("()") for dim in ty.shape.values]


CHAIN = """g (float[{dims}] x) => (float[a,b] y) {{
  shape = Shape(x)
  zero = Constant<value = int64 {{0}}>()
  axis = Constant<value = int64[1] {{0}}>()
  rest = Constant<value = int64[1] {{-1}}>()
  batch = Gather(shape, zero)
  column = Unsqueeze(batch, axis)
  target = Concat<axis=0>(column, rest)
  y = Reshape(x, target)
}}"""


def test_a_static_chain_folds():
    assert result_shape(CHAIN.format(dims="2,3,4")) == ["2", "12"]


def test_a_symbolic_dim_stays_symbolic():
    assert result_shape(CHAIN.format(dims="n,3,4")) == ["n", "12"]


def test_expand_through_where_and_equal():
    """The chain that torch.onnx writes for expand(n, -1)."""
    assert result_shape("""g (float[n,1] x, float[1,5] z) => (float[a,b] y) {
      nx = Shape<end=1>(x)
      five = Shape<start=1>(z)
      wanted = Concat<axis=0>(nx, five)
      two = Constant<value = int64[1] {2}>()
      ones = ConstantOfShape<value = int64[1] {1}>(two)
      minus = Constant<value = int64 {-1}>()
      none = Mul(ones, minus)
      keep = Equal(wanted, none)
      target = Where(keep, ones, wanted)
      y = Expand(x, target)
    }""") == ["n", "5"]


def test_pads_turned_from_torch_order():
    """The chain that torch.onnx writes for ReflectionPad2d: last axis first, in pairs."""
    assert result_shape("""g (float[1,3,8,9] x) => (float[a,b,c,d] y) {
      given = Constant<value = int64[4] {1,2,3,4}>()
      count = Constant<value = int64[1] {4}>()
      none = ConstantOfShape<value = int64[1] {0}>(count)
      all = Concat<axis=0>(given, none)
      pairs = Constant<value = int64[2] {-1,2}>()
      table = Reshape(all, pairs)
      last = Constant<value = int64[1] {-1}>()
      least = Constant<value = int64[1] {-9223372036854775807}>()
      axis = Constant<value = int64[1] {0}>()
      reversed = Slice(table, last, least, axis, last)
      turned = Transpose<perm=[1,0]>(reversed)
      pads = Reshape(turned, last)
      y = Pad<mode="reflect">(x, pads)
    }""") == ["1", "3", "15", "12"]


def known(values, dtype="int64"):
    array = np.empty(len(values), object)
    array[:] = values
    return Known(array if dtype in ("int64", "bool") else array.astype(dtype), dtype)


def evaluated(op_type, *inputs, **attributes):
    result = evaluate(op_type, list(inputs), attributes, Analyzer())
    return None if result is None else [str(v) for v in result.array.flat]


@pytest.mark.parametrize(
    "op_type, inputs, attributes, expected",
    [
        ("Add", [[N, 2], [1, 3]], {}, ["n + T.int64(1)", "5"]),
        ("Div", [[-7, 8], [2, 3]], {}, ["-3", "2"]),
        ("Mod", [[-7, 8], [2, 3]], {}, ["1", "2"]),
        ("ReduceProd", [[N, 2, 3]], {"keepdims": 0}, ["n * T.int64(6)"]),
        ("ReduceSum", [[1, 2, 3]], {}, ["6"]),
        ("ReduceMax", [[1, 5, 3]], {"keepdims": 0}, ["5"]),
        ("ReduceMin", [[4, 5, 3]], {}, ["3"]),
        ("Slice", [[N, 2, 3], [-1], [-9], [0], [-1]], {}, ["3", "2", "n"]),
        ("Slice", [[N, 2, 3]], {"starts": (1,), "ends": (3,)}, ["2", "3"]),
        ("Max", [[1, 5], [2, 2]], {}, ["2", "5"]),
    ],
)
def test_evaluators(op_type, inputs, attributes, expected):
    assert evaluated(op_type, *map(known, inputs), **attributes) == expected


def test_sizes_scaled_by_floats():
    size = evaluate("Cast", [known([7, 9])], {"to": 1}, Analyzer())
    scaled = evaluate("Mul", [size, known([0.5, 2.0], "float32")], {}, Analyzer())
    floor = evaluate("Floor", [scaled], {}, Analyzer())
    assert evaluated("Cast", floor, to=7) == ["3", "18"]


def test_what_cannot_be_decided_is_not_known():
    assert evaluated("Equal", known([N]), known([3])) is None
    assert evaluated("Div", known([4]), known([0])) is None
    assert evaluated("Cast", known([N]), to=1) is None
    assert evaluated("ReduceMax", known([], "float32")) is None
    assert evaluated("Add", known(range(2000)), known(range(2000))) is None


def test_the_length_of_a_range_of_sizes_is_a_dim():
    text = """g (float[batch,sequence] x) => (int64[n] y) {
      shape = Shape(x)
      one = Constant<value = int64 {1}>()
      two = Constant<value = int64 {2}>()
      limit = Gather(shape, one)
      y = Range(one, limit, two)
    }"""
    (length,) = result_shape(text)
    assert "sequence" in length
    model = convert_and_build(parser.parse_model(HEAD + text), "llvm", opt_level=0)
    for size in (0, 1, 2, 5, 6):
        (y,) = model.run(None, {"x": np.zeros((1, size), "f4")})
        np.testing.assert_array_equal(y, np.arange(1, size, 2))


# Sizes as operands of what computes: limits, an exponent, a condition.
OPERANDS = """g (float[n,k] x) => (float[a,b] clipped, float[a,b] power, float[a,b] chosen) {
  shape = Shape(x)
  zero = Constant<value = int64 {0}>()
  one = Constant<value = int64 {1}>()
  n = Gather(shape, zero)
  k = Gather(shape, one)
  whole = Cast<to=7>(x)
  within = Clip(whole, zero, n)
  clipped = Cast<to=1>(within)
  power = Pow(x, k)
  many = Cast<to=9>(n)
  chosen = If(many) <
    then_branch = yes () => (float[n,k] y) { y = Neg(x) },
    else_branch = no () => (float[n,k] z) { z = Abs(x) }
  >
}"""


def test_sizes_are_operands():
    model = convert_and_build(parser.parse_model(HEAD + OPERANDS), "llvm")
    for n, k in ((3, 2), (7, 3), (0, 1)):
        x = np.arange(-3.0, n * k - 3, dtype="f4").reshape(n, k)
        clipped, power, chosen = model.run(None, {"x": x})
        np.testing.assert_array_equal(clipped, np.clip(x, 0, n))
        np.testing.assert_allclose(power, x**k, rtol=1e-6)
        np.testing.assert_array_equal(chosen, -x if n else np.abs(x))


# As exporters write position embeddings: a slice of a table beside the sequence.
POSITIONS = """g (float[sequence,3] x, float[5,3] table) => (float[a,b] y) {
  zero = Constant<value = int64[1] {0}>()
  shape = Shape(x)
  size = Gather(shape, zero)
  rows = Slice(table, zero, size, zero)
  y = Add(x, rows)
}"""


def test_a_slice_of_a_table_beside_the_sequence_has_its_size():
    assert result_shape(POSITIONS) == ["sequence", "3"]
    model = convert_and_build(parser.parse_model(HEAD + POSITIONS), "llvm", opt_level=0)
    table = np.arange(15, dtype="f4").reshape(5, 3)
    for size in (0, 1, 4, 5):
        (y,) = model.run(None, {"x": np.ones((size, 3), "f4"), "table": table})
        np.testing.assert_array_equal(y, 1 + table[:size])
    with pytest.raises(RunError, match=r"Add-14 .* axis 0 of .* is 5, .* broadcast to 6"):
        model.run(None, {"x": np.ones((6, 3), "f4"), "table": table})


def test_formulas_of_sizes_stay_short():
    # The size of each sum is a formula of those before it; written out, they would double.
    names = [f"x{k}" for k in range(12)]
    inputs = ", ".join(f"float[n{k}] {name}" for k, name in enumerate(names))
    sums = [f"s{k} = Add({f's{k - 1}' if k > 1 else 'x0'}, x{k})" for k in range(1, 12)]
    text = HEAD + f"g ({inputs}) => (float[n] s11) {{ {' '.join(sums)} }}"
    conversion = frontend.convert(frontend.load(parser.parse_model(text)))
    assert len(conversion.module["main"].script()) < 40_000
    model = convert_and_build(parser.parse_model(text), "llvm", opt_level=0)
    for sizes in ([1] * 6 + [7, 1, 7, 1, 7, 7], [3] * 12, [1] * 12):
        feeds = {name: np.full(n, 2.0, "f4") for name, n in zip(names, sizes, strict=True)}
        (total,) = model.run(None, feeds)
        np.testing.assert_array_equal(total, np.full(max(sizes), 24.0, "f4"))


def test_a_long_table_of_formulas_is_computed_as_data():
    """Chosen one by one, its elements made kernels that took minutes to build."""
    n, analyzer = tirx.Var("n", "int64"), Analyzer()
    ends = [Known(np.full((1,), n, object), "int64"), Known(np.arange(129, dtype=object), "int64")]
    assert evaluate("Add", ends, {}, analyzer) is None
    ends[1] = Known(ends[1].array[:8], "int64")
    assert evaluate("Add", ends, {}, analyzer).symbolic
