"""Products with weights of a few bits, which stay so; oracle: numpy in float64."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tvm_ext import convert_and_build, pipeline, targets
from tvm_ext.errors import OptionError, TargetError
from tvm_ext.schedules.llvm.dot import Dot

RNG = np.random.default_rng(0)
TARGETS = {"native": "llvm", "sse": {"kind": "llvm", "mcpu": "x86-64-v2"}}
DEPTH, BLOCK = 64, 32
HAS_VNNI = Dot.of(targets.resolve("llvm"), 8).depth == 4


def layer(columns, bits, zeros, block=BLOCK):
    """Bytes, scales and perhaps zero points; and the weights that they stand for."""
    blocks = DEPTH // block
    codes = RNG.integers(0, 1 << bits, (columns, DEPTH), dtype="uint8")
    codes[0, :2] = 0, (1 << bits) - 1
    points = np.full((columns, blocks), 1 << (bits - 1), "uint8")
    if zeros:
        points = RNG.integers(0, 1 << bits, (columns, blocks), dtype="uint8")
    scales = RNG.random((columns, blocks), dtype="float32")
    weights = (codes.astype("f8") - points.repeat(block, 1)) * scales.repeat(block, 1)
    arrays = packed(codes, bits).reshape(columns, blocks, -1), scales
    return (*arrays, packed(points, bits))[: 2 + zeros], weights.T


def packed(codes, bits):
    """Low bits first; rows are filled up to whole bytes."""
    codes = np.pad(codes, ((0, 0), (0, -codes.shape[1] % (8 // bits))))
    shifts = np.arange(0, 8, bits)
    parts = codes.reshape(len(codes), -1, 8 // bits).astype("int64") << shifts
    return parts.sum(-1).astype("uint8")


def model(layers, shape, **options):
    """Layers side by side, the second's result through an activation."""
    nodes, constants, results = [], [], []
    for k, (arrays, columns, bits) in enumerate(layers):
        names = [f"p{k}_{i}" for i in range(len(arrays))]
        constants += map(numpy_helper.from_array, arrays, names)
        attributes = {"K": DEPTH, "N": columns, "bits": bits, "block_size": BLOCK, **options}
        nodes.append(helper.make_node("MatMulNBits", ["x", *names], [f"m{k}"],
                                      domain="com.microsoft", **attributes))  # fmt: skip
        nodes.append(helper.make_node("Tanh" if k == 1 else "Neg", [f"m{k}"], [f"y{k}"]))
        results.append(helper.make_tensor_value_info(f"y{k}", 1, None))
    inputs = [helper.make_tensor_value_info("x", 1, shape)]
    graph = helper.make_graph(nodes, "graph", inputs, results, constants)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    ("target", "shape", "rows"),
    [
        ("native", ("b", "t", DEPTH), [(1, 1), (2, 3), (1, 41), (0, 4)]),
        ("native", (2, 9, DEPTH), [(2, 9)]),
        ("sse", (1, 1, DEPTH), [(1, 1)]),
    ],
)
def test_bits_become_floats_in_registers(target, shape, rows):
    formats = (96, 4, True), (70, 4, False), (17, 8, True), (33, 2, False)
    made = [layer(columns, bits, zeros) for columns, bits, zeros in formats]
    layers = [(arrays, f[0], f[1]) for (arrays, _), f in zip(made, formats, strict=True)]
    compiled = convert_and_build(model(layers, shape), TARGETS[target])
    selected = compiled.sources()["select"]
    assert selected.count("R.call_tir(cls.matmul_blocks") == len(formats)
    for leading in rows:
        x = RNG.standard_normal((*leading, DEPTH)).astype("float32")
        for k, (y, (_, weights)) in enumerate(zip(compiled.run(None, {"x": x}), made, strict=True)):
            want = x.astype("f8") @ weights
            want = np.tanh(want) if k == 1 else -want
            # Of 64 terms, each rounded a few times.
            bound = 64 * 2.0**-23 * (abs(x.astype("f8")) @ abs(weights)) + 1e-6
            assert (abs(y - want) <= bound).all()


def rounded(x, block):
    """What is left of float32 ``x`` where blocks are rounded to 8 bits, in float64."""
    blocks = x.reshape(len(x), DEPTH // block, block)
    top = abs(blocks).max(-1, keepdims=True)
    inverse = np.float32(127) / np.where(top == 0, 1, top)
    codes = np.rint(blocks * inverse)
    return (codes.astype("f8") * (top / np.float32(127))).reshape(x.shape)


@pytest.mark.parametrize("shape, rows, block", [
    (("b", DEPTH), [1, 2, 41, 0], 16), ((7, DEPTH), [7], 32), ((1, DEPTH), [1], 64),
])  # fmt: skip
def test_rows_are_rounded_where_the_model_allows_it(shape, rows, block):
    """Where the CPU has products of bytes; elsewhere the answer is that of float32."""
    formats = (96, 4, True), (70, 4, False), (17, 8, True), (33, 2, False)
    made = [layer(*format_, block) for format_ in formats]
    layers = [(arrays, f[0], f[1]) for (arrays, _), f in zip(made, formats, strict=True)]
    compiled = convert_and_build(model(layers, shape, block_size=block, accuracy_level=4))
    rounds = HAS_VNNI
    assert compiled.sources()["select"].count("R.call_tir(cls.pack") == rounds  # shared
    for count in rows:
        x = RNG.standard_normal((count, DEPTH)).astype("float32")
        kept = rounded(x, block) if rounds else x.astype("f8")
        for k, (y, (_, weights)) in enumerate(zip(compiled.run(None, {"x": x}), made, strict=True)):
            want = np.tanh(kept @ weights) if k == 1 else -(kept @ weights)
            bound = 64 * 2.0**-23 * (abs(kept) @ abs(weights)) + 1e-6
            assert (abs(y - want) <= bound).all()


def test_rounded_rows_keep_what_is_special():
    arrays, weights = layer(40, 4, True)
    compiled = convert_and_build(model([(arrays, 40, 4)], (5, DEPTH), accuracy_level=4))
    x = RNG.standard_normal((5, DEPTH)).astype("float32")
    x[0], x[1, 3], x[2, 40], x[3, 2] = 0, np.nan, np.inf, -np.inf
    y = -compiled(x)
    assert (y[0] == 0).all() and np.isnan(y[1]).all()
    with np.errstate(invalid="ignore"):
        want = x.astype("f8") @ weights  # infinite, or of a weight of 0 NaN
    np.testing.assert_array_equal(y[2:4], want[2:4])
    kept = rounded(x[4:], BLOCK) if HAS_VNNI else x[4:].astype("f8")
    np.testing.assert_allclose(y[4], (kept @ weights)[0], rtol=1e-4, atol=1e-4)


def test_rounding_may_be_left_out():
    arrays, weights = layer(40, 4, False)
    network = model([(arrays, 40, 4)], (3, DEPTH), accuracy_level=4)
    steps = pipeline.default(targets.resolve("llvm")).without("RoundedBlocks")
    x = RNG.standard_normal((3, DEPTH)).astype("float32")
    np.testing.assert_allclose(-convert_and_build(network, steps=steps)(x), x @ weights, rtol=1e-4)


@pytest.mark.skipif(not HAS_VNNI, reason="this CPU has no VNNI")
def test_the_build_may_round_rows_that_the_model_does_not():
    """Blocks of DequantizeLinear have no ``accuracy_level``."""
    codes = RNG.integers(-7, 8, (DEPTH, 40), dtype="int8")
    scales = RNG.random((DEPTH // BLOCK, 40), dtype="float32")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["f"], axis=0, block_size=BLOCK),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, 1, (3, n)) for name, n in (("x", DEPTH), ("y", 40))]
    constants = [numpy_helper.from_array(codes, "w"), numpy_helper.from_array(scales, "s")]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], constants)
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = RNG.standard_normal((3, DEPTH)).astype("float32")
    weights = codes * scales.repeat(BLOCK, 0).astype("f8")
    for precision, kept in ((None, x.astype("f8")), ("a8", rounded(x, BLOCK))):
        got = convert_and_build(network, precision=precision)(x)
        np.testing.assert_allclose(got, kept @ weights, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "target, level, error, says",
    [
        ("x86-64-v2", 3, TargetError, "VNNI"),
        ("x86-64-v4", 3, TargetError, "VNNI"),
        ({"kind": "llvm", "mcpu": "icelake-server"}, 1, OptionError, "opt_level 2"),
    ],
)
def test_rounding_that_cannot_be_is_refused(target, level, error, says):
    arrays, _ = layer(40, 4, False)
    with pytest.raises(error, match=says):
        convert_and_build(model([(arrays, 40, 4)], (3, DEPTH)), target, opt_level=level,
                          precision="a8")  # fmt: skip
