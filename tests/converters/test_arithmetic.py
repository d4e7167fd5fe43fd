"""Arithmetic: broadcasting of every opset, NaN, and integer division that must not trap."""

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.oracle import check_model, check_node, node_model
from tvm_ext import convert_and_build

RNG = np.random.default_rng(7)
SIZES = 8, 16, 32, 64  # bits
A = RNG.normal(0, 2, (2, 3, 5)).astype("float32")
B = RNG.normal(0, 2, (3, 1)).astype("float32")


@pytest.mark.parametrize("op_type", ["Add", "Div", "Max", "Mean"])
def test_broadcasts(op_type):
    check_node(op_type, [A, B])


def test_opset_6_aligns_at_an_axis():
    b = RNG.normal(size=3).astype("float32")
    check_node("Sub", [A, b], {"axis": 1, "broadcast": 1}, opset=6, expected=[A - b[:, None]])


def test_dims_known_at_run_time_broadcast():
    model = node_model("Add", [np.ones((2, 3), "f4"), np.ones((5, 7), "f4")], symbolic=True)
    compiled = convert_and_build(model, "llvm", opt_level=0)
    for left, right in (((2, 1), (1, 7)), ((1, 7), (4, 7)), ((0, 1), (1, 3))):
        x, y = RNG.normal(size=left).astype("f4"), RNG.normal(size=right).astype("f4")
        np.testing.assert_array_equal(compiled(x, y), x + y)


def test_nan_wins_on_both_sides():
    x, y = np.array([np.nan, 1, 2], "f4"), np.array([0, np.nan, 3], "f4")
    check_node("Max", [x, y], expected=[np.array([np.nan, np.nan, 3], "f4")])


@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul"])
def test_a_known_zero_is_a_number_like_others(op_type, zero):
    """Infinity times 0 is NaN, -0 + 0 is 0."""
    x, y = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 1], "f4"), np.array(zero, "f4")
    model = node_model(op_type, [x, y], constants=[1])
    with np.errstate(invalid="ignore"):
        expected = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[op_type](x, y)
    for level in (0, 3):
        (got,) = convert_and_build(model, "llvm", opt_level=level).run(None, {"x0": x})
        np.testing.assert_array_equal(got, expected)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


def test_zeros_of_a_shape_known_at_run_time_are_numbers_like_others():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        agraph (float[N] x) => (float[M] y) {
            s = Shape(x)
            zeros = ConstantOfShape(s)
            y = Mul(x, zeros)
        }""")
    x = np.array([np.inf, np.nan, 1], "f4")
    check_model(model, {"x": x}, expected=[np.array([np.nan, np.nan, 0], "f4")], opt_levels=(0, 3))


def test_integer_division_never_traps():
    least = np.iinfo("int32").min
    x = np.array([-7, 7, least, 5], "int32")
    y = np.array([2, -2, -1, 0], "int32")
    check_node("Div", [x, y], expected=[np.array([-3, -3, least, 0], "int32")])
    check_node("Mod", [x, y], expected=[np.array([1, -1, 0, 0], "int32")])


DIVISIONS = """<ir_version: 10, opset_import: ["": 22]>
g ({0}[n] x, {0}[n] y) => ({0}[n] q, {0}[n] m, {0}[n] r) {{
  q = Div(x, y)  m = Mod(x, y)  r = Mod <fmod=1>(x, y) }}"""


@pytest.mark.parametrize("dtype", [f"{sign}int{bits}" for sign in ("", "u") for bits in SIZES])
def test_integer_division_is_exact(dtype):
    """Quotients near whole numbers, ends of the range, where floats of the same width round."""
    x, y = _hostile_divisions(dtype)
    model = convert_and_build(onnx.parser.parse_model(DIVISIONS.format(dtype)), "llvm")
    quotient, modulo, rest = model(x, y)
    pairs = [(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    floors = [a // b if b else 0 for a, b in pairs]
    truncated = [abs(a) // abs(b) * (1 if a * b > 0 else -1) if b else 0 for a, b in pairs]
    wrapped = np.array([q % 2 ** (8 * x.itemsize) for q in truncated], "uint64").astype(dtype)
    np.testing.assert_array_equal(quotient, wrapped)
    for result, quotients in ((modulo, floors), (rest, truncated)):
        left = [a - q * b if b else 0 for (a, b), q in zip(pairs, quotients, strict=True)]
        np.testing.assert_array_equal(result, np.array(left, dtype))


def _hostile_divisions(dtype):
    """Pairs of the ends, of powers of 2 and their neighbours, of multiples and their neighbours."""
    kind = np.iinfo(dtype)
    near = [2**e + d for e in range(0, kind.bits + 1, 3) for d in (-1, 0, 1)] + [kind.max, kind.min]
    values = sorted({v for n in near for v in (n, -n) if kind.min <= v <= kind.max})
    pairs = [(a, b) for a in values for b in values]
    for _ in range(2000):
        b, q = (
            int(RNG.integers(1, kind.max, dtype=dtype)) >> n
            for n in RNG.integers(0, kind.bits, 2).tolist()
        )
        a = b * q + int(RNG.integers(-1, 2))
        pairs += [(s * a, t * b) for s in (1, -1) for t in (1, -1)]
    inside = [p for p in pairs if all(kind.min <= v <= kind.max for v in p)]
    return (np.array(column, dtype) for column in zip(*inside, strict=True))


@pytest.mark.parametrize(
    "body, compute",
    [
        ("s = Add(x, c) y = Greater(s, x)", lambda x, c: x + c > x),
        ("s = Sub(x, c) y = Less(s, x)", lambda x, c: x - c < x),
        ("s = Mul(x, x) z = Sub(c, c) y = Less(s, z)", lambda x, c: x * x < 0),
        ("s = Mul(x, c) t = Div(s, c) y = Equal(t, x)", lambda x, c: _quotient(x * c, c) == x),
        ("s = Add(x, c) m = Max(s, x) y = Equal(m, s)", lambda x, c: np.maximum(x + c, x) == x + c),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_what_follows_a_sum_or_product_sees_it_wrapped(dtype, body, compute):
    """TVM takes ``x + 1 > x`` for true, and fails on differences of unsigned numbers."""
    info = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(info.min, info.max, 61, dtype, endpoint=True)
    x[:3], c = [info.min, info.max, 0], np.array(5, dtype)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g ({dtype}[N] x) => (bool[N] y) {{ {body} }}'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(c, "c"))
    check_model(model, {"x": x}, expected=[compute(x, c)], opt_levels=(0, 1, 3))


def _quotient(x, y):
    """Toward zero."""
    return (x.astype("int64") / y.astype("int64")).astype(x.dtype)


def test_unsigned_numbers_of_64_bits_compare_with_their_sums():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (uint64[N] x, uint64[N] c) => (bool[N] y) '
        "{ s = Add(x, c) d = Sub(s, x) m = Max(d, x) y = Less(m, s) }"
    )
    feeds = {"x": np.arange(7, dtype="uint64"), "c": np.full(7, 3, "uint64")}
    check_model(model, feeds, expected=[np.arange(7) > 0], opt_levels=(0, 1, 3))


def test_integer_powers_are_exact():
    x, y = np.array([3, -2, -1, 0, 7], "int64"), np.array([39, 5, 101, 0, -1], "int64")
    check_node("Pow", [x, y], expected=[np.array([3**39, -32, -1, 1, 0])])
    x, y = np.array([*range(-9, 9), 2**31 - 1], "int32"), np.arange(64, dtype="int64")[:, None]
    powers = [[pow(int(a), int(b), 2**32) for a in x] for b in y[:, 0]]
    check_node("Pow", [x, y], expected=[np.array(powers).astype("uint32").astype("int32")])
