"""Functions of one byte become tables; oracle: onnxruntime, unfused."""

import re

import numpy as np
import pytest
from onnx import numpy_helper, parser

from tests.rewrites.checking import model, operators, rewritten, run
from tvm_ext import convert_and_build

SCALES = {
    "sx": np.array(0.05, "float32"), "sg": np.array(1 / 255, "float32"),
    "sy": np.array(0.03, "float32"),
}  # fmt: skip


def scales(dtype, zeros=(120, 0, 5)):
    """Three scales, and zero points of ``dtype``, given as those of uint8."""
    shift = 128 if dtype == "int8" else 0
    names = zip(("zx", "zg", "zy"), zeros, strict=True)
    return SCALES | {name: np.array(zero - shift, dtype) for name, zero in names}


def every_byte(dtype, *shape):
    """All of the 256, over and over."""
    return np.resize(np.arange(256, dtype="uint8"), shape).view(dtype)


def silu(dtype, *shape):
    """SiLU as onnxruntime quantises it: the gate is rounded to bytes, too."""
    dims = ",".join(map(str, shape))
    return model(
        f"g ({dtype}[{dims}] x) => ({dtype}[{dims}] y) {{"
        "  f = DequantizeLinear(x, sx, zx)  g = Sigmoid(f)"
        "  gq = QuantizeLinear(g, sg, zg)  gf = DequantizeLinear(gq, sg, zg)"
        "  p = Mul(f, gf)  y = QuantizeLinear(p, sy, zy) }",
        **scales(dtype),
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("shape", [(1,), (7, 37), (1, 3, 16, 17), (0, 5), (4096,)])
def test_a_gate_and_what_it_scales_are_one_table(dtype, shape):
    proto = silu(dtype, *shape)
    assert operators(rewritten(proto)) == ["ByteTable"]
    x = every_byte(dtype, *shape)
    (want,) = run(proto, {"x": x})
    (got,) = convert_and_build(proto, "llvm").run(None, {"x": x})
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("operator", ["Gelu", "HardSwish", "Mish"])
def test_operators_that_are_functions(operator):
    """Of which onnx's reference has nothing but their bodies."""
    proto = model(
        f"g (int8[3, 96] x) => (int8[3, 96] y) {{ f = DequantizeLinear(x, sx, zx)"
        f"  r = {operator}(f)  y = QuantizeLinear(r, sy, zy) }}",
        21,
        **scales("int8"),
    )
    assert operators(rewritten(proto)) == ["ByteTable"]
    x = every_byte("int8", 3, 96)
    (want,) = run(proto, {"x": x})
    (got,) = convert_and_build(proto, "llvm").run(None, {"x": x})
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3"])
def test_a_cpu_without_shuffles_of_bytes(target):
    proto, x = silu("int8", 3, 5, 33), every_byte("int8", 3, 5, 33)
    (want,) = run(proto, {"x": x})
    (got,) = convert_and_build(proto, target).run(None, {"x": x})
    np.testing.assert_array_equal(got, want)


def test_rows_of_an_image_are_shuffled_as_one():
    """56 columns are no whole vectors, all of an image are: 49 of 64 bytes."""
    built = convert_and_build(silu("int8", 1, 4, 56, 56), "llvm -mcpu=icelake-server")
    assert re.search("vperm[it]2b", built.sources()["asm"])
    assert "T.vectorized(T.int64(64))" in built.sources()["schedule"]


def test_symbolic_sizes():
    proto = silu("uint8", "n", 19)
    built = convert_and_build(proto, "llvm")
    for n in (0, 1, 3, 64):
        x = every_byte("uint8", n, 19)
        np.testing.assert_array_equal(built.run(None, {"x": x})[0], run(proto, {"x": x})[0])


@pytest.mark.parametrize("channels", [16, 24, 7])
def test_a_convolution_looks_up_what_it_gives(channels):
    """One kernel: sums, codes, and their table, also where channels fill no block."""
    rng = np.random.default_rng(channels)
    proto = model(
        f"g (uint8[1,8,9,9] x) => (uint8[1,{channels},9,9] y) {{"
        "  xf = DequantizeLinear(x, sx, zx)  wf = DequantizeLinear(w, sw)"
        "  c = Conv<pads = [1, 1, 1, 1]>(xf, wf)  cq = QuantizeLinear(c, sc, zx)"
        "  f = DequantizeLinear(cq, sc, zx)  t = Tanh(f)  y = QuantizeLinear(t, sy, zy) }",
        w=rng.integers(-127, 128, (channels, 8, 3, 3)).astype("int8"),
        sw=np.array(0.004, "float32"), sc=np.array(0.02, "float32"), **scales("uint8"),
    )  # fmt: skip
    assert "Tanh" not in operators(rewritten(proto))
    x = every_byte("uint8", 1, 8, 9, 9)
    (want,) = run(proto, {"x": x})
    (got,) = convert_and_build(proto, "llvm").run(None, {"x": x})
    assert len(np.unique(want)) > 20
    # What the convolution gives is within rounding of half a unit now and then.
    assert (got != want).mean() < 0.01


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("r = Relu(f)", "Relu"),  # as cheap as a table
        ("r = Mul(f, many)", "Mul"),  # a factor for each column
        ("h = QuantizeLinear(f, sg, zg)  e = DequantizeLinear(other, sg, zg)"
         "  d = Exp(f)  r = Add(d, e)", "Exp"),  # of two tensors
        ("l = Log(f)  r = Add(l, l)", "Log"),  # of negative numbers no number
        ("s = Exp(f)  r = Softmax<axis = 1>(s)", "Softmax"),  # of a row
    ],
)  # fmt: skip
def test_what_is_left(body, left):
    proto = model(
        f"g (uint8[2,5] x, uint8[2,5] other) => (uint8[2,5] y) {{"
        f"  f = DequantizeLinear(x, sx, zx)  {body}  y = QuantizeLinear(r, sy, zy) }}",
        many=np.arange(1, 6, dtype="float32"), **scales("uint8"),
    )  # fmt: skip
    names = operators(rewritten(proto))
    assert left in names and "ByteTable" not in names


def test_functions_are_composed():
    """A table of a table is a table; what others read of the first stays."""
    proto = model(
        "g (int8[40,9] x) => (int8[40,9] y, float[40,9] z) {"
        "  f = DequantizeLinear(x, sx, zx)  g = HardSigmoid(f)  a = QuantizeLinear(g, sg, zg)"
        "  b = DequantizeLinear(a, sg, zg)  e = Erf(b)  y = QuantizeLinear(e, sy, zy)"
        "  z = Neg(b) }",
        **scales("int8"),
    )
    result = rewritten(proto)
    tables = [node for node in result.graph if node.op_type == "ByteTable"]
    assert len(tables) == 2 and all(node.inputs[0].name == "x" for node in tables)
    x = every_byte("int8", 40, 9)
    for got, want in zip(
        convert_and_build(proto, "llvm").run(None, {"x": x}), run(proto, {"x": x}), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_operators_of_onnxruntime(dtype):
    """In its format of operators, whose results onnx does not infer."""
    domain = 'opset_import: ["" : 18, "com.microsoft" : 1]'
    proto = parser.parse_model(
        f"<ir_version: 8, {domain}> g ({dtype}[n,33] x) => ({dtype}[n,33] y, {dtype}[n,33] z) {{"
        "  d = com.microsoft.QLinearAdd(x, sx, zx, c, sx, zx, sx, zx)"
        "  g = com.microsoft.QLinearSigmoid(d, sx, zx, sg, zg)"
        "  y = com.microsoft.QLinearMul(d, sx, zx, g, sg, zg, sy, zy)"
        "  l = com.microsoft.QLinearLeakyRelu<alpha = 0.2>(d, sx, zx, sy, zy)"
        "  z = com.microsoft.QLinearAdd(l, sy, zy, y, sy, zy, sx, zx) }"
    )
    many = every_byte(dtype, 33)
    for name, array in (scales(dtype) | {"c": many}).items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    assert operators(rewritten(proto)) == ["QLinearAdd", *["ByteTable"] * 2]
    built = convert_and_build(proto, "llvm")
    for n in (1, 8):
        x = every_byte(dtype, n, 33)
        for got, want in zip(built.run(None, {"x": x}), run(proto, {"x": x}), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("constant", "tables"), [((), 1), ((1, 1), 1), ((1, 1, 1), 0)])
def test_a_constant_may_add_axes(constant, tables):
    proto = model(
        "g (uint8[2,5] x) => (uint8[o] y) {"
        "  f = DequantizeLinear(x, sx, zx)  e = Exp(f)  m = Mul(e, c)"
        "  t = QuantizeLinear(m, sy, zy)  y = Reshape(t, flat) }",
        c=np.full(constant, 0.1, "float32"), flat=np.array([-1]), **scales("uint8"),
    )  # fmt: skip
    assert operators(rewritten(proto)).count("ByteTable") == tables
