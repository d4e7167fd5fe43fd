"""Products with weights of a few bits, which stay so; oracle: numpy in float64."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tvm_ext import convert_and_build

RNG = np.random.default_rng(0)
TARGETS = {"native": "llvm", "sse": {"kind": "llvm", "mcpu": "x86-64-v2"}}
DEPTH, BLOCK = 64, 32


def layer(columns, bits, zeros):
    """Bytes, scales and perhaps zero points; and the weights that they stand for."""
    blocks = DEPTH // BLOCK
    codes = RNG.integers(0, 1 << bits, (columns, DEPTH), dtype="uint8")
    codes[0, :2] = 0, (1 << bits) - 1
    points = np.full((columns, blocks), 1 << (bits - 1), "uint8")
    if zeros:
        points = RNG.integers(0, 1 << bits, (columns, blocks), dtype="uint8")
    scales = RNG.random((columns, blocks), dtype="float32")
    weights = (codes.astype("f8") - points.repeat(BLOCK, 1)) * scales.repeat(BLOCK, 1)
    arrays = packed(codes, bits).reshape(columns, blocks, -1), scales
    return (*arrays, packed(points, bits))[: 2 + zeros], weights.T


def packed(codes, bits):
    """Low bits first; rows are filled up to whole bytes."""
    codes = np.pad(codes, ((0, 0), (0, -codes.shape[1] % (8 // bits))))
    shifts = np.arange(0, 8, bits)
    parts = codes.reshape(len(codes), -1, 8 // bits).astype("int64") << shifts
    return parts.sum(-1).astype("uint8")


def model(layers, shape):
    """Layers side by side, the second's result through an activation."""
    nodes, constants, results = [], [], []
    for k, (arrays, columns, bits) in enumerate(layers):
        names = [f"p{k}_{i}" for i in range(len(arrays))]
        constants += map(numpy_helper.from_array, arrays, names)
        attributes = {"K": DEPTH, "N": columns, "bits": bits, "block_size": BLOCK}
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
