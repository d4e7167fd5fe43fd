"""Divisions by sizes of tensors without elements."""

import numpy as np
import tvm_ffi
from onnx import parser
from tvm import IRModule, tirx
from tvm.sym import Analyzer

from tvm_ext import convert_and_build
from tvm_ext.executors.divisions import DIVISIONS, divide_sizes_safely

N = tirx.Var("n", "int64")


def divided(extent, index):
    """``for i in range(extent): y[index(i)] = 1``, after the pass: its extent, its divisors."""
    y, i = tirx.decl_buffer((N,), "float32", "y"), tirx.Var("i", "int64")
    store = tirx.BufferStore(y, tirx.const(1.0, "float32"), [index(i)])
    loop = tirx.For(i, tirx.const(0, "int64"), extent, tirx.ForKind.SERIAL, store)
    module = divide_sizes_safely(IRModule({"main": tirx.PrimFunc([y, N], loop)}))
    (func,) = module.functions.values()
    divisors = []
    tvm_ffi.structural_walk(func.body, (DIVISIONS, lambda node: divisors.append(node.b)))
    return func.body.extent, divisors


def test_what_does_not_change_in_loops_is_divided_by_no_zero():
    extent, divisors = divided(tirx.floormod(tirx.const(-3, "int64"), N), lambda i: i)
    none = tvm_ffi.structural_map(extent, (tirx.Var, lambda _: tirx.const(0, "int64")))
    assert int(Analyzer().simplify(none)) == 0
    assert all(isinstance(divisor, tirx.Select) for divisor in divisors)


def test_what_changes_in_loops_and_numbers_stay():
    _, divisors = divided(N // 2, lambda i: tirx.floormod(i, N))
    assert len(divisors) == 2 and not any(isinstance(each, tirx.Select) for each in divisors)


def test_a_roll_of_nothing():
    model = parser.parse_model("""<ir_version: 10, opset_import: ["": 18]>
        roll (float[rows, n] x) => (float[rows, k] y)
        <int64[1] one = {1}, int64[1] zero = {0}, int64[1] by = {-2}>
        {
            n = Shape<start = 1>(x)
            at = Mod(by, n)
            head = Slice(x, zero, at, one)
            tail = Slice(x, at, n, one)
            y = Concat<axis = 1>(tail, head)
        }""")
    compiled = convert_and_build(model, "llvm")
    for shape in (2, 5), (3, 1), (2, 0), (0, 0):
        x = np.arange(np.prod(shape), dtype="float32").reshape(shape)
        np.testing.assert_array_equal(compiled(x), np.roll(x, 2, 1))
